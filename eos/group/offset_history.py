"""Offset history: what eos had committed in a group before another program did, from the log of the group's offsets.

The group itself has the last commit alone, whoever made it. The log has those before it until Kafka compacts it, which it does not
begin with before a segment is full (``offsets.topic.segment.bytes``, 100 MB). A principal needs Read on that topic.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import NamedTuple

from eos.base.deadline import Deadline
from eos.errors import EosError, UnavailableError
from eos.group.committed import offsets_at, partitions_of
from eos.group.metadata import OffsetMetadata
from eos.group.offset_record import OFFSETS_TOPIC, OffsetRecord, parse
from eos.kafka.admin import Mark
from eos.kafka.consumer import ConsumerClient, lone_reader
from eos.offsets import OffsetVector, Partition
from eos.records import InputBatch
from eos.settings import Settings

_FIRST_LOOK, _GROWS = 20_000, 4  # records, from the log's end backwards
_BATCH, _POLL_S = 2_000, 0.5
_OPTIONS = {"enable.partition.eof": True, "auto.offset.reset": "error", "fetch.wait.max.ms": 20}


class Before(NamedTuple):
    """What the log says of a partition whose offset eos has not committed.

    Attributes:
        own: the last offset that eos has committed there; None: the log shows none.
        own_at_ms: when.
        other_at_ms: when the other program committed what is stored.
    """

    own: int | None = None
    own_at_ms: int | None = None
    other_at_ms: int | None = None


def before(
    settings: Settings, group: str, partitions: Collection[Partition], *, timeout_s: float
) -> dict[Partition, Before]:
    """What the log says of these partitions; nothing of it where it cannot be read in this time. Raises nothing."""
    found = dict.fromkeys(partitions, Before())
    with contextlib.suppress(EosError):
        _look(settings, group, found, Deadline(timeout_s))
    return found


def _look(settings: Settings, group: str, found: dict[Partition, Before], deadline: Deadline) -> None:
    with contextlib.closing(lone_reader(settings, group, stable=True, options=_OPTIONS)) as reader:
        count = len(partitions_of(reader, [OFFSETS_TOPIC], timeout_s=deadline.left_s))
        log = Partition(OFFSETS_TOPIC, place_of(group, count))
        begin, end = (
            offsets_at(settings, mark, [log], timeout_s=deadline.left_s)[log]
            for mark in (Mark.START, Mark.LAST_STABLE)
        )
        size = _FIRST_LOOK
        while begin < end and not deadline.passed and any(one.own is None for one in found.values()):
            start = max(begin, end - size)
            _take(found, _commits(reader, group, log, range(start, end), deadline))
            end, size = start, size * _GROWS


def _take(found: dict[Partition, Before], commits: Iterator[tuple[OffsetRecord, int | None]]) -> None:
    """Add what a part of the log shows, which ends where one that was taken before begins."""
    own: dict[Partition, tuple[int, int | None]] = {}
    other: dict[Partition, int | None] = {}
    for one, at_ms in commits:
        if one.partition not in found or one.stored is None:
            continue
        if OffsetMetadata.parse(one.stored.metadata) is None:
            other[one.partition] = at_ms
        else:
            own[one.partition] = (one.stored.offset, at_ms)
    for partition, known in found.items():
        offset, at_ms = own.get(partition, (None, None)) if known.own is None else known[:2]
        found[partition] = Before(offset, at_ms, known.other_at_ms or other.get(partition))


def _commits(
    reader: ConsumerClient, group: str, log: Partition, part: range, deadline: Deadline
) -> Iterator[tuple[OffsetRecord, int | None]]:
    """The group's commits in this part of the log, in order, with their times.

    Raises:
        UnavailableError: not all of it was read in time; the last commits are missing then.
    """
    reader.incremental_assign(OffsetVector({log: part.start}))
    try:
        while not deadline.passed:
            fetched = reader.consume(_BATCH, _POLL_S)
            for record in InputBatch(fetched.messages):
                if record.offset >= part.stop:
                    return
                found = parse(record.key, record.value)
                if found is not None and found.group == group:
                    yield found, record.timestamp_ms
            if fetched.ends:
                return
        raise UnavailableError(f"{log} was not read up to {part.stop} in time")
    finally:
        reader.incremental_unassign([log])


def place_of(group: str, partitions: int) -> int:
    """Which of so many partitions of the offsets' topic has the group: Java's hash of its name (`Utils.abs`, Apache Kafka 4.2)."""
    code = 0
    text = group.encode("utf-16-be")
    for high, low in zip(text[::2], text[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFF_FFFF
    code -= (code & 0x8000_0000) << 1
    return (0 if code == -(2**31) else abs(code)) % partitions
