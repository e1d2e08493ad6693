"""The ledger in Kafka: read entries, and write one under its shard's fence.

Access rules that it needs beside those of the outputs: Read on groups with the prefix ``<group>.ledger.``, and Read on
the topic that the entries stand on (TxnOffsetCommit asks for it).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import cast

from eos.errors import ConfigError
from eos.events import Listener, ignore_event
from eos.group.committed import committed_offsets, fresh_reader, partitions_of
from eos.kafka.consumer import Committed, ConsumerClient
from eos.offsets import OffsetVector, Partition
from eos.producer.producer import ShardProducer
from eos.settings import Settings
from eos.shards import SinkShard, ledger_group, shard_prefix
from eos.spark.ledger import (
    BatchPlan,
    LedgerChangedError,
    LedgerEntry,
    LedgerStamp,
)

AT_ONCE = 8  # each needs a client with threads of its own


@dataclass(frozen=True, slots=True)
class LedgerStore:
    """Where a sink's ledger is. Immutable and picklable.

    Args:
        settings: how to reach the cluster.
        app: the sink's name.
        group: the sink's group.
        topic: on whose partition 0 the entries stand, as offsets. It need not have so many records: Kafka takes any
            offset of a partition that exists (measured), and only of such.
        inputs: the topics whose partitions have marks (`eos.spark.stream_input`), in the group of shard 0.
    """

    settings: Settings
    app: str
    group: str
    topic: str
    inputs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"ledger {ledger_group(self.group, 0)}, … on {self.partition}"

    @property
    def partition(self) -> Partition:
        """What the entries are offsets of."""
        return Partition(self.topic, 0)

    def places(self, topics: Iterable[str]) -> dict[str, LedgerEntry]:
        """On which of these topics an entry of shard 0 stands; on one, as a rule.

        Raises:
            UnavailableError: no answer, or a transaction stayed pending.
        """
        partitions = [Partition(topic, self.partition.number) for topic in topics]
        with self.reader(0, stable=True) as reader:
            stored = committed_offsets(reader, partitions, timeout_s=self.settings.open_deadline_s)
        found = {p.topic: LedgerEntry.parse(one.offset, one.metadata) for p, one in stored.items()}
        return {topic: entry for topic, entry in found.items() if entry is not None}

    def marks(self, partitions: Iterable[Partition] | None = None) -> dict[Partition, Committed]:
        """The marks that are stored, of these partitions or of all of the inputs'.

        Raises:
            ConfigError: an input topic does not exist.
            UnavailableError: no answer, or a transaction stayed pending.
        """
        within_s = self.settings.open_deadline_s
        with self.reader(0, stable=True) as reader:
            wanted = (
                partitions_of(reader, self.inputs, timeout_s=within_s) if partitions is None else partitions
            )
            return committed_offsets(reader, wanted, timeout_s=within_s)

    def shard(self, number: int) -> SinkShard:
        """The unit of ownership of an output shard."""
        return SinkShard(self.app, self.group, number)

    @property
    def prefix(self) -> str:
        """How the transactional.ids of all shards begin."""
        return shard_prefix(self.app, self.group)

    def read(self, shards: Iterable[int]) -> dict[int, Committed]:
        """What these shards' groups have stored; shards without an entry are left out.

        Waits for transactions that are pending on it, which is up to their timeout.

        Raises:
            UnavailableError: no answer, or a transaction stayed pending.
        """
        wanted = list(shards)
        with ThreadPoolExecutor(min(AT_ONCE, max(1, len(wanted)))) as pool:
            found = dict(zip(wanted, pool.map(self._read_one, wanted), strict=True))
        return {shard: committed for shard, committed in found.items() if committed is not None}

    def _read_one(self, shard: int) -> Committed | None:
        with self.reader(shard, stable=True) as reader:
            return self.stored(reader)

    def reader(self, shard: int, *, stable: bool) -> contextlib.AbstractContextManager[ConsumerClient]:
        """A client of a shard's group that never joins it."""
        return fresh_reader(self.settings, ledger_group(self.group, shard), stable=stable)

    def stored(self, reader: ConsumerClient) -> Committed | None:
        """What the reader's group has stored.

        Raises:
            UnavailableError: no answer in time.
        """
        found = committed_offsets(reader, [self.partition], timeout_s=self.settings.open_deadline_s)
        return found.get(self.partition)

    @contextlib.contextmanager
    def owned(
        self, shard: int, stamp: LedgerStamp, listener: Listener = ignore_event
    ) -> Iterator[tuple[ShardProducer, Committed | None]]:
        """Own a shard: older owners are fenced, what they left open is ended. Gives what is stored from then on.

        Args:
            shard: which one.
            stamp: what is written with an entry.
            listener: told what happens.
        """
        # Neither a ledger nor its marks tell a new partition from a forgotten one by its offsets.
        had = dict.fromkeys((self.topic, *self.inputs), 0)
        with ShardProducer(
            self.settings, self.shard(shard), metadata=stamp, listener=listener, started_partitions=had
        ) as producer:
            stored = producer.take_over(ledger_group(self.group, shard), [self.partition])
            yield producer, stored.get(self.partition)

    def offsets(self, entry: LedgerEntry) -> OffsetVector:
        """What to commit for an entry, beside its stamp."""
        return OffsetVector({self.partition: entry.next_batch})

    def replace(
        self,
        shard: int,
        expected: Committed | None,
        entry: LedgerEntry,
        *,
        empty: Iterable[str] = (),
        marks: OffsetVector | None = None,
    ) -> Committed:
        """Write an entry over the one that was read, and over no other.

        Args:
            shard: whose entry it is.
            expected: what was read.
            entry: what to write.
            empty: topics on which no entry of shard 0 was found. Two drivers that name their outputs in another order
                would begin the ledger in two places; but they own the shard in turn, and look once more.
            marks: what to commit beside it.

        Returns:
            What is stored then.

        Raises:
            LedgerChangedError: something else is stored by now.
            FencedError: somebody else came to own the shard meanwhile.
            EosError: what the commit met.
        """
        stamp = LedgerStamp.of(entry, str(self.shard(shard)))
        with self.owned(shard, stamp) as (producer, found), self.reader(shard, stable=True) as reader:
            if found != expected:
                raise LedgerChangedError(
                    f"{ledger_group(self.group, shard)}: {found} is stored, no longer {expected}: another driver works "
                    "under this name. Fix: stop one of them"
                )
            if others := self.places(empty) if empty else {}:
                raise LedgerChangedError(
                    f"{self}: another driver has begun the ledger on {', '.join(sorted(others))} meanwhile. Fix: stop one of "
                    "them"
                )
            with producer.transaction() as txn:
                offsets = self.offsets(entry).merged(marks or OffsetVector())
                txn.add_offsets(offsets, reader.group_metadata())
            written = producer.owned_offsets(reader.group_id).stored([self.partition])[self.partition]
            return cast("Committed", written)  # it was committed a moment ago

    def deal(self, plan: BatchPlan, stored: Mapping[int, Committed], empty: Iterable[str]) -> None:
        """Rewrite every entry that a plan wants dealt; see `eos.spark.ledger` for the order and why.

        Args:
            plan: of the batch that the ledger begins with, or goes on from.
            stored: the entries that the plan was made of.
            empty: the topics on which no entry was found.

        Raises:
            LedgerChangedError: another driver has written the ledger meanwhile.
            EosError: what a commit met. The deal is begun anew then.
        """
        begun = self.replace(
            0, stored.get(0), replace(plan.dealt, was=plan.was, marks=plan.marks), empty=empty
        )
        others = plan.deal[1:]
        with ThreadPoolExecutor(min(AT_ONCE, max(1, len(others)))) as pool:
            list(pool.map(lambda k: self.replace(k, stored.get(k), plan.dealt), others))
        self.replace(0, begun, replace(plan.dealt, marks=plan.marks))


def entries_of(stored: Mapping[int, Committed], where: object) -> dict[int, LedgerEntry]:
    """The entries in what is stored.

    Raises:
        ConfigError: somebody else than a sink has committed to these groups.
    """
    found: dict[int, LedgerEntry] = {}
    for shard, committed in stored.items():
        entry = LedgerEntry.parse(committed.offset, committed.metadata)
        if entry is None:
            raise ConfigError(
                f"{where}: shard {shard} holds the offset {committed.offset} with {committed.metadata or 'no stamp'!r}, "
                "which no sink has written. Fix: another group or name for this sink, or delete that group"
            )
        found[shard] = entry
    return found
