"""Commit: the executor's side: the rows of a shard and its input offsets in one transaction.

A task begins by init, which fences its twins (a retry, a speculative copy, another driver's task) and ends what
they left open, and only then reads the committed offset: at the range's start it works, at its end somebody has
done the work and it skips, anything else is a conflict. A task that finds itself fenced does not fight back, or
twins would fence each other until Spark gives up: it waits for the committed offset to reach the range's end.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Literal

import pyarrow as pa
from pyspark import TaskContext

from eos.errors import (
    AbortableError,
    ConfigError,
    EosError,
    FencedError,
    RecordRefusedError,
    ReopenError,
    TransactionExpiredError,
    UsageError,
)
from eos.events import Event, ProducerOpened
from eos.group.committed import committed_offsets, fresh_reader
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.group.topic_ids import TopicIds, refuse_recreated
from eos.kafka.consumer import Committed, ConsumerClient, GroupMetadata
from eos.offsets import Partition
from eos.producer.last_commit import Outcome
from eos.producer.producer import ShardProducer
from eos.producer.transaction import Transaction
from eos.settings import Settings
from eos.shards import BatchShard, PartitionShard, Shard
from eos.spark.endmarks import ShardRows
from eos.spark.failures import encoded, marked
from eos.spark.output import OutputColumns
from eos.spark.plan import OffsetRange, ends_of, limit_that_fits
from eos.spark.twins import twin_wait_s

CommitUnit = Literal["partition", "batch"]

WHOLE_INPUT = 0  # the shard number of every row with commit="batch"
REPORT_SCHEMA = "shard INT, state STRING, records LONG, seconds DOUBLE, commit_seconds DOUBLE, open_seconds DOUBLE, failure STRING"
_REPORT = pa.schema(
    [
        ("shard", pa.int32()),
        ("state", pa.string()),
        ("records", pa.int64()),
        ("seconds", pa.float64()),
        ("commit_seconds", pa.float64()),
        ("open_seconds", pa.float64()),
        ("failure", pa.string()),
    ]
)
_TWIN_POLL_S = 0.2
_CALL_S = 5.0


class ShardState(StrEnum):
    """What became of a shard in a run."""

    COMMITTED = "committed"  # this run's task committed its records and offsets
    EMPTY = "empty"  # it had no records; this run's task committed its offsets
    SKIPPED = "skipped"  # a twin, an earlier try or another driver had committed it
    FAILED = "failed"  # for good: another try would fail as well


class _ConflictError(FencedError):
    """The committed offset is neither at the start nor at the end of the range."""


# Spark would only try again what fails in the same way: such a failure is reported, not raised.
_FOR_GOOD = (UsageError, ConfigError, RecordRefusedError, TransactionExpiredError, _ConflictError)


@dataclass(frozen=True, slots=True)
class Writing:
    """The function that writes: what mapInArrow ships to the executors and calls once per task.

    Args:
        settings: how to reach the cluster, the transaction's timeout. Holds secrets.
        app: the first part of the transactional.ids.
        group: whose offsets are committed.
        ranges: by shard number, the input that the shard's rows are made of.
        run: a token that no other run has; letters and digits.
        unit: what one transaction covers.
        columns: the output columns of the rows.
        shards_by_task: the only shard number that each task may see, if that is known.
    """

    settings: Settings
    app: str
    group: str
    ranges: Mapping[int, tuple[OffsetRange, ...]]
    run: str
    unit: CommitUnit
    columns: OutputColumns
    had: Mapping[str, int]
    shards_by_task: tuple[int, ...] | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write every shard of the task, one transaction after another; yields a report of each."""
        _settle_in()
        context = TaskContext.get()
        task = context.partitionId() if context is not None else 0
        shard = -1
        with marked():
            try:
                for shard, rows in ShardRows(batches):
                    self._check_place(shard, task)
                    yield _report(shard, self._writer_of(shard, task).write(rows))
            except _FOR_GOOD as error:
                yield _report(shard, ShardReport(ShardState.FAILED, failure=encoded(error)))

    def _check_place(self, shard: int, task: int) -> None:
        expected = shard if self.shards_by_task is None else self.shards_by_task[task]
        if shard != expected:
            whose = f"the task of shard {expected}"
        elif shard not in self.ranges:
            whose = "this run, which reads no such shard"
        else:
            return
        raise UsageError(
            f"rows of shard {shard} came to {whose}. The transform must carry the column 'shard' through unchanged. "
            "Fix: .select('shard', …)"
        )

    def _writer_of(self, shard: int, task: int) -> ShardWriter:
        ranges = self.ranges[shard]
        unit: PartitionShard | BatchShard
        if self.unit == "batch":
            unit, mode = BatchShard(self.app, self.group), OwnershipMode.BATCH
        else:
            unit, mode = PartitionShard(self.app, self.group, ranges[0].partition), OwnershipMode.PARTITION
        stamp = OffsetMetadata(mode, str(unit), f"{self.run}t{task}")
        return ShardWriter(self.settings, unit, ranges, stamp, self.columns, had=self.had)


@dataclass(frozen=True, slots=True)
class ShardReport:
    """What a task tells the driver of a shard. Times are in seconds."""

    state: ShardState
    records: int = 0
    seconds: float = 0.0  # from begin to the commit's answer
    commit_seconds: float = 0.0
    open_seconds: float = 0.0  # of the init
    failure: str = ""


class ShardWriter:
    """Writes the rows of one shard, at most once.

    Args:
        settings: how to reach the cluster.
        shard: who commits.
        ranges: the input that the rows are made of.
        stamp: what is written with the offsets; its owner is ``<run>t<task>``.
        columns: the output columns of the rows.
        had: what the stamps say of each topic under this name.
    """

    def __init__(
        self,
        settings: Settings,
        shard: PartitionShard | BatchShard,
        ranges: Sequence[OffsetRange],
        stamp: OffsetMetadata,
        columns: OutputColumns,
        *,
        had: Mapping[str, int],
    ) -> None:
        self._had = had
        self._settings = settings
        self._shard: Shard = shard
        self._group = shard.group
        self._starts = {one.partition: one.start for one in ranges}
        self._ends = ends_of(ranges)
        self._stamp = stamp
        self._columns = columns
        self._open_seconds = 0.0

    def write(self, rows: Iterator[pa.RecordBatch]) -> ShardReport:
        """Commit the rows with the offsets, unless that was done already.

        Raises:
            FencedError: another owner has the shard and did not finish in time, or has gone elsewhere.
            TransactionExpiredError: the rows took longer than the transaction may live; says by how much to split.
            UsageError: the rows are not what may be written, or the shard was split over two tasks.
            EosError: another try may succeed.
        """
        try:
            with ShardProducer(
                self._settings,
                self._shard,
                metadata=self._stamp,
                listener=self._hear,
                started_partitions=self._had,
            ) as producer:
                if self._is_done(producer.take_over(self._group, self._ends)):
                    return ShardReport(ShardState.SKIPPED, open_seconds=self._open_seconds)
                return self._transact(producer, rows)
        except _ConflictError:
            raise
        except FencedError as fence:
            self._wait_for_twin(fence)
            return ShardReport(ShardState.SKIPPED, open_seconds=self._open_seconds)

    # --- inside ------------------------------------------------------------------------------------

    def _transact(self, producer: ShardProducer, rows: Iterator[pa.RecordBatch]) -> ShardReport:
        transaction = producer.transaction()
        complete = False
        try:
            with transaction:
                for part in rows:
                    for batch in self._columns.batches(part):
                        transaction.produce_batch(batch.topic, batch)
                complete = True
                transaction.add_offsets(self._ends, _metadata_of(self._settings, self._group))
        except ReopenError as error:
            if producer.reopen() is not Outcome.COMMITTED:
                raise self._redo(error, transaction, complete) from error
        state = ShardState.COMMITTED if transaction.records_out else ShardState.EMPTY
        return ShardReport(
            state,
            transaction.records_out,
            transaction.seconds,
            transaction.commit_seconds,
            self._open_seconds,
        )

    def _is_done(self, stored: Mapping[Partition, Committed]) -> bool:
        """Whether the committed offsets are at the ends; they are at the starts otherwise."""
        if gone := sorted(self._ends.keys() - stored.keys()):
            # The driver has committed one for each partition before the run, also for those that are new to their topic.
            # Kafka forgets it with the topic.
            topics = {partition.topic for partition in gone}
            topic_ids = TopicIds(self._settings).of(topics, within_s=self._settings.open_deadline_s)
            refuse_recreated(self._ends.topic_ids.items(), topic_ids)
            raise _ConflictError(
                f"{gone[0]}: the group {self._group!r} has no offset there any more; it had one when this run was planned. The "
                "group was deleted since. Nothing of this shard was written here. Fix: run again, without a plan "
                "of before"
            )
        self._refuse_foreign(stored)
        found = {p: stored[p].offset for p in self._ends}
        if found == self._starts:
            return False
        if found != dict(self._ends):
            odd = next(p for p in found if found[p] != self._starts[p])
            raise _ConflictError(
                f"{odd}: the group {self._group!r} stands at offset {found[odd]}, and this run's range is "
                f"[{self._starts[odd]}, {self._ends[odd]}): another run has committed in between. What it committed "
                "stands, nothing of this shard was written here. Fix: one run at a time; run again to go on"
            )
        self._refuse_split(stored)
        return True

    def _refuse_foreign(self, stored: Mapping[Partition, Committed]) -> None:
        """Under this task's own fence: the plan left only offsets of this app and mode, and others do not fence us."""
        for partition, committed in stored.items():
            stamp = OffsetMetadata.parse(committed.metadata)
            if stamp is None or not stamp.fits(self._stamp.mode) or stamp.app != self._shard.app:
                by = (
                    "another tool"
                    if stamp is None
                    else f"job {stamp.app!r} with ownership {str(stamp.mode)!r}"
                )
                raise _ConflictError(
                    f"{partition}: after this run was planned, {by} has committed offset {committed.offset} in the group "
                    f"{self._group!r}; this run is of job {self._shard.app!r} with ownership {str(self._stamp.mode)!r}. What "
                    "was committed there stands, nothing of this shard was written here. Fix: one job per group, and one "
                    "commit unit; run again when the other one has ended"
                )

    def _refuse_split(self, stored: Mapping[Partition, Committed]) -> None:
        run, _, _ = self._stamp.owner.partition("t")
        for partition, committed in stored.items():
            stamp = OffsetMetadata.parse(committed.metadata)
            if stamp is not None and stamp.owner != self._stamp.owner and stamp.owner.startswith(f"{run}t"):
                raise UsageError(
                    f"{partition}: two tasks of one run ({stamp.owner} and {self._stamp.owner}) had rows of this "
                    "shard, and the first has committed its part with the offsets. The output of the range is not "
                    "complete. Fix: carry the column 'shard' through unchanged, and report how this came about"
                )

    def _wait_for_twin(self, fence: FencedError) -> None:
        wait_s = twin_wait_s(self._settings)
        deadline = time.monotonic() + wait_s
        # Not stable: the twin's transaction may be pending on the offsets.
        with fresh_reader(self._settings, self._group, stable=False) as reader:
            while not self._is_done(self._stored(reader, deadline)):
                if time.monotonic() >= deadline:
                    raise FencedError(
                        f"{self._shard.transactional_id}: another task has taken the shard over and has not "
                        f"committed in {wait_s:g} s",
                        code=fence.code,
                    ) from fence
                time.sleep(_TWIN_POLL_S)

    def _stored(self, reader: ConsumerClient, deadline: float) -> dict[Partition, Committed]:
        return committed_offsets(reader, self._ends, timeout_s=max(_CALL_S, deadline - time.monotonic()))

    def _redo(self, error: EosError, transaction: Transaction, complete: bool) -> EosError:
        if not isinstance(error, TransactionExpiredError):
            return AbortableError(f"{error} (read back: it was not committed)", code=error.code)
        timeout_s, seconds = self._settings.transaction.timeout_s, max(transaction.seconds, 0.001)
        lengths = [end - self._starts[p] for p, end in self._ends.items()]
        offsets = max(lengths)
        limit = limit_that_fits(
            lengths,
            written=None if complete else transaction.records_out,
            seconds=seconds,
            timeout_s=timeout_s,
        )
        return TransactionExpiredError(
            f"{self._shard}: the transaction was open for {seconds:.0f} s and may live {timeout_s:g} s "
            f"(transaction.timeout_ms); {transaction.records_out} records were produced by then, of up to {offsets} "
            f"offsets per partition. Nothing of it is visible. Fix: spark.max_records_per_partition = {limit} or "
            f"less, or a longer transaction.timeout_ms (at most the broker's transaction.max.timeout.ms)",
            code=error.code,
        )

    def _hear(self, event: Event) -> None:
        if isinstance(event, ProducerOpened):
            self._open_seconds += event.seconds


def _report(shard: int, report: ShardReport) -> pa.RecordBatch:
    row: dict[str, list[Any]] = {
        "shard": [shard],
        "state": [str(report.state)],
        "records": [report.records],
        "seconds": [report.seconds],
        "commit_seconds": [report.commit_seconds],
        "open_seconds": [report.open_seconds],
        "failure": [report.failure],
    }
    return pa.RecordBatch.from_pydict(row, schema=_REPORT)


@lru_cache(maxsize=1)
def _settle_in() -> None:
    """Once per Python worker: PySpark collects garbage after every task, and went through every module each time.

    Measured with 500 tasks that did nothing: 40 ms of each were that.
    """
    gc.collect()
    gc.freeze()


_metadata: dict[str, GroupMetadata] = {}


def _metadata_of(settings: Settings, group: str) -> GroupMetadata:
    """The metadata of no member of a group, which is its name alone: made once per Python worker."""
    if group not in _metadata:
        with fresh_reader(settings, group, stable=False) as nobody:
            _metadata[group] = nobody.group_metadata()
    return _metadata[group]
