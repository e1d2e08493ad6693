"""The executor side of the streaming sink: one shard's rows of a batch, and its ledger entry, in one transaction."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from eos.errors import FencedError, ReopenError, RetriableError, UsageError
from eos.group.topic_ids import TopicIds, refuse_recreated
from eos.kafka.consumer import Committed, ConsumerClient
from eos.offsets import OffsetVector
from eos.spark.endmarks import MARKS
from eos.spark.failures import marked
from eos.spark.ledger import (
    BatchPlan,
    Content,
    LedgerChangedError,
    LedgerEntry,
    LedgerStamp,
    LedgerVerdict,
    Tally,
)
from eos.spark.ledger_store import LedgerStore
from eos.spark.output import OutputColumns
from eos.spark.twins import twin_wait_s

SHARD, HASH, DIGEST = "eos_shard", "eos_hash", "eos_digest"

_ASK_EVERY_S = 0.1


class SinkOutcome(StrEnum):
    """What became of a shard's part of a batch in a task."""

    WRITTEN = "written"
    DONE = "done"  # it was written already, by an earlier run or by a twin
    REFUSED = "refused"  # the ledger is not what was planned with; trying again would not help


@dataclass(frozen=True, slots=True)
class SinkResult:
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
    outcome: SinkOutcome
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
    def of_row(cls, row: Any) -> SinkResult:
        """From a row of `SCHEMA`."""
        return cls(
            row.shard,
            SinkOutcome(row.outcome),
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
        self._of_keys = Tally(Content(of_keys=True))

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self._rest

    def drain(self, like: Content) -> Content:
        """The content of all rows, of which the rest is read here; with a digest of the same kind as the other one's."""
        for _ in self:
            pass
        return self._of_keys.content if like.of_keys else self.tally.content

    def _checked(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        marks = 0
        for batch in batches:
            shards = pc.min_max(batch.column(SHARD)).as_py()
            if {*shards.values()} != {self.shard}:
                raise UsageError(f"one task got rows of shard {shards['max']} beside those of {self.shard}")
            places = batch.column(HASH)
            marks += places.null_count
            rows = batch.filter(pc.is_valid(places)) if places.null_count else batch
            if rows.num_rows:
                for tally, hashes in ((self.tally, DIGEST), (self._of_keys, HASH)):
                    tally.add(rows.num_rows, pc.sum(rows.column(hashes)).as_py())  # it wraps, as a digest may
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
        marks: where the batch's input ends, in which topics and logs.
    """

    store: LedgerStore
    plan: BatchPlan
    columns: OutputColumns
    marks: OffsetVector

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
                result = SinkResult(rows.shard, SinkOutcome.REFUSED, seen, seen, message=str(error))
        yield result.as_arrow()

    def _run(self, rows: _Rows) -> SinkResult:
        shard = rows.shard
        if shard in self.plan.done:
            done = self.plan.done[shard]
            return SinkResult(shard, SinkOutcome.DONE, rows.drain(done), done)
        if shard not in self.plan.entries:  # only what is written is looked at
            seen = rows.drain(Content())
            return SinkResult(shard, SinkOutcome.DONE, seen, seen)
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

    def _write(self, rows: _Rows, reader: ConsumerClient) -> SinkResult:
        with self.store.owned(rows.shard, self._stamp(rows)) as (producer, found):
            if written := self._written(rows.shard, found):
                return self._done(rows, written)
            with producer.transaction() as txn:
                for batch in rows:
                    for output in self.columns.batches(batch):
                        txn.produce_batch(output.topic, output)
                # All of the input is read by now: rows come here through a shuffle. Shard 0 writes the marks, and so asks again.
                self._require_same_topics()
                offsets = self.store.offsets(self.plan.after)
                txn.add_offsets(
                    offsets if rows.shard else offsets.merged(self.marks), reader.group_metadata()
                )
        content = rows.tally.content
        return SinkResult(rows.shard, SinkOutcome.WRITTEN, content, content, txn.seconds, txn.commit_seconds)

    def _require_same_topics(self) -> None:
        if expected := self.marks.topic_ids:
            within_s = self.store.settings.open_deadline_s
            refuse_recreated(
                expected.items(), TopicIds(self.store.settings).of(expected.keys(), within_s=within_s)
            )

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
        entry = None if found is None else LedgerEntry.parse(found.offset, found.metadata)
        return entry if self.plan.judge(shard, entry) is LedgerVerdict.DONE else None

    def _stamp(self, rows: _Rows) -> LedgerStamp:
        entry = self.plan.after if rows.shard else replace(self.plan.after, marks=len(self.marks))
        return LedgerStamp.of(entry, str(self.store.shard(rows.shard)), rows.tally)

    def _done(self, rows: _Rows, written: LedgerEntry) -> SinkResult:
        return SinkResult(rows.shard, SinkOutcome.DONE, rows.drain(written.content), written.content)

    def _advice(self, rows: _Rows) -> str:
        settings = self.store.settings
        return (
            f"Shard {rows.shard} had written {rows.tally.content.rows} rows of batch {self.plan.batch}; a transaction "
            f"lives for {settings.transaction.timeout_s:g} s. Fix, if it was too slow for that: smaller batches "
            "(maxOffsetsPerTrigger), or a longer transaction.timeout_ms; more spark.sink_shards from the next batch on"
        )
