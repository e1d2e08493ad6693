"""A micro-batch: its commit record, the run of its tasks, and what is told of it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from eos.errors import EosError, OffsetGapError, TransactionExpiredError
from eos.events import Listener
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition
from eos.spark.analysis.placement import Placement
from eos.spark.session.checkpoint import RunningQuery
from eos.spark.stream.commit_log import CommitLog
from eos.spark.stream.division import DIGEST, BatchRows
from eos.spark.stream.log_driver import CommitLogDriver
from eos.spark.stream.log_entry import Checksum, EntryMetadata, RunningChecksum
from eos.spark.stream.log_rules import BatchPlan, different_content
from eos.spark.stream.marks import logs_of_input
from eos.spark.write.commit_record import ShardRecord
from eos.spark.write.failures import from_spark, input_gone
from eos.spark.write.output import OutputColumns
from eos.spark.write.writer import ShardResult, ShardState, Writing, reports_of, results_of

_log = logging.getLogger("eos.spark")


def write_batch(
    log: CommitLogDriver,
    plan: BatchPlan,
    rows: BatchRows,
    columns: OutputColumns,
    marks: OffsetVector,
    *,
    listener: Listener,
) -> list[ShardResult]:
    """Write what is left of a batch by its plan, and with it the marks: where its input ends. Returns what became of its shards.

    In place a transaction is open while its rows are computed. If one expires, the rows are gathered before they are written.

    Raises:
        LedgerError: it comes out otherwise than what is written of it; then no more of it is written.
        LedgerChangedError: another driver works under the same name.
        OffsetGapError: input was deleted before it was read, or its topic is not the one it was.
        EosError: what a task failed of.
    """

    def run(part: BatchPlan) -> list[ShardResult]:
        divided = rows.divided(part.division)
        record = EntryRecord(log.store, part, marks, computing=divided.shards_by_task is not None)
        writing = Writing(log.store.settings, columns, record, divided.shards_by_task)
        try:
            reports = reports_of(divided.rows, writing)
        except Exception as error:
            raise input_gone(error) or from_spark(error) from error
        results = results_of(reports, record, listener)
        differing = {k: (one.written, one.computed) for k, one in reports if one.written != one.computed}
        if differing and not plan.unchecked:
            raise different_content(plan, differing)
        return results

    if plan.done and plan.entries and not plan.unchecked:
        # First without writing: rows of another version must not come beside those that are written.
        run(replace(plan, entries={}))
    try:
        results = run(plan)
    except TransactionExpiredError as error:
        if rows.gathered or not plan.in_place:
            raise
        _log.warning(
            "batch %d: %s. From now on this sink gathers the rows of an input partition before it writes them",
            plan.batch,
            error,
        )
        rows.gathered = True
        results = run(plan)
    # Spark counts the batch as done when this returns.
    log.require_written(plan)
    return results


# --- its commit record -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EntryRecord:
    """The commit record of a batch: the entries of its shards.

    Args:
        log: where they are.
        plan: what is left to do; a shard that has no entry there is only looked at.
        marks: where the batch's input ends, in which topics and logs.
        computing: whether rows are computed while a transaction is open.
    """

    log: CommitLog
    plan: BatchPlan
    marks: OffsetVector
    computing: bool = False

    def __contains__(self, number: object) -> bool:
        return number in range(self.plan.shards)

    def in_task(self, number: int, task: int) -> _ShardEntry:  # noqa: ARG002 - which task writes it does not matter
        """The record of one shard, in the task that writes it."""
        return _ShardEntry(self, number)


class _ShardEntry(ShardRecord):
    def __init__(self, batch: EntryRecord, number: int) -> None:
        self._log, self._plan, self._marks = batch.log, batch.plan, batch.marks
        self._number = number
        self._name = f"batch {self._plan.batch}, shard {number}"
        self._checksum = RunningChecksum(Checksum(input=self._plan.input))
        self._written = self._plan.done.get(number)
        entry = replace(self._plan.after, marks=0 if number else len(self._marks), on=self._log.topic)
        self.shard = self._log.shard(number)
        self.group = self._log.group_of(number)
        self.partitions = (self._log.partition, *(() if number else self._marks))
        self.metadata = EntryMetadata.of(entry, str(self.shard), self._checksum)
        self.started = self._log.started
        # A transaction that expired is tried again, for a query that ends has to be started by a person; and in another way where
        # it was open while its rows were computed.
        self.for_good = (TransactionExpiredError,) if batch.computing else ()

    def was_done(self) -> bool:
        if self._number not in self._plan.entries:
            return True
        # A task may begin long after its plan.
        return self.is_done(self._log.stored(self._number, stable=False))

    def is_done(self, stored: Mapping[Partition, Committed]) -> bool:
        found = stored.get(self._log.partition)
        entry = None if found is None else self._log.entry(found)
        if found is None and self._plan.entries.get(self._number) is not None:
            raise self._log.gone(self._name)
        if not self._plan.is_done(self._number, entry) or entry is None:
            return False
        self._written = entry.checksum
        return True

    def explained(self, error: OffsetGapError) -> EosError:
        return self._log.lost_with_its_topic(error, self._name)

    @property
    def offsets(self) -> OffsetVector:
        return self._log.offsets(self._plan.after)

    def to_commit(self) -> OffsetVector:
        # All that these rows are made of is read by now. The commit of marks, shard 0's, asks again.
        logs_of_input(self._log.settings).refuse_recreated(self._marks.topic_ids.items())
        return self.offsets if self._number else self.offsets.merged(self._marks)

    def counted(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part in rows:
            digest = pc.sum(part.column(DIGEST)).as_py()  # it wraps, as a digest may
            self._checksum.add(part.num_rows, digest)
            yield part

    def contents(self) -> tuple[str, str]:
        computed = self._checksum.now
        written = self._written or computed
        if not written.input or not computed.input:  # of a sink that does not know its inputs
            computed, written = replace(computed, input=""), replace(written, input="")
        return str(computed), str(written)

    def smaller(self, *, written: int | None, seconds: float) -> str:
        del written, seconds
        shards = (
            "a shuffle by key before the sink, .repartition('key'),"
            if self._plan.in_place
            else "more spark.sink_shards"
        )
        return f"smaller batches (maxOffsetsPerTrigger); {shards} from the next batch on"


# --- what is told of it ----------------------------------------------------------------------------------


class Progress:
    """What `ExactlyOnceSink.lastProgress` says of a batch, in the words of Spark's StreamingQueryProgress."""

    def __init__(self, query: RunningQuery, sink: str, batch: int) -> None:
        self._whose = {"id": query.id, "runId": query.run, "name": sink}
        self._batch = batch
        self._began = datetime.now(UTC)
        self._first = self._last = time.monotonic()
        self._steps_ms: dict[str, int] = {}

    def lap(self, step: str) -> None:
        """The step that ends now."""
        now = time.monotonic()
        self._steps_ms[step] = round((now - self._last) * 1000)
        self._last = now

    def written(
        self,
        ends: Mapping[Partition, int],
        results: Sequence[ShardResult],
        log: CommitLog,
        placement: Placement,
    ) -> dict[str, Any]:
        """The batch is written: where its input ends, what became of its transactions, where they and its entries are."""
        offsets: dict[str, dict[str, int]] = {}
        for partition, end in sorted(ends.items()):
            offsets.setdefault(partition.topic, {})[str(partition.number)] = end
        states = Counter(result.state for result in results)
        transactions = {str(state): states[state] for state in ShardState if state is not ShardState.FAILED}
        records = sum(result.records_out for result in results)
        return {
            **self._whose,
            "timestamp": self._began.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "batchId": self._batch,
            "durationMs": {**self._steps_ms, "triggerExecution": round((self._last - self._first) * 1000)},
            "sources": [
                {"description": f"Kafka[{topic}]", "endOffset": {topic: ends}}
                for topic, ends in offsets.items()
            ],
            "sink": {
                "description": str(log),
                "numOutputRows": records,
                "transactions": transactions,
                "placement": str(placement),
            },
        }
