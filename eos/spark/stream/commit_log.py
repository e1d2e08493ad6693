"""The commit log in Kafka: entries are read, and one is written under its shard's fence. `log_driver` works with all of them.

Access rules that it needs beside those of the outputs: Read on groups with the prefix of `ledger_group`, and Read on
the topic that the entries stand on (TxnOffsetCommit asks for it).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import cast

from eos.base.at_once import at_once
from eos.errors import ConfigError, EosError, OffsetGapError
from eos.group.committed import committed_elsewhere, committed_offsets, fresh_reader
from eos.group.topics import says_recreated
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition
from eos.ops.check.transactions import TransactionsView
from eos.settings import Settings
from eos.shards import SinkShard, ledger_group, shard_prefix
from eos.spark.stream.log_entry import EntryMetadata, LogEntry
from eos.spark.stream.log_rules import LedgerChangedError, LedgerError
from eos.spark.write.commit_record import commit_offsets

_COMMITTED = "CompleteCommit"
_VIEW_S = 10.0


@dataclass(frozen=True, slots=True)
class CommitLog:
    """Where a sink's commit log is. Immutable and picklable.

    Args:
        settings: how to reach the cluster.
        app: the sink's name.
        group: the sink's group.
        topic: on whose partition 0 the entries stand, as offsets. It need not have so many records: Kafka takes any
            offset of a partition that exists (measured), and only of such.
        inputs: the topics whose partitions have marks (`eos.spark.stream.marks`), in the group of shard 0.
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
        """Neither a commit log nor its marks tell a new partition from a forgotten one by its offsets."""
        return dict.fromkeys((self.topic, *self.inputs), 0)

    def shard(self, number: int) -> SinkShard:
        """The unit of ownership of an output shard."""
        return SinkShard(self.app, self.group, number)

    def group_of(self, number: int) -> str:
        """The group whose offset is the entry of a shard."""
        return ledger_group(self.app, self.group, number)

    def offsets(self, entry: LogEntry) -> OffsetVector:
        """What to commit for an entry, beside its metadata."""
        return OffsetVector({self.partition: entry.next_batch})

    def stored(
        self, shard: int, partitions: Collection[Partition] | None = None, *, stable: bool = True
    ) -> dict[Partition, Committed]:
        """What a shard's group has stored of these partitions; of the entry's if none are given.

        If ``stable``, it waits for transactions that are pending on it, which is up to their timeout.

        Raises:
            UnavailableError: no answer in time, or a transaction stayed pending.
        """
        with fresh_reader(self.settings, self.group_of(shard), stable=stable) as reader:
            wanted = (self.partition,) if partitions is None else partitions
            return committed_offsets(reader, wanted, timeout_s=self.settings.open_timeout_s)

    def read(self, shards: Iterable[int]) -> dict[int, Committed]:
        """What these shards' groups have stored of their entries, as far as there are any. Raises as `stored` does."""
        found = at_once(lambda shard: self.stored(shard).get(self.partition), shards)
        return {shard: committed for shard, committed in found.items() if committed is not None}

    def marks(self, partitions: Collection[Partition]) -> dict[Partition, Committed]:
        """The marks of these input partitions. Another program's offset in the place of one is none. Raises as `stored` does."""
        found = self.stored(0, partitions)
        return {p: one for p, one in found.items() if LogEntry.parse(one.offset, one.metadata) is not None}

    def entry(self, committed: Committed) -> LogEntry | None:
        """The entry in what is stored on this log's partition; None if it is the mark of a former input, or of no sink."""
        entry = LogEntry.parse(committed.offset, committed.metadata)
        return entry if entry is not None and entry.stands_on(self.topic, if_unsaid=True) else None

    def entries(self, stored: Mapping[int, Committed]) -> dict[int, LogEntry]:
        """The entries in what is stored. The mark of a topic that was an input before is none: it may be written over.

        Raises:
            ConfigError: another program than a sink has committed to these groups.
        """
        found: dict[int, LogEntry] = {}
        for shard, committed in stored.items():
            entry = LogEntry.parse(committed.offset, committed.metadata)
            if entry is None:
                raise ConfigError(
                    f"{self}: shard {shard} holds the offset {committed.offset} with {committed.metadata or 'no metadata'!r}, "
                    "which no sink has written. Fix: for a new sink, another group or name. Else another program has set its entry, and a batch may be "
                    "written in part: stop the query, compare with the output, and delete that group; the next start says how to go on"
                )
            if entry.app not in ("", self.app):
                raise ConfigError(
                    f"{self}: shard {shard} holds the entry of the sink {entry.app!r}, and this one is {self.app!r}. Two sinks with "
                    "one ledger do not fence each other. Fix: another group or name for this sink, or delete that group"
                )
            if self.entry(committed) is not None:
                found[shard] = entry
        return found

    def places(self, topics: Iterable[str]) -> dict[str, LogEntry]:
        """On which topics an entry of shard 0 stands, these or others; on one, as a rule. Raises as `stored` does."""
        asked = [Partition(topic, self.partition.number) for topic in topics]
        stored = self.stored(0, asked) | committed_elsewhere(self.settings, self.group_of(0), asked)
        found = {p: LogEntry.parse(one.offset, one.metadata) for p, one in stored.items()}
        return {
            p.topic: entry
            for p, entry in found.items()
            if entry is not None and entry.stands_on(p.topic, if_unsaid=p in asked)
        }

    def lost_with_its_topic(self, error: OffsetGapError, what: str) -> EosError:
        """The error for an entry that counts in another topic than the records that it is to say of; or the error itself.

        Kafka drops the entries of a deleted topic a moment later: until then they are read, and are committed over.
        """
        return self.gone(what) if says_recreated(error, self.topic) else error

    def gone(self, what: str) -> LedgerError:
        """The error for an entry that was there a moment ago."""
        return LedgerError(
            f"{what}: its ledger is gone, which was there a moment ago. Kafka drops it together with its topic, so {self.topic} was "
            "deleted (and created anew) meanwhile, or the group was. Nothing of it was written. Fix: start again; the refusal "
            "says what to look at, and what to adopt. If it is this one again, the entries of the deleted topic were kept: delete the "
            f"ledger's groups ({self.group_of(0)}, …)"
        )

    def committed_before(self, shards: Iterable[int]) -> str:
        """Which of these shards has committed last, by its coordinator; "" if none has, or if that cannot be asked.

        A coordinator knows a transactional.id for 7 days (transactional.id.expiration.ms).
        """
        try:
            with TransactionsView(self.settings, timeout_s=_VIEW_S) as view:
                known = view.describe(self.shard(number).transactional_id for number in shards)
        except EosError:
            return ""
        committed = sorted(name for name, one in known.items() if one.state == _COMMITTED)
        return f"the last transaction of {committed[0]} is committed" if committed else ""

    def _refuse_others_than(self, places: Mapping[str, LogEntry]) -> None:
        now = self.places([])
        if others := sorted(t for t in now.keys() - {self.topic} if now[t] != places.get(t)):
            raise LedgerChangedError(
                f"{self}: another driver keeps the ledger on {', '.join(others)} meanwhile. Fix: stop one of them"
            )

    def replace(
        self,
        shard: int,
        expected: Committed | None,
        entry: LogEntry,
        *,
        places: Mapping[str, LogEntry] | None = None,
        marks: OffsetVector | None = None,
    ) -> Committed:
        """Write an entry over the one that was read, and over no other.

        Args:
            shard: whose entry it is.
            expected: what was read.
            entry: what to write; returned as it is stored.
            places: the topics on which entries of shard 0 were found; None: they are not compared. Two drivers that name other
                outputs, or in another order, would keep the commit log in two places; but they own the shard in turn, and look once more.
            marks: what to commit beside it.

        Raises:
            LedgerChangedError: something else is stored by now.
            FencedError: another driver has opened the shard meanwhile.
            LedgerError: the topic of the entries was deleted and created anew since they were read.
            EosError: what the commit met.
        """

        def over(stored: Mapping[Partition, Committed]) -> OffsetVector:
            found = stored.get(self.partition)
            if found != expected:
                raise LedgerChangedError(
                    f"{self.group_of(shard)}: {found} is stored, no longer {expected}: another driver works "
                    "under this name. Fix: stop one of them"
                )
            if places is not None:
                self._refuse_others_than(places)
            return self.offsets(entry).merged(marks or OffsetVector())

        owner, group = self.shard(shard), self.group_of(shard)
        metadata = EntryMetadata.of(replace(entry, on=self.topic), str(owner))
        try:
            written = commit_offsets(
                self.settings, owner, group, [self.partition], over, metadata=metadata, started=self.started
            )
        except OffsetGapError as error:
            raise self.lost_with_its_topic(error, group) from error
        return cast("Committed", written[self.partition])  # it was committed a moment ago
