"""Inputs that live: what other programs and the brokers do to a job's input topics while it runs."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import count

from eos.base.deadline import Deadline
from eos.base.listing import counted
from eos.errors import EosError
from eos.group.committed import committed_offsets, fresh_reader, offsets_at
from eos.kafka.admin import Admin, Mark
from eos.kafka.config import client_config
from eos.kafka.producer import TransactionalClient
from eos.kafka.topics import add_partitions, configure_topic, delete_records, produce_plain
from eos.offsets import Partition
from eos.ops.verifier.logs import LogReader, Range
from eos.prove.gauge import Gauge
from eos.records import InputRecord, OutputRecord
from eos.settings import Settings

_CALL_S = 10.0
_FOREIGN_RECORDS = 100
_FOREIGN_TIMEOUT_S = 60.0
_EXPIRING_TIMEOUT_S = 4.0
_EXPIRED_S = 3.0  # the coordinator looks every second
_PROCESSED_S = 60.0
_COMPACTED_S = 60.0
_STEP_S = 0.5
# A segment is closed by the next append, and all that is closed is compacted, as soon as the cleaner looks.
_SEGMENTS_END = {"segment.ms": "1"}
_COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "0"}
WAYS = (
    "records deleted",
    "foreign records aborted",
    "foreign transaction open, then committed",
    "foreign transaction open, then aborted",
    "partition added",
    "foreign transaction open, until it expires",
    "records compacted",
)

DELETING = frozenset({"records deleted", "records compacted"})  # what is processed
GROWING = frozenset({"partition added"})


class Inputs:
    """The input topics of a trial.

    Attributes:
        aborted: how many records of the input were written by transactions that were aborted.
        grown_at: when a partition was added last, by the monotonic clock.
        archive: the records that were deleted or compacted, each partition from offset 0 on: what they make is judged all the same.

    Args:
        settings: the job's, at the brokers' own addresses.
        group: whose committed offsets say what is processed.
        gauge: is told of partitions that are added.
        take: so many further records of the input, for another writer to write.
        held: a block without new input.
    """

    def __init__(
        self,
        settings: Settings,
        group: str,
        gauge: Gauge,
        take: Callable[[int], Sequence[OutputRecord]],
        held: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.aborted = 0
        self.grown_at: float | None = None
        self.archive: dict[Partition, list[InputRecord]] = defaultdict(list)
        self._settings, self._group, self._gauge = settings, group, gauge
        self._config = client_config(settings)
        self._admin = Admin(self._config)
        self._take, self._held = take, held
        self._archived: dict[Partition, int] = {}
        self._numbers = count()

    @property
    def archived(self) -> Mapping[Partition, int]:
        """Up to which offset the records of a partition are in the archive."""
        return self._archived

    def change(
        self, way: str, share: float, seconds: float, wait: Callable[[float], object]
    ) -> tuple[bool, str]:
        """Let something happen; whether it did, and what. ``wait``: lets time pass."""
        inputs = self._gauge.inputs
        try:
            if way == "records deleted":
                return self._delete(share, wait)
            if way == "partition added":
                return self._grow(inputs[int(share * len(inputs))].topic)
            if way == "records compacted":
                with self._held():
                    return self._compact(inputs[int(share * len(inputs))].topic, wait)
            if "expires" in way:
                return self._foreign(_EXPIRING_TIMEOUT_S + _EXPIRED_S, wait, None)
            return self._foreign(seconds if "open" in way else 0.0, wait, "committed" in way)
        except EosError as error:
            return False, str(error)

    def _delete(self, share: float, wait: Callable[[float], object]) -> tuple[bool, str]:
        """A part of what is processed of a partition, from the beginning; all of it now and then."""
        deadline = Deadline(_PROCESSED_S)
        while not (processed := self._processed()):
            if deadline.passed:
                return False, f"nothing more was processed in {_PROCESSED_S:.0f} s"
            wait(_STEP_S)
        number, part = divmod(share * len(processed), 1)
        partition = list(processed)[int(number)]
        start, committed = self._begin(partition), processed[partition]
        until = start + max(1, round((committed - start) * min(1.0, 2 * part)))
        self._archive_until({partition: until})
        delete_records(self._config, {partition: until}, timeout_s=_CALL_S)
        asked = offsets_at(self._settings, Mark.START, [partition], admin=self._admin, timeout_s=_CALL_S)
        now = asked[partition]
        return now == until, f"{partition} begins at {now}, its committed offset was {committed}"

    def _processed(self) -> Mapping[Partition, int]:
        """The committed offsets, of partitions that have processed records which are not in the archive."""
        with fresh_reader(self._settings, self._group, stable=True) as reader:
            stored = committed_offsets(reader, self._gauge.inputs, timeout_s=_CALL_S)
        return {p: one.offset for p, one in sorted(stored.items()) if one.offset > self._begin(p)}

    def _begin(self, partition: Partition) -> int:
        return self._archived.get(partition, 0)

    def _archive_until(self, ends: Mapping[Partition, int]) -> tuple[Mapping[Partition, Range], int]:
        """Keep what stands in front of these offsets; returns from where to where that was, and how many records."""
        ranges = {partition: Range(self._begin(partition), end) for partition, end in ends.items()}
        found: defaultdict[Partition, list[InputRecord]] = defaultdict(list)
        for one in self._read(ranges):
            found[Partition(one.topic, one.partition)].append(one)
        for partition, records in found.items():  # all of them, or none
            self.archive[partition] += records
        self._archived.update(ends)
        return ranges, sum(map(len, found.values()))

    def _read(self, ranges: Mapping[Partition, Range]) -> list[InputRecord]:
        with LogReader(self._settings, self._group, Deadline(_CALL_S)) as records:
            return list(records.records(ranges))

    def _compact(self, topic: str, wait: Callable[[float], object]) -> tuple[bool, str]:
        """All of a topic, which is processed: of each key the last record stays, and none that has no key."""
        partitions = [partition for partition in self._gauge.inputs if partition.topic == topic]
        ends = self._processed_ends(partitions, wait)
        if ends is None:
            return False, f"{topic}: not all of it was processed in {_PROCESSED_S:.0f} s"
        ranges, before = self._archive_until(ends)
        left = before
        try:
            configure_topic(self._config, topic, _SEGMENTS_END, timeout_s=_CALL_S)
            self._append(partitions)
            configure_topic(self._config, topic, _COMPACT, timeout_s=_CALL_S)
            deadline = Deadline(_COMPACTED_S)
            while left == before and not deadline.passed:
                wait(_STEP_S)
                left = len(self._read(ranges))
        finally:
            configure_topic(
                self._config, topic, dict.fromkeys((*_SEGMENTS_END, *_COMPACT)), timeout_s=_CALL_S
            )
        return left < before, f"{topic}: {before - left:,} of {before:,} processed records are gone"

    def _processed_ends(
        self, partitions: Sequence[Partition], wait: Callable[[float], object]
    ) -> Mapping[Partition, int] | None:
        """Where the partitions end, once the group has committed all of them; None if it has not in time."""
        deadline = Deadline(_PROCESSED_S)
        while not deadline.passed:
            ends, lsos = (
                offsets_at(self._settings, mark, partitions, admin=self._admin, timeout_s=_CALL_S)
                for mark in (Mark.HIGH_WATERMARK, Mark.LAST_STABLE)
            )
            if ends == lsos and not self._gauge.unread(partitions):
                return ends
            wait(_STEP_S)
        return None

    def _append(self, partitions: Sequence[Partition]) -> None:
        """New input, a record in each of these partitions if there is so much."""
        topics = {partition.topic for partition in self._gauge.inputs}
        in_turn = iter(partitions)
        records = []
        for one in self._take(len(partitions) * len(topics)):
            mine = next(in_turn, None) if one.topic == partitions[0].topic else None
            records.append(one if mine is None else replace(one, partition=mine.number, timestamp_ms=None))
        produce_plain(self._config, records, timeout_s=_CALL_S)

    def _grow(self, topic: str) -> tuple[bool, str]:
        new = Partition(topic, sum(1 for one in self._gauge.inputs if one.topic == topic))
        add_partitions(self._config, topic, new.number + 1, timeout_s=_CALL_S)
        self._gauge.inputs = [*self._gauge.inputs, new]
        self.grown_at = time.monotonic()
        return True, f"{new}"

    def _foreign(
        self, seconds: float, wait: Callable[[float], object], commit: bool | None
    ) -> tuple[bool, str]:
        """The records of another writer's transaction, in any partitions. None: its writer is gone, and it expires."""
        timeout_s = _EXPIRING_TIMEOUT_S if commit is None else _FOREIGN_TIMEOUT_S
        client = TransactionalClient(
            {
                **self._config,
                "transactional.id": f"foreign-{next(self._numbers)}",
                "transaction.timeout.ms": int(timeout_s * 1000),
                "partitioner": "murmur2_random",
                "sticky.partitioning.linger.ms": 0,
                "log_level": 0,
            },
            transaction_timeout_s=timeout_s,
        )
        records = self._take(_FOREIGN_RECORDS)
        self.aborted += len(records)
        try:
            client.init(_CALL_S)
            client.begin()
            try:
                held_back = self._written(client, records)
                began = time.monotonic()
                wait(seconds)
            except BaseException:
                client.abort(_CALL_S)
                raise
            if commit is not None:
                (client.commit if commit else client.abort)(_CALL_S)
            self.aborted -= len(records) if commit else 0
        finally:
            client.close()
        done = "expired" if commit is None else "committed" if commit else "aborted"
        text = f"{done} after {time.monotonic() - began:.1f} s; at least {counted(held_back, 'partition')} held back"
        return held_back > 0, text

    def _written(self, client: TransactionalClient, records: Sequence[OutputRecord]) -> int:
        """Of how many partitions the last stable offset stands behind then; waits until one does."""
        deadline = Deadline(_CALL_S)
        for one in records:
            client.produce(one.topic, [one.value], [one.key], headers=[list(one.headers)], deadline=deadline)
        while True:
            lsos, ends = (
                offsets_at(self._settings, mark, self._gauge.inputs, admin=self._admin, timeout_s=_CALL_S)
                for mark in (Mark.LAST_STABLE, Mark.HIGH_WATERMARK)
            )
            behind = sum(1 for partition, end in ends.items() if lsos[partition] < end)
            if behind or deadline.passed:
                return behind
