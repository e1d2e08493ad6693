"""Writer: the executor's side: the rows of a shard, and what says that they are written, in one transaction.

A task begins by init, which fences its twins (a retry, a speculative copy, another driver's task) and ends what
they left open, and only then asks whether the shard is done (`eos.spark.done`). A task that finds itself fenced does not
fight back, or twins would fence each other until Spark gives up: it waits until the shard is done.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
from pyspark import TaskContext

from eos.deadline import Deadline
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
from eos.events import Event, ProducerOpened
from eos.group.committed import committed_offsets, fresh_reader
from eos.producer.last_commit import Outcome
from eos.producer.producer import ShardProducer
from eos.producer.transaction import Transaction
from eos.settings import Settings
from eos.spark.done import ConflictError, Done, ShardDone
from eos.spark.endmarks import ShardRows
from eos.spark.failures import WORD, encoded, marked
from eos.spark.output import OutputColumns
from eos.spark.report import ShardReport, ShardState
from eos.spark.shard_offsets import group_metadata

# Spark would only try again what fails in the same way: such a failure is reported, not raised.
_FOR_GOOD = (UsageError, ConfigError, OffsetGapError, RecordRefusedError, ConflictError)
_TWIN_POLL_S = 0.2
_CALL_S = 5.0
# What is left of a first try when Spark has given it up needs less to end, or to commit after all.
_RETRY_WAIT_S = 3.0


@dataclass(frozen=True, slots=True)
class Writing:
    """The function that writes: what mapInArrow ships to the executors and calls once per task.

    Args:
        settings: how to reach the cluster, the transaction's timeout. Holds secrets.
        columns: the output columns of the rows.
        done: what says which shards are done.
        shards_by_task: the only shard number that each task may see, if that is known.
        word: the driver's, for its errors (`eos.spark.failures`).
    """

    settings: Settings
    columns: OutputColumns
    done: Done
    shards_by_task: tuple[int, ...] | None = None
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
                    done = self.done.in_task(shard, task)
                    for_good = _FOR_GOOD + done.for_good
                    yield ShardWriter(self.settings, done, self.columns).write(rows).as_arrow(shard)
            except EosError as error:
                if not isinstance(error, for_good):
                    raise
                yield ShardReport(ShardState.FAILED, failure=encoded(error)).as_arrow(shard)

    def _check_place(self, shard: int, task: int) -> None:
        expected = shard if self.shards_by_task is None else self.shards_by_task[task]
        if shard != expected:
            whose = f"the task of shard {expected}"
        elif shard not in self.done:
            whose = "this run, which reads no such shard"
        else:
            return
        raise UsageError(
            f"rows of shard {shard} came to {whose}. The transform must carry the column 'shard' through unchanged. "
            "Fix: .select('shard', …)"
        )


class ShardWriter:
    """Writes the rows of one shard, at most once.

    Args:
        settings: how to reach the cluster.
        done: what says that it is done.
        columns: the output columns of the rows.
    """

    def __init__(self, settings: Settings, done: ShardDone, columns: OutputColumns) -> None:
        self._settings = settings
        self._done = done
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
        done = self._done
        rows = done.counted(rows)
        try:
            if not done.was_done():
                with ShardProducer(
                    self._settings,
                    done.shard,
                    metadata=done.metadata,
                    listener=self._on_event,
                    started_partitions=done.started,
                ) as producer:
                    if not done.is_done(producer.take_over(done.group, done.partitions)):
                        return self._transact(producer, rows)
        except ConflictError:
            raise
        except FencedError as fence:
            self._wait_for_twin(fence)
        for _ in rows:  # which are counted all the same
            pass
        return self._report(ShardState.SKIPPED)

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
                offsets = self._done.to_commit()
                transaction.add_offsets(offsets, group_metadata(self._settings, self._done.group))
        except ReopenError as error:
            if producer.reopen() is not Outcome.COMMITTED:
                raise self._redo(error, transaction, complete) from error
        state = ShardState.COMMITTED if transaction.records_out else ShardState.EMPTY
        return self._report(state, transaction)

    def _report(self, state: ShardState, transaction: Transaction | None = None) -> ShardReport:
        written = (
            (transaction.records_out, transaction.seconds, transaction.commit_seconds)
            if transaction
            else (0, 0.0, 0.0)
        )
        return ShardReport(state, *written, self._open_seconds, *self._done.contents())

    def _wait_for_twin(self, fence: FencedError) -> None:
        done, wait_s = self._done, twin_wait_s(self._settings)
        deadline = Deadline(wait_s)
        # Not stable: the twin's transaction may be pending on the offsets.
        with fresh_reader(self._settings, done.group, stable=False) as reader:
            while not done.is_done(
                committed_offsets(reader, done.partitions, timeout_s=max(_CALL_S, deadline.left_s))
            ):
                if deadline.passed:
                    raise FencedError(
                        f"{done.shard.transactional_id}: another task has taken the shard over and has not "
                        f"committed in {wait_s:g} s",
                        code=fence.code,
                    ) from fence
                time.sleep(_TWIN_POLL_S)

    def _redo(self, error: EosError, transaction: Transaction, complete: bool) -> EosError:
        if not isinstance(error, TransactionExpiredError):
            return AbortableError(f"{error} (read back: it was not committed)", code=error.code)
        seconds = max(transaction.seconds, 0.001)
        smaller = self._done.smaller(written=None if complete else transaction.records_out, seconds=seconds)
        return TransactionExpiredError(
            f"{self._done.shard}: the transaction was open for {seconds:.0f} s and may live "
            f"{self._settings.transaction.timeout_s:g} s (transaction.timeout_ms); {transaction.records_out} records were "
            f"produced by then. Nothing of it is visible. Fix: {smaller}; or a longer transaction.timeout_ms (at most the "
            "broker's transaction.max.timeout.ms)",
            code=error.code,
        )

    def _on_event(self, event: Event) -> None:
        if isinstance(event, ProducerOpened):
            self._open_seconds += event.seconds


def twin_wait_s(settings: Settings) -> float:
    """Seconds that a fenced task waits for its twin's commit, before it fails and Spark tries it again.

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
