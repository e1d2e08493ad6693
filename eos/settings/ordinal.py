"""The ordinal of an instance, from a number or a StatefulSet host name; random ones are refused.

The ordinal names the transactional.id. Kafka aborts the transaction that a dead instance left open, and
fences a stalled one, only when its *replacement* opens the same id: an ordinal that changes from start to
start leaves readers waiting until transaction.timeout.ms, and leaves zombies unfenced.
"""

from __future__ import annotations

import re
import socket

FROM_HOST_NAME = "hostname"
# Above this an ordinal must be covered by ownership.instances: process ids, dates and the tails of uuids
# are large, deployments are not.
MAX_UNCOUNTED = 999

_STATEFUL_SET = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?-(?P<ordinal>0|[1-9][0-9]*)")
_RANDOM_LOOKING = {
    "a uuid": re.compile(r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE),
    "a date": re.compile(r"(19|20)\d\d-\d{1,2}-\d{1,2}$"),
    "an IP address": re.compile(r"\d{1,3}(-\d{1,3}){3}$"),
}
_WHY = (
    "the ordinal must be the same for an instance and its replacement, else no replacement fences the transaction "
    "that a dead instance left open"
)
FIX = "EOS_ORDINAL = 0, 1, 2 …, one per instance, or a StatefulSet's host name such as refunds-3"


def parse_ordinal(value: object) -> int | None:
    """The ordinal meant by a number, a StatefulSet host name, or ``"hostname"`` (the name of this host).

    Raises:
        ValueError: no ordinal, or one that looks random; the message says why and how to fix it.
    """
    if value is None:
        return None
    text = str(value).strip()
    if isinstance(value, int) and not isinstance(value, bool):
        ordinal = value
    elif text.isascii() and text.isdigit():
        ordinal = int(text)
    else:
        return _of_host(socket.gethostname(), "the host name ") if text == FROM_HOST_NAME else _of_host(text)
    if ordinal < 0:
        raise ValueError(f"{ordinal} is negative. Fix: {FIX}")
    return ordinal


def _of_host(host: str, prefix: str = "") -> int:
    label = host.partition(".")[0]  # a StatefulSet pod may give its name with the domain
    found = _STATEFUL_SET.fullmatch(label)
    if looks_like := [what for what, pattern in _RANDOM_LOOKING.items() if pattern.search(label)]:
        wrong = f"holds {looks_like[0]}"
    elif found is None:
        wrong = "is neither a number nor a name that ends in -<ordinal>"
    elif int(found["ordinal"]) > MAX_UNCOUNTED:
        wrong = f"ends in {found['ordinal']}, which looks random"
    else:
        return int(found["ordinal"])
    raise ValueError(f"{prefix}{host!r} {wrong}, and {_WHY}. Fix: {FIX}")


def looks_random(ordinal: int, instances: int | None) -> str:
    """Why an ordinal looks random, "" if it does not."""
    if instances is None and ordinal > MAX_UNCOUNTED:
        return f"{ordinal} looks like a process id, a date or a random number, and {_WHY}"
    return ""
