"""Writer: the rows of a shard, and what says that they are written, in one transaction; and what the driver gets to know of it.

A task begins by init, which fences every other attempt (a retry, a speculative copy, another driver's task) and ends what
they left open, and only then asks whether the shard is done (`eos.spark.write.commit_record`). A task that finds itself fenced
does not fight back, or attempts would fence each other until Spark gives up: it waits until the shard is done.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import lru_cache

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from eos.base.deadline import Deadline
from eos.core.ledger import Outcome
from eos.core.producer import ShardProducer
from eos.core.transaction import ShardTransaction, columns_of
from eos.errors import (
    AbortableError,
    ConfigError,
    EosError,
    FencedError,
    OffsetGapError,
    RecordRefusedError,
    ReopenError,
    TransactionExpiredError,
    UsageError,
)
from eos.events import Event, Listener, ProducerOpened, TransactionCommitted
from eos.group.committed import committed_offsets, fresh_reader
from eos.offsets import OffsetVector
from eos.settings import Settings
from eos.spark.write.commit_record import CommitRecord, ConflictError, ShardRecord, group_metadata
from eos.spark.write.endmarks import ShardRows, ShardsByTask
from eos.spark.write.failures import WORD, decoded, encoded, marked
from eos.spark.write.output import OutputColumns

# Spark would only try again what fails in the same way: such a failure is reported, not raised.
_FOR_GOOD = (UsageError, ConfigError, OffsetGapError, RecordRefusedError, ConflictError)
_LOOK_EVERY_S = 0.2
_CALL_S = 5.0
# What is left of a first try when Spark has given it up needs less to end, or to commit after all.
_RETRY_WAIT_S = 3.0
_SCHEMA = (
    "shard INT, state STRING, records LONG, seconds DOUBLE, commit_seconds DOUBLE, open_seconds DOUBLE, "
    "computed STRING, written STRING, failure STRING"
)
_ARROW = {"INT": pa.int32(), "STRING": pa.string(), "LONG": pa.int64(), "DOUBLE": pa.float64()}
_ARROW_SCHEMA = pa.schema([(name, _ARROW[kind]) for name, kind in map(str.split, _SCHEMA.split(", "))])


class ShardState(StrEnum):
    """What became of a shard in a run."""

    COMMITTED = "committed"  # this run's task committed its records and offsets
    EMPTY = "empty"  # it had no records; this run's task committed its offsets
    SKIPPED = "skipped"  # an earlier try or another driver had committed it
    FAILED = "failed"  # for good: another try would fail as well


@dataclass(frozen=True, slots=True)
class ShardReport:
    """What a task returns to the driver for a shard. Times are in seconds."""

    state: ShardState
    records: int = 0
    seconds: float = 0.0  # from begin to the commit's answer
    commit_seconds: float = 0.0
    open_seconds: float = 0.0  # of the init
    computed: str = ""  # what the rows came to
    written: str = ""  # what is written of them
    failure: str = ""

    def as_arrow(self, shard: int) -> pa.RecordBatch:
        """As a row that Spark brings to the driver."""
        row = {"shard": shard, **asdict(self), "state": str(self.state)}
        return pa.RecordBatch.from_pylist([row], schema=_ARROW_SCHEMA)


@dataclass(frozen=True, slots=True)
class Writing:
    """The function that writes: what mapInArrow ships to the executors and calls once per task.

    Args:
        settings: how to reach the cluster, the transaction's timeout. Holds secrets.
        columns: the output columns of the rows.
        record: what says which shards are done.
        shards_by_task: the only shard numbers that each task may see, if they are known.
        word: the driver's, for its errors (`eos.spark.write.failures`).
    """

    settings: Settings
    columns: OutputColumns
    record: CommitRecord
    shards_by_task: ShardsByTask | None = None
    word: str = WORD

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write every shard of the task, one transaction after another; yields a report of each."""
        _settle_in()
        context = TaskContext.get()
        task = context.partitionId() if context is not None else 0
        shard = -1
        for_good: tuple[type[EosError], ...] = _FOR_GOOD
        with marked(self.word):
            try:
                for shard, rows in ShardRows(batches):
                    self._check_place(shard, task)
                    record = self.record.in_task(shard, task)
                    for_good = _FOR_GOOD + record.for_good
                    yield ShardWriter(self.settings, record, self.columns).write(rows).as_arrow(shard)
            except EosError as error:
                if not isinstance(error, for_good):
                    raise
                yield ShardReport(ShardState.FAILED, failure=encoded(error)).as_arrow(shard)

    def _check_place(self, shard: int, task: int) -> None:
        expected = (shard,) if self.shards_by_task is None else self.shards_by_task[task]
        if shard not in expected:
            whose = f"the task of shard {expected[0]}"
        elif shard not in self.record:
            whose = "this run, which reads no such shard"
        else:
            return
        raise UsageError(
            f"rows of shard {shard} came to {whose}. The transform must carry the column 'shard' through unchanged. "
            "Fix: .select('shard', …)"
        )


class ShardWriter:
    """Writes the rows of one shard, at most once."""

    def __init__(self, settings: Settings, record: ShardRecord, columns: OutputColumns) -> None:
        self._settings = settings
        self._record = record
        self._columns = columns
        self._open_seconds = 0.0

    def write(self, rows: Iterator[pa.RecordBatch]) -> ShardReport:
        """Commit the rows, unless that was done already.

        Raises:
            ConflictError: another owner has gone elsewhere.
            FencedError: another owner has the shard and did not finish in time.
            TransactionExpiredError: the rows took longer than the transaction may live; says how to have fewer.
            UsageError: the rows are not what may be written, or the shard was split over two tasks.
            EosError: another try may succeed.
        """
        record = self._record
        rows = record.counted(rows)
        try:
            if not record.was_done():
                with ShardProducer(
                    self._settings,
                    record.shard,
                    metadata=record.metadata,
                    listener=self._on_event,
                    started_partitions=record.started,
                ) as producer:
                    if not record.is_done(producer.take_over(record.group, record.partitions)):
                        return self._transact(producer, rows)
        except ConflictError:
            raise
        except FencedError as fence:
            self._wait_for_other_attempt(fence)
        for _ in rows:  # which are counted all the same
            pass
        return self._report(ShardState.SKIPPED)

    # --- inside ------------------------------------------------------------------------------------

    def _transact(self, producer: ShardProducer, rows: Iterator[pa.RecordBatch]) -> ShardReport:
        try:
            return self._transacted(producer, rows)
        except OffsetGapError as error:
            raise self._record.explained(error) from error

    def _transacted(self, producer: ShardProducer, rows: Iterator[pa.RecordBatch]) -> ShardReport:
        transaction = producer.new_transaction()
        complete = False
        try:
            with transaction:
                for part in rows:
                    for batch in self._columns.batches(part):
                        transaction.fill([columns_of(batch)])
                complete = True
                offsets = self._record.to_commit()
                transaction.add_offsets(offsets, group_metadata(self._settings, self._record.group))
        except ReopenError as error:
            if producer.reopen() is not Outcome.COMMITTED:
                raise self._redo(error, transaction, complete) from error
        state = ShardState.COMMITTED if transaction.records_out else ShardState.EMPTY
        return self._report(state, transaction)

    def _report(self, state: ShardState, transaction: ShardTransaction | None = None) -> ShardReport:
        written = (
            (transaction.records_out, transaction.seconds, transaction.commit_seconds)
            if transaction
            else (0, 0.0, 0.0)
        )
        return ShardReport(state, *written, self._open_seconds, *self._record.contents())

    def _wait_for_other_attempt(self, fence: FencedError) -> None:
        record, wait_s = self._record, _wait_s(self._settings)
        deadline = Deadline(wait_s)
        # Not stable: the other attempt's transaction may be pending on the offsets.
        with fresh_reader(self._settings, record.group, stable=False) as reader:
            while not record.is_done(
                committed_offsets(reader, record.partitions, timeout_s=max(_CALL_S, deadline.left_s))
            ):
                if deadline.passed:
                    raise FencedError(
                        f"{record.shard.transactional_id}: another task has taken the shard over and has not "
                        f"committed in {wait_s:g} s",
                        code=fence.code,
                    ) from fence
                time.sleep(_LOOK_EVERY_S)

    def _redo(self, error: EosError, transaction: ShardTransaction, complete: bool) -> EosError:
        if not any(isinstance(one, TransactionExpiredError) for one in (error, error.__cause__)):
            return AbortableError(f"{error} (read back: it was not committed)", code=error.code)
        seconds = max(transaction.seconds, 0.001)
        smaller = self._record.smaller(written=None if complete else transaction.records_out, seconds=seconds)
        return TransactionExpiredError(
            f"{self._record.shard}: the transaction was open for {seconds:.0f} s and may live "
            f"{self._settings.transaction.timeout_s:g} s (transaction.timeout_ms); {transaction.records_out} records were "
            f"produced by then. Nothing of it is visible. Fix: {smaller}; or a longer transaction.timeout_ms (at most the "
            "broker's transaction.max.timeout.ms)",
            code=error.code,
        )

    def _on_event(self, event: Event) -> None:
        if isinstance(event, ProducerOpened):
            self._open_seconds += event.seconds


def _wait_s(settings: Settings) -> float:
    """Seconds that a fenced task waits for the commit of the attempt that fenced it, before it fails and Spark tries it again.

    A first try was fenced by an owner that is at work: its speculative copy, or another driver. A retry was most
    likely fenced by the try before: Spark starts the one the moment the other has failed, while that one's Python
    worker knows nothing of it yet, and its init may come last (seen in 3 of 20 runs). Nothing will come from there,
    and a third try fences it for good.
    """
    context = TaskContext.get()
    if context is None or context.attemptNumber() == 0:
        return settings.twin_wait_s
    return min(settings.twin_wait_s, _RETRY_WAIT_S)


@lru_cache(maxsize=1)
def _settle_in() -> None:
    """Once per Python worker: PySpark collects garbage after every task, and went through every module each time.

    Measured with 500 tasks that did nothing: 40 ms of each were that.
    """
    gc.collect()
    gc.freeze()


# --- on the driver ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShardResult:
    """What became of one transaction of a run. Times are in seconds.

    ``state`` is SKIPPED where an earlier try of the task, or another driver, had committed it: its records were
    written then, and ``records_out`` is 0.
    """

    shard: str
    state: ShardState
    offsets: OffsetVector
    records_out: int
    seconds: float
    commit_seconds: float


Reports = Sequence[tuple[int, ShardReport]]  # by shard number


def reports_of(rows: DataFrame, writing: Writing) -> Reports:
    """Run the tasks; what they report. The rows of each shard are in one task, and behind them its end marks."""
    found = rows.mapInArrow(lambda batches: writing(batches), _SCHEMA).collect()  # noqa: PLW0108 - Spark asks for a function
    reports = [row.asDict() for row in sorted(found, key=lambda row: row.shard)]
    return [(one.pop("shard"), ShardReport(**one | {"state": ShardState(one["state"])})) for one in reports]


def results_of(reports: Reports, record: CommitRecord, listener: Listener) -> list[ShardResult]:
    """What became of the shards; the listener is called with each commit.

    Raises:
        EosError: what a task failed for; the other tasks have ended by then.
    """
    results: list[ShardResult] = []
    failures = [one.failure for _, one in reports if one.state is ShardState.FAILED]
    for number, one in reports:
        if one.state is ShardState.FAILED:
            continue
        mine = record.in_task(number, 0)
        shard, offsets = mine.shard.transactional_id, mine.offsets
        results.append(ShardResult(shard, one.state, offsets, one.records, one.seconds, one.commit_seconds))
        if one.state is not ShardState.SKIPPED:
            # How many rows a shard's records were made of is not known to their writer.
            listener(TransactionCommitted(shard, 0, one.records, offsets, one.seconds, one.commit_seconds))
    if failures:
        error = decoded(failures[0])
        error.add_note(f"{len(results)} of the shards are committed; the next run goes on behind them")
        raise error
    return results
