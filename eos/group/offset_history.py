"""Offset history: what eos had committed in a group before another program did, from the log of the group's offsets.

The group itself has the last commit alone, whoever made it. The log has those before it until Kafka compacts it, which it does not
begin with before a segment is full (``offsets.topic.segment.bytes``, 100 MB). A principal needs Read on that topic.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from eos.base.deadline import Deadline
from eos.errors import EosError, UnavailableError
from eos.group.committed import offsets_at, partitions_of
from eos.group.metadata import OffsetMetadata
from eos.group.offset_record import OFFSETS_TOPIC, OffsetRecord, parse
from eos.group.topics import TopicIds
from eos.kafka.admin import Mark
from eos.kafka.consumer import ConsumerClient, lone_reader
from eos.kafka.group_offsets import Committed, same_commit
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
    settings: Settings, group: str, others: Mapping[Partition, Committed], *, timeout_s: float
) -> dict[Partition, Before]:
    """What the log says of partitions for which another program has committed these offsets. Raises nothing.

    Nothing where the log cannot be read in this time; nor where the last commit that it shows is not the one that is stored. Others may
    be missing then: a transaction that is open hides what comes behind it.
    """
    found: dict[Partition, Before] = {}
    with contextlib.suppress(EosError):
        deadline = Deadline(timeout_s)
        ids = TopicIds(settings).now({p.topic for p in others}, deadline.left_s)
        found = _look(settings, group, others, ids, deadline)
    return dict.fromkeys(others, Before()) | found


def _look(
    settings: Settings,
    group: str,
    others: Mapping[Partition, Committed],
    ids: Mapping[str, str],
    deadline: Deadline,
) -> dict[Partition, Before]:
    traces = {partition: _Trace(one, ids.get(partition.topic, "")) for partition, one in others.items()}
    with contextlib.closing(lone_reader(settings, group, stable=True, options=_OPTIONS)) as reader:
        count = len(partitions_of(reader, [OFFSETS_TOPIC], timeout_s=deadline.left_s))
        log = Partition(OFFSETS_TOPIC, place_of(group, count))
        begin, end = (
            offsets_at(settings, mark, [log], timeout_s=deadline.left_s)[log]
            for mark in (Mark.START, Mark.LAST_STABLE)
        )
        size = _FIRST_LOOK
        while begin < end and any(not one.over for one in traces.values()):
            start = max(begin, end - size)
            commits = list(_commits(reader, group, log, range(start, end), deadline))
            for one, at_ms in reversed(commits):
                if one.partition in traces:
                    traces[one.partition].back_to(one.stored, at_ms)
            end, size = start, size * _GROWS
    return {partition: one.found for partition, one in traces.items()}


class _Trace:
    """The commits of one partition, from the last one backwards."""

    def __init__(self, stored: Committed, topic_id: str) -> None:
        self.found = Before()
        self.over = False
        self._stored = stored
        self._topic_id = topic_id
        self._is_first = True

    def back_to(self, stored: Committed | None, at_ms: int | None) -> None:
        if self.over:
            return
        metadata = OffsetMetadata.parse(stored.metadata) if stored is not None else None
        if self._is_first:
            self._is_first = False
            self.over = not same_commit(stored, self._stored)
            self.found = Before() if self.over else Before(other_at_ms=at_ms)
        elif stored is None:  # deleted: what was before says nothing of what came then
            self.over = True
        elif metadata is not None:
            self.over = True
            if metadata.topic in ("", self._topic_id):
                self.found = self.found._replace(own=stored.offset, own_at_ms=at_ms)


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
