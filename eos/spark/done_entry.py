"""A stream's record of what is done: a shard's entry in the ledger, and shard 0's marks of the input beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition
from eos.shards import SinkShard
from eos.spark.done import ShardDone
from eos.spark.input_logs import InputLogs
from eos.spark.ledger import BatchPlan, LedgerError
from eos.spark.ledger_entry import Content, EntryMetadata, LedgerEntry, Tally
from eos.spark.ledger_store import LedgerStore
from eos.spark.stream_rows import DIGEST, HASH


@dataclass(frozen=True, slots=True)
class DoneEntries:
    """The entries of a batch's shards.

    Args:
        store: the ledger.
        plan: what is left to do; a shard that has no entry there is only looked at.
        marks: where the batch's input ends, in which topics and logs.
    """

    store: LedgerStore
    plan: BatchPlan
    marks: OffsetVector

    def __contains__(self, number: object) -> bool:
        return number in range(self.plan.shards)

    def shard(self, number: int) -> SinkShard:
        """Who commits."""
        return self.store.shard(number)

    def offsets(self, number: int) -> OffsetVector:
        """What is committed when the shard is done."""
        del number
        return self.store.offsets(self.plan.after)

    def in_task(self, number: int, task: int) -> _DoneShard:
        """The record of one shard; which task writes it does not matter."""
        del task
        return _DoneShard(self, number)


class _DoneShard(ShardDone):
    # A transaction that expired is tried again: a query that ends has to be started by a person.

    def __init__(self, done: DoneEntries, number: int) -> None:
        self._done = done
        self._number = number
        self._tally = Tally(Content(input=done.plan.input))
        self._of_keys = Tally(Content(of_keys=True))
        self._written = done.plan.done.get(number)
        store, entry = done.store, done.plan.after
        if number == 0:
            entry = replace(entry, marks=len(done.marks))
        self.shard = done.shard(number)
        self.group = store.group_of(number)
        self.partitions = (store.partition, *(() if number else done.marks))
        self.metadata = EntryMetadata.of(entry, str(self.shard), self._tally)
        self.started = store.started

    def was_done(self) -> bool:
        if self._number not in self._done.plan.entries:
            return True
        store = self._done.store
        with store.reader(self._number, stable=False) as reader:  # a task may begin long after its plan
            return self.is_done(store.stored(reader))

    def is_done(self, stored: Mapping[Partition, Committed]) -> bool:
        found = stored.get(self._done.store.partition)
        entry = None if found is None else LedgerEntry.parse(found.offset, found.metadata)
        if found is None and self._done.plan.entries.get(self._number) is not None:
            raise LedgerError(
                f"batch {self._done.plan.batch}, shard {self._number}: its ledger is gone, which was there when the batch was planned. "
                f"Kafka drops it together with its topic, so {self._done.store.topic} was deleted (and created anew) meanwhile, or "
                "somebody has deleted the group. Nothing of this shard is written. Fix: start again; the refusal says what to adopt"
            )
        if not self._done.plan.is_done(self._number, entry) or entry is None:
            return False
        self._written = entry.content
        return True

    def to_commit(self) -> OffsetVector:
        # All of the input is read by now: rows come here through a shuffle. The commit of marks, shard 0's, asks again.
        InputLogs(self._done.store.settings).refuse_recreated(self._done.marks.topic_ids.items())
        entry = self._done.offsets(self._number)
        return entry if self._number else entry.merged(self._done.marks)

    def counted(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part in rows:
            for tally, hashes in ((self._tally, DIGEST), (self._of_keys, HASH)):
                tally.add(part.num_rows, pc.sum(part.column(hashes)).as_py())  # it wraps, as a digest may
            yield part

    def contents(self) -> tuple[str, str]:
        of_keys = self._written is not None and self._written.of_keys  # of an earlier version
        computed = (self._of_keys if of_keys else self._tally).content
        written = self._written or computed
        if (
            not written.input or not computed.input
        ):  # of an earlier version, or a sink that does not know its inputs
            computed, written = replace(computed, input=""), replace(written, input="")
        return str(computed), str(written)

    def smaller(self, *, written: int | None, seconds: float) -> str:
        del written, seconds
        return "smaller batches (maxOffsetsPerTrigger); more spark.sink_shards from the next batch on"
