"""The ledger in Kafka: read entries, and write one under its shard's fence.

Access rules that it needs beside those of the outputs: Read on groups with the prefix ``<group>.ledger.``, and Read on
the topic that the entries stand on (TxnOffsetCommit asks for it).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from eos.errors import ConfigError
from eos.events import Listener, nobody
from eos.kafka.consumer import Committed, ConsumerClient
from eos.offsets import OffsetVector, Partition
from eos.producer import TransactionalProducer
from eos.readers import committed_offsets, fresh_reader
from eos.settings import Settings
from eos.shards import SinkShard, shard_prefix
from eos.spark.ledger import (
    BatchPlan,
    LedgerChangedError,
    LedgerEntry,
    LedgerStamp,
    ledger_group,
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
    """

    settings: Settings
    app: str
    group: str
    topic: str

    def __str__(self) -> str:
        return f"ledger {ledger_group(self.group, 0)}, … on {self.partition}"

    @property
    def partition(self) -> Partition:
        """What the entries are offsets of."""
        return Partition(self.topic, 0)

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
        self, shard: int, stamp: LedgerStamp, listener: Listener = nobody
    ) -> Iterator[tuple[TransactionalProducer, Committed | None]]:
        """Own a shard: older owners are fenced, what they left open is ended. Gives what is stored from then on.

        Args:
            shard: which one.
            stamp: what is written with an entry.
            listener: told what happens.
        """
        had = {
            self.partition.topic: 0
        }  # a ledger has one partition and does not tell a new one from a forgotten one
        with TransactionalProducer(
            self.settings, self.shard(shard), stamp=stamp, listener=listener, had=had
        ) as producer:
            stored = producer.take_over(ledger_group(self.group, shard), [self.partition])
            yield producer, stored.get(self.partition)

    def offsets(self, entry: LedgerEntry) -> OffsetVector:
        """What to commit for an entry, beside its stamp."""
        return OffsetVector({self.partition: entry.next_batch})

    def replace(self, shard: int, expected: Committed | None, entry: LedgerEntry) -> Committed:
        """Write an entry over the one that was read, and over no other.

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
            with producer.transaction() as txn:
                txn.add_offsets(self.offsets(entry), reader.group_metadata())
            return Committed(entry.next_batch, str(producer.owned_offsets(reader.group_id).stamp))

    def deal(self, plan: BatchPlan, stored: Mapping[int, Committed]) -> None:
        """Rewrite every entry that a plan wants dealt; see `eos.spark.ledger` for the order and why.

        Raises:
            LedgerChangedError: another driver has written the ledger meanwhile.
            EosError: what a commit met. The deal is begun anew then.
        """
        begun = self.replace(0, stored.get(0), replace(plan.dealt, was=plan.was))
        others = plan.deal[1:]
        with ThreadPoolExecutor(min(AT_ONCE, max(1, len(others)))) as pool:
            list(pool.map(lambda k: self.replace(k, stored.get(k), plan.dealt), others))
        self.replace(0, begun, plan.dealt)


def entries_of(stored: Mapping[int, Committed], where: object) -> dict[int, LedgerEntry]:
    """The entries in what is stored.

    Raises:
        ConfigError: somebody else than a sink has committed to these groups.
    """
    found: dict[int, LedgerEntry] = {}
    for shard, committed in stored.items():
        entry = LedgerEntry.parse(*committed)
        if entry is None:
            raise ConfigError(
                f"{where}: shard {shard} holds the offset {committed.offset} with {committed.metadata or 'no stamp'!r}, "
                "which no sink has written. Fix: another group or name for this sink, or delete that group"
            )
        found[shard] = entry
    return found
