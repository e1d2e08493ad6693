"""The ledger in Kafka: read entries, and write one under its shard's fence.

Access rules that it needs beside those of the outputs: Read on groups with the prefix of `ledger_group`, and Read on
the topic that the entries stand on (TxnOffsetCommit asks for it).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeVar, cast

from eos.check.transactions import TransactionsView
from eos.errors import ConfigError, EosError
from eos.group.committed import committed_offsets, fresh_reader, partitions_of
from eos.kafka.consumer import ConsumerClient
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition
from eos.settings import Settings
from eos.shards import SinkShard, ledger_group, shard_prefix
from eos.spark.ledger import LedgerChangedError
from eos.spark.ledger_entry import EntryMetadata, LedgerEntry
from eos.spark.shard_offsets import commit_offsets

T = TypeVar("T")

_COMMITTED = "CompleteCommit"
_VIEW_S = 10.0
_AT_ONCE = 8  # each needs a client with threads of its own


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
        return f"ledger {self.group_of(0)}, … on {self.partition}"

    @property
    def partition(self) -> Partition:
        """What the entries are offsets of."""
        return Partition(self.topic, 0)

    @property
    def prefix(self) -> str:
        """How the transactional.ids of all shards begin."""
        return shard_prefix(self.app, self.group)

    @property
    def started(self) -> dict[str, int]:
        """Neither a ledger nor its marks tell a new partition from a forgotten one by its offsets."""
        return dict.fromkeys((self.topic, *self.inputs), 0)

    def shard(self, number: int) -> SinkShard:
        """The unit of ownership of an output shard."""
        return SinkShard(self.app, self.group, number)

    def group_of(self, number: int) -> str:
        """The group whose offset is the entry of a shard."""
        return ledger_group(self.app, self.group, number)

    def offsets(self, entry: LedgerEntry) -> OffsetVector:
        """What to commit for an entry, beside its metadata."""
        return OffsetVector({self.partition: entry.next_batch})

    def reader(self, shard: int, *, stable: bool) -> AbstractContextManager[ConsumerClient]:
        """A client of a shard's group that never joins it."""
        return fresh_reader(self.settings, self.group_of(shard), stable=stable)

    def stored(
        self, reader: ConsumerClient, partitions: Collection[Partition] = ()
    ) -> dict[Partition, Committed]:
        """What the reader's group has stored of these partitions; of the entries' if none are given.

        Raises:
            UnavailableError: no answer in time, or a transaction stayed pending.
        """
        wanted = partitions or (self.partition,)
        return committed_offsets(reader, wanted, timeout_s=self.settings.open_timeout_s)

    def read(self, shards: Iterable[int]) -> dict[int, Committed]:
        """What these shards' groups have stored; shards without an entry are left out.

        Waits for transactions that are pending on it, which is up to their timeout. Raises as `stored` does.
        """

        def read(shard: int) -> Committed | None:
            with self.reader(shard, stable=True) as reader:
                return self.stored(reader).get(self.partition)

        found = at_once(read, shards)
        return {shard: committed for shard, committed in found.items() if committed is not None}

    def entries(self, stored: Mapping[int, Committed]) -> dict[int, LedgerEntry]:
        """The entries in what is stored.

        Raises:
            ConfigError: another program than a sink has committed to these groups.
        """
        found: dict[int, LedgerEntry] = {}
        for shard, committed in stored.items():
            entry = LedgerEntry.parse(committed.offset, committed.metadata)
            if entry is None:
                raise ConfigError(
                    f"{self}: shard {shard} holds the offset {committed.offset} with {committed.metadata or 'no metadata'!r}, "
                    "which no sink has written. Fix: another group or name for this sink, or delete that group"
                )
            if entry.app not in ("", self.app):
                raise ConfigError(
                    f"{self}: shard {shard} holds the entry of the sink {entry.app!r}, and this one is {self.app!r}. Two sinks with "
                    "one ledger do not fence each other. Fix: another group or name for this sink, or delete that group"
                )
            found[shard] = entry
        return found

    def places(self, topics: Iterable[str]) -> dict[str, LedgerEntry]:
        """On which of these topics an entry of shard 0 stands; on one, as a rule. Raises as `stored` does."""
        with self.reader(0, stable=True) as reader:
            stored = self.stored(reader, [Partition(topic, self.partition.number) for topic in topics])
        found = {p.topic: LedgerEntry.parse(one.offset, one.metadata) for p, one in stored.items()}
        return {topic: entry for topic, entry in found.items() if entry is not None}

    def marks(self, partitions: Collection[Partition] = ()) -> dict[Partition, Committed]:
        """The marks that are stored, of these partitions or of all of the inputs'. Raises as `stored` does.

        Raises:
            ConfigError: an input topic does not exist.
        """
        with self.reader(0, stable=True) as reader:
            wanted = partitions or partitions_of(reader, self.inputs, timeout_s=self.settings.open_timeout_s)
            return self.stored(reader, wanted)

    def committed_before(self, shards: Iterable[int]) -> str:
        """Which of these shards has committed last, by its coordinator; "" if none has, or if that cannot be asked.

        A coordinator knows a transactional.id for 7 days (transactional.id.expiration.ms).
        """
        try:
            with TransactionsView(self.settings, timeout_s=_VIEW_S) as view:
                known = view.describe(self.shard(number).transactional_id for number in shards)
        except EosError:
            return ""
        return next(
            (
                f"the last transaction of {name} is committed"
                for name, one in sorted(known.items())
                if one.state == _COMMITTED
            ),
            "",
        )

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
            entry: what to write; returned as it is stored.
            empty: topics on which no entry of shard 0 was found. Two drivers that name their outputs in another order
                would begin the ledger in two places; but they own the shard in turn, and look once more.
            marks: what to commit beside it.

        Raises:
            LedgerChangedError: something else is stored by now.
            FencedError: another driver has opened the shard meanwhile.
            EosError: what the commit met.
        """

        def over(stored: Mapping[Partition, Committed]) -> OffsetVector:
            found = stored.get(self.partition)
            if found != expected:
                raise LedgerChangedError(
                    f"{self.group_of(shard)}: {found} is stored, no longer {expected}: another driver works "
                    "under this name. Fix: stop one of them"
                )
            if others := self.places(empty) if empty else {}:
                raise LedgerChangedError(
                    f"{self}: another driver has begun the ledger on {', '.join(sorted(others))} meanwhile. Fix: stop one of "
                    "them"
                )
            return self.offsets(entry).merged(marks or OffsetVector())

        owner = self.shard(shard)
        metadata = EntryMetadata.of(entry, str(owner))
        written = commit_offsets(
            self.settings,
            owner,
            self.group_of(shard),
            [self.partition],
            over,
            metadata=metadata,
            started=self.started,
        )
        return cast("Committed", written[self.partition])  # it was committed a moment ago


def at_once(work: Callable[[int], T], shards: Iterable[int]) -> dict[int, T]:
    """Do something for several shards at a time."""
    wanted = list(shards)
    with ThreadPoolExecutor(min(_AT_ONCE, max(1, len(wanted)))) as pool:
        return dict(zip(wanted, pool.map(work, wanted), strict=True))
