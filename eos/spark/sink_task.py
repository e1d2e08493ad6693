"""The executor side of the streaming sink: one shard's rows of a batch, and its ledger entry, in one transaction."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from eos.errors import FencedError, ReopenError, RetriableError, UsageError
from eos.kafka.consumer import Committed, ConsumerClient
from eos.spark.endmarks import MARKS
from eos.spark.failures import marked
from eos.spark.ledger import BatchPlan, Content, LedgerChangedError, LedgerEntry, LedgerStamp, Tally, Verdict
from eos.spark.ledger_store import LedgerStore
from eos.spark.output import OutputColumns
from eos.spark.twins import twin_wait_s

SHARD, HASH = "eos_shard", "eos_hash"

_ASK_EVERY_S = 0.1


class Outcome(StrEnum):
    """What became of a shard's part of a batch in a task."""

    WRITTEN = "written"
    DONE = "done"  # it was written already, by an earlier run or by a twin
    REFUSED = "refused"  # the ledger is not what was planned with; trying again would not help


@dataclass(frozen=True, slots=True)
class ShardResult:
    """What a task reports to the driver, as one row.

    Args:
        shard: its number.
        outcome: what became of it.
        computed: the rows that came.
        written: what the ledger says was written.
        seconds: from begin to the commit's answer; 0 if nothing was written.
        commit_seconds: of the commit alone.
        message: why it was refused.
    """

    shard: int
    outcome: Outcome
    computed: Content
    written: Content
    seconds: float = 0.0
    commit_seconds: float = 0.0
    message: str = ""

    SCHEMA: ClassVar[str] = (
        "shard int, outcome string, computed_rows bigint, computed_digest string, written_rows bigint, "
        "written_digest string, seconds double, commit_seconds double, message string"
    )

    def as_arrow(self) -> pa.RecordBatch:
        """As a row of `SCHEMA`."""
        row = (
            self.shard,
            str(self.outcome),
            self.computed.rows,
            f"{self.computed.digest:x}",
            self.written.rows,
            f"{self.written.digest:x}",
            self.seconds,
            self.commit_seconds,
            self.message,
        )
        text, number, real = pa.string(), pa.int64(), pa.float64()
        types = (pa.int32(), text, number, text, number, text, real, real, text)
        names = [one.split()[0] for one in self.SCHEMA.split(", ")]
        arrays = [pa.array([value], kind) for value, kind in zip(row, types, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, names=names)

    @classmethod
    def of_row(cls, row: Any) -> ShardResult:
        """From a row of `SCHEMA`."""
        return cls(
            row.shard,
            Outcome(row.outcome),
            Content(row.computed_rows, int(row.computed_digest, 16)),
            Content(row.written_rows, int(row.written_digest, 16)),
            row.seconds,
            row.commit_seconds,
            row.message,
        )


class _Rows:
    """The rows of one shard, counted as they pass; to be iterated once. Iterating ends only behind its end marks.

    The marks also give an empty shard a task that commits its entry: adaptive execution drops the tasks of an empty
    result (measured).

    Raises:
        UsageError: the rows are of more than one shard.
        RetriableError: the input ended before the marks: Spark has ended the task.
    """

    def __init__(self, first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> None:
        self._rest = self._checked(chain([first], others))
        self.shard: int = first.column(SHARD)[0].as_py()
        self.tally = Tally()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self._rest

    def drain(self) -> Content:
        """The content of all rows, of which the rest is read here."""
        for _ in self:
            pass
        return self.tally.content

    def _checked(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        marks = 0
        for batch in batches:
            shards = pc.min_max(batch.column(SHARD)).as_py()
            if {*shards.values()} != {self.shard}:
                raise UsageError(f"one task got rows of shard {shards['max']} beside those of {self.shard}")
            hashes = batch.column(HASH)
            marks += hashes.null_count
            rows = batch.filter(pc.is_valid(hashes)) if hashes.null_count else batch
            if rows.num_rows:
                self.tally.add(rows.num_rows, pc.sum(rows.column(HASH)).as_py())  # it wraps, as a digest may
                yield rows
        if marks < MARKS:
            raise RetriableError(
                f"the input of shard {self.shard} ended before its end marks: Spark has ended the task, or an operator "
                "below has failed"
            )


@dataclass(frozen=True, slots=True)
class SinkTask:
    """What `mapInArrow` applies to a task's rows, which are those of one shard.

    Args:
        store: the ledger.
        plan: what is left to do.
        columns: makes records of rows.
    """

    store: LedgerStore
    plan: BatchPlan
    columns: OutputColumns

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the shard's part of the batch, unless it is written.

        Raises:
            EosError: what kept it from that; Spark tries the task again.
        """
        first = next(batches, None)
        if first is None:  # the marks bring each shard here; a task that was ended has nothing to do
            return
        with marked():
            rows = _Rows(first, batches)
            try:
                result = self._run(rows)
            except LedgerChangedError as error:
                # As a row: as an exception, Spark would try again what no retry can help.
                seen = rows.tally.content
                result = ShardResult(rows.shard, Outcome.REFUSED, seen, seen, message=str(error))
        yield result.as_arrow()

    def _run(self, rows: _Rows) -> ShardResult:
        shard = rows.shard
        if shard in self.plan.done:
            return ShardResult(shard, Outcome.DONE, rows.drain(), self.plan.done[shard])
        with self.store.reader(shard, stable=False) as reader:
            # Asked before the init as well, which would fence a rightful owner: a task may begin long after its plan.
            if written := self._written(shard, self.store.stored(reader)):
                return self._done(rows, written)
            try:
                return self._write(rows, reader)
            except LedgerChangedError:
                raise
            except FencedError as error:
                return self._done(rows, self._wait_for_twin(shard, reader, error))
            except ReopenError as error:
                # An unanswered commit, or a transaction that outlived its timeout: under a new fence it is known. If
                # a twin has written meanwhile, it is left in peace.
                if written := self._written(shard, self.store.stored(reader)):
                    return self._done(rows, written)
                with self.store.owned(shard, self._stamp(rows)) as (_, found):
                    if written := self._written(shard, found):
                        return self._done(rows, written)
                raise type(error)(f"{error}. {self._advice(rows)}", code=error.code) from error

    def _write(self, rows: _Rows, reader: ConsumerClient) -> ShardResult:
        with self.store.owned(rows.shard, self._stamp(rows)) as (producer, found):
            if written := self._written(rows.shard, found):
                return self._done(rows, written)
            with producer.transaction() as txn:
                for batch in rows:
                    for output in self.columns.batches(batch):
                        txn.produce_batch(output.topic, output)
                txn.add_offsets(self.store.offsets(self.plan.after), reader.group_metadata())
        content = rows.tally.content
        return ShardResult(rows.shard, Outcome.WRITTEN, content, content, txn.seconds, txn.commit_seconds)

    def _wait_for_twin(self, shard: int, reader: ConsumerClient, error: FencedError) -> LedgerEntry:
        """Not fighting back: twins would fence each other until Spark gives up."""
        wait_s = twin_wait_s(self.store.settings)
        deadline = time.monotonic() + wait_s
        while not (written := self._written(shard, self.store.stored(reader))):
            if time.monotonic() >= deadline:
                raise FencedError(
                    f"{error}. It has not written batch {self.plan.batch} within {wait_s:g} s",
                    code=error.code,
                ) from error
            time.sleep(_ASK_EVERY_S)
        return written

    def _written(self, shard: int, found: Committed | None) -> LedgerEntry | None:
        """The entry of a shard that is written, None for one that is to be written."""
        entry = None if found is None else LedgerEntry.parse(*found)
        return entry if self.plan.judge(shard, entry) is Verdict.DONE else None

    def _stamp(self, rows: _Rows) -> LedgerStamp:
        return LedgerStamp.of(self.plan.after, str(self.store.shard(rows.shard)), rows.tally)

    def _done(self, rows: _Rows, written: LedgerEntry) -> ShardResult:
        return ShardResult(rows.shard, Outcome.DONE, rows.drain(), written.content)

    def _advice(self, rows: _Rows) -> str:
        settings = self.store.settings
        return (
            f"Shard {rows.shard} had written {rows.tally.content.rows} rows of batch {self.plan.batch}; a transaction "
            f"lives for {settings.transaction.timeout_s:g} s. Fix, if it was too slow for that: smaller batches "
            "(maxOffsetsPerTrigger), or a longer transaction.timeout_ms; more spark.sink_shards from the next batch on"
        )
