"""The commit log in Kafka: entries are read, one is written under its shard's fence, and a driver works with all of them.

Access rules that it needs beside those of the outputs: Read on groups with the prefix of `ledger_group`, and Read on
the topic that the entries stand on (TxnOffsetCommit asks for it).
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from eos.base.at_once import at_once
from eos.errors import AbortableError, ConfigError, EosError, FencedError, OffsetGapError, ReopenError
from eos.events import Listener, ignore_event
from eos.group.committed import committed_offsets, fresh_reader
from eos.group.topics import stored_topic_ids
from eos.kafka.group_offsets import Committed, stored_positions
from eos.offsets import OffsetVector, Partition
from eos.ops.check.transactions import TransactionsView
from eos.settings import Settings
from eos.shards import SinkShard, ledger_group, parse_transactional_id, shard_prefix
from eos.spark.events import BatchResumed, LedgerRefreshed, LedgerSharded
from eos.spark.source import InputLogs
from eos.spark.stream.log_entry import Division, EntryMetadata, LogEntry
from eos.spark.stream.log_rules import BatchPlan, LedgerChangedError, LedgerError, decide, reach
from eos.spark.write.commit_record import commit_offsets

_COMMITTED = "CompleteCommit"
_VIEW_S = 10.0
_TRIES = 3
_APART_S = 1.0  # two drivers that take the commit log over at once would go on to stop each other


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

    def entries(self, stored: Mapping[int, Committed]) -> dict[int, LogEntry]:
        """The entries in what is stored.

        Raises:
            ConfigError: another program than a sink has committed to these groups.
        """
        found: dict[int, LogEntry] = {}
        for shard, committed in stored.items():
            entry = LogEntry.parse(committed.offset, committed.metadata)
            if entry is None:
                raise ConfigError(
                    f"{self}: shard {shard} holds the offset {committed.offset} with {committed.metadata or 'no metadata'!r}, "
                    "which no sink has written. Fix: another group or name for this sink, or delete that group. Where it was the sink's own "
                    "and a tool has set it, a batch may be written in part: compare it with the output first"
                )
            if entry.app not in ("", self.app):
                raise ConfigError(
                    f"{self}: shard {shard} holds the entry of the sink {entry.app!r}, and this one is {self.app!r}. Two sinks with "
                    "one ledger do not fence each other. Fix: another group or name for this sink, or delete that group"
                )
            found[shard] = entry
        return found

    def places(self, topics: Iterable[str]) -> dict[str, LogEntry]:
        """On which of these topics an entry of shard 0 stands; on one, as a rule. Raises as `stored` does."""
        stored = self.stored(0, [Partition(topic, self.partition.number) for topic in topics])
        found = {p.topic: LogEntry.parse(one.offset, one.metadata) for p, one in stored.items()}
        return {topic: entry for topic, entry in found.items() if entry is not None}

    def lost_with_its_topic(self, error: OffsetGapError, what: str) -> EosError:
        """The error for an entry that counts in another topic than the records that it is to say of; or the error itself.

        Kafka drops the entries of a deleted topic a moment later: until then they are read, and are committed over.
        """
        return self.gone(what) if str(error).startswith(f"{self.topic}: ") else error

    def gone(self, what: str) -> LedgerError:
        """The error for an entry that was there a moment ago."""
        return LedgerError(
            f"{what}: its ledger is gone, which was there a moment ago. Kafka drops it together with its topic, so {self.topic} was "
            "deleted (and created anew) meanwhile, or somebody has deleted the group. Nothing was written. Fix: start again; the refusal "
            "says what to look at, and what to adopt"
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

    def replace(
        self,
        shard: int,
        expected: Committed | None,
        entry: LogEntry,
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
                would begin the commit log in two places; but they own the shard in turn, and look once more.
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
            if others := self.places(empty) if empty else {}:
                raise LedgerChangedError(
                    f"{self}: another driver has begun the ledger on {', '.join(sorted(others))} meanwhile. Fix: stop one of "
                    "them"
                )
            return self.offsets(entry).merged(marks or OffsetVector())

        owner, group = self.shard(shard), self.group_of(shard)
        metadata = EntryMetadata.of(entry, str(owner))
        try:
            written = commit_offsets(
                self.settings, owner, group, [self.partition], over, metadata=metadata, started=self.started
            )
        except OffsetGapError as error:
            raise self.lost_with_its_topic(error, group) from error
        return cast("Committed", written[self.partition])  # it was committed a moment ago


class CommitLogDriver:
    """One driver's view of a sink's commit log, which begins at ``store`` and stands on one of ``outputs``.

    ``adopt`` is what a refusal said to pass, if a person has decided so.
    """

    def __init__(
        self, store: CommitLog, outputs: Sequence[str], shards: int, adopt: str | None, listener: Listener
    ) -> None:
        self.store = store
        self._outputs = outputs
        self.shards = shards
        self.adopt = adopt
        self._listener = listener
        self._empty: Sequence[str] | None = None  # topics on which no entry stands, once they were looked at

    def plan(self, batch: int, query: str, run: str, wanted: Division, *, begun: str = "") -> BatchPlan:
        """What is left of a batch, whose rows would be divided as ``wanted``; the commit log is rewritten where that comes first.

        Raises:
            LedgerError: commit log and batch do not belong together.
            LedgerChangedError: another driver works under this name.
            EosError: the cluster did not answer.
        """
        problem: EosError | None = None
        for _ in range(_TRIES):
            if problem is not None:
                time.sleep(random.uniform(0, _APART_S))  # noqa: S311 - no secret
            if self._empty is None or problem is not None:
                self._locate()
            stored = self._read()
            entries = self.store.entries(stored)
            prefix, where = self.store.prefix, str(self.store)
            plan = decide(batch, query, wanted, entries, run=run, where=where, adopt=self.adopt, begun=begun)
            if not plan.was:
                if plan.done:
                    self._listener(BatchResumed(prefix, batch, sorted(plan.done), plan.shards))
                return plan
            try:
                self._reshard(plan, stored)
            except (FencedError, AbortableError, ReopenError) as error:
                problem = error  # of another driver, or of a commit: read what is stored now
                continue
            was, first = plan.was if entries else 0, entries.get(0)
            if plan.unchecked or first is None or (was, first.division) != (plan.shards, plan.division):
                of = (plan.shards, was, plan.unchecked, plan.in_place)
                self._listener(LedgerSharded(prefix, batch, query, *of))
        raise LedgerChangedError(
            f"{self.store}: it could not be taken over, for a batch {wanted}, in {_TRIES} tries; the last one: {problem}. Is "
            "another driver at work under this name? Fix: stop one of them"
        ) from problem

    def under(self, prefix: str, outputs: Iterable[str]) -> CommitLogDriver:
        """The commit log that the query has under another name, by the prefix of its transactional.ids."""
        shard, topics = parse_transactional_id(f"{prefix}o.0"), sorted(outputs)
        store = replace(self.store, app=shard.app, group=shard.group, topic=topics[0], inputs=())
        return CommitLogDriver(store, topics, 1, None, ignore_event)

    def require_unwritten(self, batch: int, query: str) -> dict[int, Committed]:
        """What is stored, which says of each shard that the batches before this one are written, and this one not.

        Raises:
            LedgerError: it says otherwise, or nothing.
        """
        self._locate()
        stored = self._read()
        entries = self.store.entries(stored)
        mine = {k: one.next_batch for k, one in entries.items() if one.query == query}
        name = f"{self.store}: under the name {self.store.app!r}"
        if written := [k for k, at in mine.items() if at > batch]:
            raise LedgerError(
                f"{name} batch {batch} is written already, of its shards {written}. Another name would write them again. Fix: start "
                "once more under that name until it has caught up (--until-caught-up), and change the name then"
            )
        if behind := [k for k, at in mine.items() if at < batch]:
            raise LedgerError(
                f"{name} batch {batch - 1} is not written, of its shards {behind}, though Spark has counted it as done: a function for "
                "foreachBatch has caught the sink's error, or has not called it. Fix: start once more under that name, whose refusal "
                "says what to do, and change the name then"
            )
        if 0 not in entries:
            raise LedgerError(
                f"{name} nothing says any more which batches are written: its offsets have expired, or were deleted. Fix, if you know "
                f"that everything before batch {batch} is written and nothing of it: remove the checkpoint's file that has that name"
            )
        return stored

    def give_up(self, batch: int, query: str, to: str) -> None:
        """Leave entries with which no driver goes on under this name, of a batch that is not begun: the query has another one now.

        A driver that still runs under this name is fenced, and its next try finds them.

        Raises:
            LedgerError: the batch is written, in whole or in part.
            EosError: another driver has written the commit log meanwhile, or what a commit met.
        """
        stored = self.require_unwritten(batch, query)
        entries = self.store.entries(stored)
        # First as they are: a driver that has planned the batch writes none of its shards behind that, and might write some until then.
        held = at_once(lambda k: self.store.replace(k, stored[k], entries[k]), stored)
        entry = LogEntry(batch, f"given-up-for:{to}", 1)
        at_once(lambda k: self.store.replace(k, held[k], entry), held)

    def require_written(self, plan: BatchPlan) -> None:
        """Look from outside whether every shard's entry says that the batch is written; else a LedgerChangedError."""
        entries = self.store.entries(self.store.read(range(plan.shards)))
        if unwritten := [k for k in range(plan.shards) if not plan.after.is_said_by(entries.get(k))]:
            raise LedgerChangedError(
                f"{self.store}: batch {plan.batch} ran, but the ledger does not say so of the shards {unwritten}. Is "
                "another driver at work under this name? Fix: stop one of them"
            )

    def refresh(self, last: LogEntry | None) -> None:
        """What `ExactlyOnceSink.refresh` does; ``last`` is what this driver's last batch left."""
        if self._empty is None:
            self._locate()
        stored, store = self._read(), self.store
        entries = store.entries(stored)
        first = entries.get(0)
        if last is not None and not last.is_said_by(first):
            raise LedgerChangedError(f"{store}: another driver has gone on from {last}")
        if first is None or first.was:
            return
        ours = {k: entry for k, entry in entries.items() if k < first.shards}
        if any(not first.is_said_by(entry) for entry in ours.values()):
            return
        # Marks that are gone are not forgotten: the entry goes on saying how many there were.
        found = store.stored(0, InputLogs(store.settings).partitions(*store.inputs)) if store.inputs else {}
        # With the ids that they say: those of now would hide that a topic was created anew since.
        ids = OffsetVector(topic_ids=dict(stored_topic_ids(found, with_more=True)))
        marks = stored_positions(found).merged(ids)
        store.replace(0, stored[0], first if store.inputs else replace(first, marks=0), marks=marks)
        at_once(lambda k: store.replace(k, stored[k], ours[k]), ours.keys() - {0})
        self._listener(LedgerRefreshed(store.prefix, first.next_batch))

    # --- inside ------------------------------------------------------------------------------------

    def _locate(self) -> None:
        """Find where the commit log stands: where it was begun, whatever the order of the outputs is now."""
        places = self.store.places(self._outputs)
        # Several: it was moved once, by an order to adopt; where it was committed last, it is.
        topic = max(places, key=lambda one: places[one].at_s, default=self._outputs[0])
        self.store = replace(self.store, topic=topic)
        self._empty = [] if places else self._outputs

    def _read(self) -> dict[int, Committed]:
        stored = self.store.read(range(self.shards))
        needed = reach(self.store.entries(stored).get(0), self.shards)
        return stored | self.store.read(range(self.shards, needed))

    def _reshard(self, plan: BatchPlan, stored: Mapping[int, Committed]) -> None:
        """Rewrite every entry; see `eos.spark.stream.log_rules` for the order and why."""
        first, store = replace(plan.rewritten(0), marks=plan.marks), self.store
        begun = store.replace(0, stored.get(0), replace(first, was=plan.was), empty=self._empty or ())
        at_once(lambda k: store.replace(k, stored.get(k), plan.rewritten(k)), plan.to_rewrite[1:])
        store.replace(0, begun, first)
