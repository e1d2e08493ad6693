"""(input record, error) -> the output record of a dead-letter topic; pure.

The same input and reason give the same bytes: no clock, no traceback, no host. Verification can therefore
compute dead letters again; it leaves out the reason.
"""

from __future__ import annotations

from typing import NamedTuple

from eos.errors import ProcessDiedError, reason_of
from eos.headers import Headers, any_unreadable, legible
from eos.offsets import Partition
from eos.records import InputRecord, OutputRecord

_PREFIX = "eos.deadletter."
ERROR_HEADER = f"{_PREFIX}error"
_OURS = frozenset({f"{_PREFIX}topic", f"{_PREFIX}partition", f"{_PREFIX}offset", ERROR_HEADER})
_SKIPPED = "SkippedByOperator:"
_MAX_REASON_CHARS = 500  # an error text may quote the record; a header should stay small


def dead_letter(record: InputRecord, reason: str, *, topic: str) -> OutputRecord:
    """The dead letter of a record: its raw key, value, headers and timestamp, with where and why as headers.

    A header whose name is not UTF-8 cannot be written by this client: its value is kept, under its name with those bytes
    escaped (the first of such a record) or under ``eos.lost-name`` (the others).

    A record that was a dead letter itself, and was fed again, gets these headers in place of its old ones.

    Args:
        record: the record that could not be processed.
        reason: what is wrong with it, in words that are the same at every try.
        topic: the dead-letter topic.
    """
    return OutputRecord(
        topic=topic,
        key=record.key,
        value=record.value,
        headers=(
            *(one for one in legible(record.headers) if one[0] not in _OURS),
            (f"{_PREFIX}topic", record.topic.encode()),
            (f"{_PREFIX}partition", str(record.partition).encode()),
            (f"{_PREFIX}offset", str(record.offset).encode()),
            (ERROR_HEADER, reason[:_MAX_REASON_CHARS].encode(errors="backslashreplace")),
        ),
        # librdkafka takes 0 for none, so that one cannot be kept.
        timestamp_ms=record.timestamp_ms if (record.timestamp_ms or 0) > 0 else None,
    )


class Origin(NamedTuple):
    """The record that a dead letter was made of, and why."""

    partition: Partition
    offset: int
    reason: str


def origin_of(headers: Headers) -> Origin | None:
    """What the headers of a dead letter say; None of a record that `dead_letter` has not made."""
    said = {name: value or b"" for name, value in headers if name.startswith(_PREFIX)}
    topic, number, offset, reason = (
        said.get(f"{_PREFIX}{name}", b"").decode(errors="replace")
        for name in ("topic", "partition", "offset", "error")
    )
    if not (number.isdecimal() and offset.isdecimal()):
        return None
    return Origin(Partition(topic, int(number)), int(offset), reason)


class SkippedByOperator(Exception):  # noqa: N818 - said of a record
    """A person has skipped the record, for the reason that it says."""


def skipped_by_operator(reason: str) -> str:
    """The reason that stands in the letter of a record that a person has skipped."""
    return reason_of(SkippedByOperator(reason))


def died_with(letter: InputRecord) -> tuple[Partition, int] | None:
    """The place of a dead letter's input record, if processes died with it; None of other letters."""
    return _place_if(letter, f"{ProcessDiedError.__name__}:")


def skipped(letter: InputRecord) -> tuple[Partition, int] | None:
    """The place of a dead letter's input record, if a person has skipped it; None of other letters."""
    return _place_if(letter, _SKIPPED)


def lettered(letter: InputRecord) -> tuple[Partition, int] | None:
    """The place of a dead letter's input record; None of a record that `dead_letter` has not made."""
    return _place_if(letter, "")


def _place_if(letter: InputRecord, reason_begins: str) -> tuple[Partition, int] | None:
    origin = None if any_unreadable([letter.headers]) else origin_of(letter.headers)
    if origin is None or not origin.reason.startswith(reason_begins):
        return None
    return origin.partition, origin.offset
