"""Reading a log to a settled end with raw clients: which offsets are committed, where logs end, what is in them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from eos import retry
from eos.calls import Call
from eos.errors import UnavailableError
from eos.kafka.consumer import ConsumerClient
from eos.offsets import OffsetVector, Partition, next_offset
from eos.records import InputBatch, InputRecord
from eos.settings import Settings

T = TypeVar("T")

_BATCH_RECORDS = 10_000
_POLL_S = 0.5
_SETTLE_STEP_S = 0.1
_CALL_SLICE_S = 5.0
_PREFETCH_KIB = 16_384  # of librdkafka's queue, so that memory stays bounded whatever the size of the records
_FETCH_WAIT_MS = 20  # the end of a log is told by an empty fetch, for which brokers wait 500 ms by default
_NAMED = 5  # partitions in an error text


class Range(NamedTuple):
    """The offsets ``[start, end)`` of a partition."""

    start: int
    end: int


class LogReader:
    """Two raw consumers that never join the group and never commit; use it as a context manager.

    Args:
        settings: where the cluster is.
        group: the group whose committed offsets are read.
        deadline: a time.monotonic() value that bounds every call.

    Raises (every method):
        UnavailableError: the deadline passed; the message says what was waited for.
        ConfigError: a topic does not exist, or access was refused.
    """

    def __init__(self, settings: Settings, group: str, deadline: float) -> None:
        self._deadline = deadline
        options: dict[str, Any] = {
            **settings.client_config(),
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 2,  # the default lets a reader that catches up idle most of the time
            "fetch.wait.max.ms": _FETCH_WAIT_MS,
            "queued.max.messages.kbytes": _PREFETCH_KIB,
            "log_level": 0,  # as in eos.kafka.admin: what goes wrong is raised
        }
        self._committed = ConsumerClient({**options, "isolation.level": "read_committed"})
        self._everything = ConsumerClient({**options, "isolation.level": "read_uncommitted"})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._committed.close()
        self._everything.close()

    def partitions(self, topics: Iterable[str]) -> list[Partition]:
        """Every partition of these topics."""
        wanted = sorted(topics)
        return self._call(Call.METADATA, lambda left: self._committed.partitions_of(wanted, left))

    def committed_offsets(self, partitions: Sequence[Partition]) -> OffsetVector:
        """The group's stable committed offsets; partitions without one are left out."""
        stored = self._call(Call.COMMITTED, lambda left: self._committed.committed(partitions, left))
        return OffsetVector({partition: committed.offset for partition, committed in stored.items()})

    def stable_range(self, partition: Partition) -> Range:
        """From the first offset in the log to the LSO."""
        return Range(
            *self._call(Call.METADATA, lambda left: self._committed.stable_watermarks(partition, left))
        )

    def settled_ranges(self, partitions: Sequence[Partition]) -> dict[Partition, Range]:
        """From the first offset in each log to its high watermark of now, once the LSO has reached it.

        Raises:
            UnavailableError: a transaction stays open until the deadline; the message names the partitions.
        """
        # High watermark first: an LSO read afterwards that has reached it proves that nothing below it is open.
        wanted = {partition: self._range_of_everything(partition) for partition in partitions}
        held_back: dict[Partition, int] = {}
        pending = list(wanted)
        while pending:
            try:
                lsos = {partition: self.stable_range(partition).end for partition in pending}
            except UnavailableError as error:  # the deadline passed while asking once more
                raise _unsettled(held_back, wanted) if held_back else error from None
            held_back = {partition: lso for partition, lso in lsos.items() if lso < wanted[partition].end}
            pending = list(held_back)
            if pending and time.monotonic() >= self._deadline:
                raise _unsettled(held_back, wanted)
            time.sleep(_SETTLE_STEP_S if pending else 0)
        return wanted

    def records(
        self, ranges: Mapping[Partition, Range], progress: Callable[[int, int], None]
    ) -> Iterator[InputRecord]:
        """The read_committed records of these ranges, each partition in offset order.

        Args:
            ranges: none of them beyond the LSO.
            progress: told how many offsets were passed, of how many.
        """
        reached = {partition: wanted.start for partition, wanted in ranges.items()}
        unread = {partition: wanted for partition, wanted in ranges.items() if wanted.start < wanted.end}
        total = sum(wanted.end - wanted.start for wanted in unread.values())
        begun = sum(reached.values())
        self._committed.incremental_assign({partition: wanted.start for partition, wanted in unread.items()})
        while unread:
            if time.monotonic() >= self._deadline:
                raise UnavailableError(f"not read to the end before the deadline: {_named(map(str, unread))}")
            fetched = self._committed.consume(_BATCH_RECORDS, _POLL_S)
            for record in InputBatch(fetched.messages):
                partition = Partition(record.topic, record.partition)
                wanted = ranges[partition]
                if record.offset < wanted.end:
                    yield record
                    reached[partition] = next_offset(record.offset)
                else:
                    reached[partition] = wanted.end
            for partition in fetched.ends:  # control records at the end are only passed by this event
                reached[partition] = ranges[partition].end
            done = [partition for partition, wanted in unread.items() if reached[partition] >= wanted.end]
            for partition in done:
                del unread[partition]
            if done:
                self._committed.incremental_unassign(done)
            progress(sum(reached.values()) - begun, total)

    def _range_of_everything(self, partition: Partition) -> Range:
        return Range(
            *self._call(Call.METADATA, lambda left: self._everything.stable_watermarks(partition, left))
        )

    def _call(self, call: Call, function: Callable[[float], T]) -> T:
        return retry.resume(call, function, deadline=self._deadline, slice_s=_CALL_SLICE_S)


def _unsettled(lsos: Mapping[Partition, int], wanted: Mapping[Partition, Range]) -> UnavailableError:
    return UnavailableError(
        "the output is not settled: "
        + _named(f"{p} (LSO {lso}, high watermark {wanted[p].end})" for p, lso in lsos.items())
        + ". A transaction is open there: its producer is at work, or it died and the coordinator ends the "
        "transaction after transaction.timeout.ms. One that outlives that hangs: see docs/RUNBOOK.md, 'The LSO is stuck'"
    )


def _named(partitions: Iterable[str]) -> str:
    names = list(partitions)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
