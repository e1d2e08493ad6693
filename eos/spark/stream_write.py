"""The driver's side of writing a streaming batch: its tasks are run, and what they report is held against the ledger."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame

from eos.events import Listener
from eos.offsets import OffsetVector
from eos.spark.done_entry import DoneEntries
from eos.spark.failures import from_spark, input_gone
from eos.spark.ledger import BatchPlan, different_content
from eos.spark.ledger_driver import LedgerDriver
from eos.spark.output import OutputColumns
from eos.spark.report import ShardResult, reports_of, results_of
from eos.spark.stream_rows import sharded
from eos.spark.writer import Writing


def write_batch(
    ledger: LedgerDriver,
    plan: BatchPlan,
    frame: DataFrame,
    columns: OutputColumns,
    marks: OffsetVector,
    *,
    listener: Listener,
) -> list[ShardResult]:
    """Write what is left of a batch by its plan, and with it the marks: where its input ends.

    Returns:
        What became of its shards.

    Raises:
        LedgerError: it comes out otherwise than what is written of it; then no more of it is written.
        LedgerChangedError: another driver works under the same name.
        OffsetGapError: input was deleted before it was read, or its topic is not the one it was.
        EosError: what a task failed of.
    """
    rows = sharded(frame, columns, plan.shards)

    def run(part: BatchPlan) -> list[ShardResult]:
        done = DoneEntries(ledger.store, part, marks)
        try:
            reports = reports_of(rows, Writing(ledger.store.settings, columns, done))
        except Exception as error:
            raise input_gone(error) or from_spark(error) from error
        results = results_of(reports, done, listener)
        differing = {
            number: (one.written, one.computed) for number, one in reports if one.written != one.computed
        }
        if differing and not plan.unchecked:
            raise different_content(plan, differing)
        return results

    if plan.done and plan.entries and not plan.unchecked:
        # First without writing: rows of another version must not come beside those that are written.
        run(replace(plan, entries={}))
    results = run(plan)
    # Spark counts the batch as done when this returns.
    ledger.require_written(plan)
    return results
