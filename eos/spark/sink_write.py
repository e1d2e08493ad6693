"""The driver's side of writing a streaming batch: its tasks are run, and what they report is held against the ledger."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame

from eos.events import Listener, TransactionCommitted
from eos.offsets import OffsetVector
from eos.spark.failures import from_spark
from eos.spark.ledger import BatchPlan, LedgerChangedError, different_content
from eos.spark.ledger_store import LedgerStore, entries_of
from eos.spark.output import OutputColumns
from eos.spark.sink_rows import sharded
from eos.spark.sink_task import SinkOutcome, SinkResult, SinkTask


@dataclass(frozen=True, slots=True)
class BatchWrite:
    """A batch's rows on their way to Kafka.

    Args:
        store: the ledger.
        frame: the rows.
        columns: makes records of them.
        marks: where the batch's input ends.
        listener: told of each transaction.
    """

    store: LedgerStore
    frame: DataFrame
    columns: OutputColumns
    marks: OffsetVector
    listener: Listener

    def run(self, plan: BatchPlan) -> None:
        """Write what is left of the batch.

        Raises:
            LedgerError: it comes out otherwise than what is written of it; then no more of it is written.
            LedgerChangedError: another driver works under the same name.
            EosError: what a task failed of.
        """
        if plan.done and plan.entries and not plan.unchecked:
            # First without writing: rows of another version must not come beside those that are written.
            _require_same_content(plan, self._results(replace(plan, entries={})))
        results = self._results(plan)
        for result in results:
            if result.outcome is SinkOutcome.WRITTEN:
                self._tell(result, plan)
        refused = [result.message for result in results if result.outcome is SinkOutcome.REFUSED]
        if refused:
            raise LedgerChangedError("; ".join(refused))
        if not plan.unchecked:
            _require_same_content(plan, results)
        # Spark counts the batch as done when this returns, so it is looked at once more, from outside.
        entries = entries_of(self.store.read(range(plan.shards)), self.store)
        if unwritten := [k for k in range(plan.shards) if not plan.after.is_said_by(entries.get(k))]:
            raise LedgerChangedError(
                f"{self.store}: batch {plan.batch} ran, but the ledger does not say so of the shards {unwritten}. Is "
                "another driver at work under this name? Fix: stop one of them"
            )

    def _results(self, plan: BatchPlan) -> list[SinkResult]:
        """What the tasks report, one per shard."""
        task = SinkTask(self.store, plan, self.columns, self.marks)
        tasks = sharded(self.frame, self.columns, plan.shards).mapInArrow(task, SinkResult.SCHEMA)
        try:
            found = tasks.collect()
        except Exception as error:
            raise from_spark(error) from error
        return [SinkResult.of_row(row) for row in found]

    def _tell(self, result: SinkResult, plan: BatchPlan) -> None:
        self.listener(
            TransactionCommitted(
                self.store.shard(result.shard).transactional_id,
                0,  # how many records of the input a shard's rows were made of is not known to who writes them
                result.computed.rows,
                self.store.offsets(plan.after),
                result.seconds,
                result.commit_seconds,
            )
        )


def _require_same_content(plan: BatchPlan, results: Iterable[SinkResult]) -> None:
    differing = {one.shard: (one.written, one.computed) for one in results if one.written != one.computed}
    if differing:
        raise different_content(plan, differing)
