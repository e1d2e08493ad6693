"""The librdkafka that runs here: its version, those that must not run, and its log lines in Python's logging."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from confluent_kafka import libversion

from eos.errors import ConfigError
from eos.settings.secrets import HIDDEN, hidden

Version = tuple[int, int, int]


class KnownBad(NamedTuple):
    """Versions from ``since`` to below ``fixed`` that break what eos promises; ``why`` says how."""

    since: Version
    fixed: Version
    why: str


# From librdkafka's CHANGELOG.md, by the version that has the fix. pip keeps them out through the metadata of this
# package; what it does not see is a confluent-kafka built against a system's librdkafka.
KNOWN_BAD = (
    KnownBad((0, 0, 0), (1, 8, 2), "loses a transaction's messages when leaders change quickly"),
    KnownBad((0, 0, 0), (1, 9, 0), "loses messages after it has reported them delivered"),
    KnownBad((0, 0, 0), (2, 0, 0), "cannot go on with a commit that timed out"),
    KnownBad((2, 2, 0), (2, 13, 2), "moves a consumer's position past an error, and so over records (#4844)"),
)
# As a member by the KIP-848 protocol (group.protocol = consumer); a preview before 2.12.
KNOWN_BAD_MEMBERS = (
    KnownBad(
        (0, 0, 0),
        (2, 15, 0),
        "leaves partitions unread, or its member behind the group, in rebalances of the KIP-848 protocol (#5541)",
    ),
)
_PART = re.compile(r"\d+", re.ASCII)
_PAUSE_S = 10.0

_log = logging.getLogger(__name__)


def librdkafka_version() -> str:
    """The version of the librdkafka that runs here, for example ``2.16.0``."""
    return str(libversion()[0])


@cache
def require_sound_librdkafka(group_protocol: str = "classic") -> None:
    """Called before the first client is made.

    Raises:
        ConfigError: this librdkafka is known to break exactly-once, in general or by this group protocol.
    """
    refuse_known_bad(librdkafka_version(), group_protocol)


def refuse_known_bad(version: str, group_protocol: str = "classic") -> None:
    """Raise for a version in `KNOWN_BAD`, and for members by KIP-848 in `KNOWN_BAD_MEMBERS`, with each of its faults.

    Raises:
        ConfigError: the version is one of them.
    """
    numbers = [int(part) for part in _PART.findall(version)[:3]]
    number = (*numbers, *[0] * (3 - len(numbers)))
    known = KNOWN_BAD + (KNOWN_BAD_MEMBERS if group_protocol == "consumer" else ())
    faults = [bad for bad in known if bad.since <= number < bad.fixed]
    if faults:
        or_else = ", or ownership.protocol = 'cooperative'" if set(faults) <= set(KNOWN_BAD_MEMBERS) else ""
        why = "; ".join(f"it {bad.why}, until {'.'.join(map(str, bad.fixed))}" for bad in faults)
        msg = f"librdkafka {version} is not exactly-once: {why}. Fix: pip install --upgrade confluent-kafka{or_else}"
        raise ConfigError(msg)


class LogLines:
    """Given to a client as its ``logger``: librdkafka calls :meth:`log` from poll() and consume().

    Without one librdkafka writes to stderr by itself, whatever the log's format: 40 lines a second of a consumer whose
    brokers are all gone (measured with 2.16). Here a facility (FAIL, REQTMOUT, …) has one line in 10 s, with the number of
    those left out.

    Args:
        secrets: what no line may hold.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = tuple(secrets)
        self._last: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def log(self, level: int, template: str, *args: object) -> None:
        """One line of librdkafka; args are (facility, client name, text)."""
        facility = str(args[0]) if args else ""
        if facility == "FATAL":  # raised by the call, with what to do
            return
        now = time.monotonic()
        if now - self._last.get(facility, -math.inf) < _PAUSE_S:
            self._left_out[facility] = self._left_out.get(facility, 0) + 1
            return
        self._last[facility] = now
        left_out = self._left_out.pop(facility, 0)
        more = f" ({left_out} more {facility} lines since the last one)" if left_out else ""
        text = template % args
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        # Of an address, what stands before the host may be a login.
        _log.log(level, "librdkafka: %s%s", hidden("", text), more)
