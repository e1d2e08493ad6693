"""Reading a cluster from outside: a group's committed offsets, where logs end, and the records in them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeVar

from eos import retry
from eos.base.calls import Call
from eos.base.commands import suggested
from eos.base.deadline import Deadline
from eos.base.listing import listed
from eos.errors import UnavailableError
from eos.kafka.admin import Admin, Mark, TopicShape
from eos.kafka.consumer import lone_reader
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition, next_offset
from eos.records import InputBatch, InputRecord
from eos.settings import Settings

T = TypeVar("T")
OnRead = Callable[[int, int], None]  # offsets read, of how many
OnWait = Callable[[Mapping[Partition, int], Mapping[Partition, int]], None]  # LSOs, high watermarks

_BATCH_RECORDS = 10_000
_POLL_S = 0.5
_SETTLE_STEP_S = 0.1
_MOMENTS_S = 3.0  # a job at work ends a transaction in less
_CALL_SLICE_S = 5.0
_PREFETCH_KIB = 16_384  # of librdkafka's queue, so that memory stays bounded with records of any size
_FETCH_WAIT_MS = 20  # an empty fetch shows the end of a log; brokers wait 500 ms with it by default
_SHOWN_EVERY_S = 0.5
_NAMED = 5  # partitions in an error text
_OPTIONS: Mapping[str, Any] = {
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "fetch.queue.backoff.ms": 2,  # the default lets a reader that catches up idle most of the time
    "fetch.wait.max.ms": _FETCH_WAIT_MS,
    "queued.max.messages.kbytes": _PREFETCH_KIB,
}


class Range(NamedTuple):
    """The offsets ``[start, end)`` of a partition."""

    start: int
    end: int


class LogReader:
    """An admin client, and a read_committed consumer that never joins the group and never commits.

    Use it as a context manager. The deadline bounds every call. With ``committed=False`` it reads all records.

    Raises (every method):
        UnavailableError: the deadline passed; the message says what was waited for.
        ConfigError: a topic does not exist, or access was refused.
    """

    def __init__(self, settings: Settings, group: str, deadline: Deadline, *, committed: bool = True) -> None:
        self._deadline = deadline
        self._admin = Admin.of(settings)
        self._consumer = lone_reader(settings, group, stable=committed, options=_OPTIONS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def partitions(self, topics: Iterable[str]) -> list[Partition]:
        """Every partition of these topics."""
        wanted = sorted(topics)
        return self._call(Call.METADATA, lambda left: self._consumer.partitions_of(wanted, left))

    def shapes(self, topics: Iterable[str]) -> dict[str, TopicShape]:
        """Partitions, replicas and ids of these topics."""
        return self._call(Call.METADATA, lambda left: self._admin.topics(topics, left))

    def configs(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """The configuration of those of these topics that may be seen (ACL DescribeConfigs)."""
        return self._call(Call.METADATA, lambda left: self._admin.topic_configs(topics, left))

    def committed(self, partitions: Sequence[Partition]) -> dict[Partition, Committed]:
        """The group's stable committed offsets; partitions without one are left out."""
        return self._call(Call.COMMITTED, lambda left: self._consumer.committed(partitions, left))

    def offsets_at(self, mark: Mark, partitions: Sequence[Partition]) -> OffsetVector:
        """Where a mark stands in the logs of these partitions."""
        return self._call(Call.METADATA, lambda left: self._admin.offsets_at(mark, partitions, left))

    def settled(
        self, partitions: Sequence[Partition], on_wait: OnWait = lambda _lsos, _ends: None
    ) -> dict[Partition, Range]:
        """From the first offset in each log to its high watermark of now, once the LSO has reached it.

        Args:
            partitions: whose logs.
            on_wait: called once with the LSOs and high watermarks of what it waits for, if that takes more than moments.

        Raises:
            UnavailableError: a transaction stays open until the deadline; the message names the partitions.
        """
        # High watermark first: an LSO read afterwards that has reached it proves that nothing below it is open.
        ends = self.offsets_at(Mark.HIGH_WATERMARK, partitions)
        starts = self.offsets_at(Mark.START, partitions)
        held_back: dict[Partition, int] = {}
        pending: Sequence[Partition] = partitions
        moments: Deadline | None = Deadline(_MOMENTS_S)
        while pending:
            try:
                lsos = self.offsets_at(Mark.LAST_STABLE, pending)
            except UnavailableError as error:  # the deadline passed while asking once more
                raise _unsettled(held_back, ends) if held_back else error from None
            held_back = {partition: lso for partition, lso in lsos.items() if lso < ends[partition]}
            pending = list(held_back)
            if pending and self._deadline.passed:
                raise _unsettled(held_back, ends)
            if pending and moments is not None and moments.passed:
                moments = None
                on_wait(held_back, ends)
            time.sleep(_SETTLE_STEP_S if pending else 0)
        return {partition: Range(starts[partition], ends[partition]) for partition in partitions}

    def records(
        self,
        ranges: Mapping[Partition, Range],
        on_read: OnRead = lambda _read, _of: None,
        *,
        first_only: bool = False,
    ) -> Iterator[InputRecord]:
        """The read_committed records of these ranges, or the first of each; each partition in offset order.

        No range goes beyond the LSO.
        """
        unread = {partition: one for partition, one in ranges.items() if one.start < one.end}
        reached = {partition: one.start for partition, one in unread.items()}
        begun, total = sum(reached.values()), sum(one.end - one.start for one in unread.values())
        on_read(0, total)
        shown = Deadline(_SHOWN_EVERY_S)
        self._consumer.incremental_assign(OffsetVector(reached))
        while unread:
            if self._deadline.passed:
                raise UnavailableError(f"not read to the end before the deadline: {listed(unread, _NAMED)}")
            fetched = self._consumer.consume(_BATCH_RECORDS, _POLL_S)
            batch = InputBatch(fetched.messages)
            places = map(Partition, batch.topics, batch.partitions)
            for record, partition, offset in zip(batch, places, batch.offsets, strict=True):
                end = ranges[partition].end
                if reached[partition] < end and offset < end:
                    yield record
                    if shown.passed:
                        on_read(sum(reached.values()) - begun, total)
                        shown = Deadline(_SHOWN_EVERY_S)
                    reached[partition] = end if first_only else next_offset(offset)
                else:
                    reached[partition] = end
            # No record, but this event, passes control records at the end. A new leader's high watermark may be behind for a moment: then it
            # comes early, and again.
            for partition, at in self._consumer.positions(fetched.ends).items():
                if at >= ranges[partition].end:
                    reached[partition] = ranges[partition].end
            done = [partition for partition, one in unread.items() if reached[partition] >= one.end]
            for partition in done:
                del unread[partition]
            if done:
                self._consumer.incremental_unassign(done)
            on_read(sum(reached.values()) - begun, total)

    def _call(self, call: Call, function: Callable[[float], T]) -> T:
        return retry.resume(call, function, deadline=self._deadline, slice_s=_CALL_SLICE_S)


def _unsettled(lsos: Mapping[Partition, int], ends: Mapping[Partition, int]) -> UnavailableError:
    return UnavailableError(
        "the output is not settled: "
        + listed((f"{p} (LSO {lso}, high watermark {ends[p]})" for p, lso in lsos.items()), _NAMED)
        + ". A transaction is open there: its producer is at work, or it died and the coordinator ends the "
        "transaction after transaction.timeout.ms. One that outlives that hangs: see docs/operations/lso.md, 'The LSO is stuck'. "
        f"Which one it is: {suggested('transactions list', '--open')}"
    )
