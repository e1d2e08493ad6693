"""Which librdkafka runs here, and which ones must not."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from confluent_kafka import libversion

from eos.errors import ConfigError

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
_PART = re.compile(r"\d+", re.ASCII)


def librdkafka_version() -> str:
    """The version of the librdkafka that runs here, for example ``2.16.0``."""
    return str(libversion()[0])


@cache
def require_sound_librdkafka() -> None:
    """Called before the first client is made.

    Raises:
        ConfigError: this librdkafka is known to break exactly-once.
    """
    refuse_known_bad(librdkafka_version())


def refuse_known_bad(version: str) -> None:
    """Raise for a version in `KNOWN_BAD`, with each of its faults.

    Raises:
        ConfigError: the version is one of them.
    """
    numbers = [int(part) for part in _PART.findall(version)[:3]]
    number = (*numbers, *[0] * (3 - len(numbers)))
    faults = [bad for bad in KNOWN_BAD if bad.since <= number < bad.fixed]
    if faults:
        why = "; ".join(f"it {bad.why}, until {'.'.join(map(str, bad.fixed))}" for bad in faults)
        msg = f"librdkafka {version} is not exactly-once: {why}. Fix: pip install --upgrade confluent-kafka"
        raise ConfigError(msg)
