"""CommitLogDriver: what the driver of a query does with the entries of all shards: find them, plan a batch by them, look after it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from eos.base.at_once import at_once
from eos.errors import AbortableError, EosError, FencedError, ReopenError
from eos.events import Listener, ignore_event
from eos.group.topics import stored_topic_ids
from eos.kafka.group_offsets import Committed, stored_positions
from eos.offsets import OffsetVector
from eos.shards import parse_transactional_id
from eos.spark.events import BatchResumed, LedgerRefreshed, LedgerSharded
from eos.spark.source import InputLogs
from eos.spark.stream.commit_log import CommitLog
from eos.spark.stream.log_entry import Division, LogEntry
from eos.spark.stream.log_rules import (
    BatchPlan,
    LedgerChangedError,
    LedgerError,
    decide,
    reach,
    stands_elsewhere,
)

_TRIES = 3
_APART_S = 1.0  # two drivers that take the commit log over at once would go on to stop each other


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
        # Topics on which entries stand, once that was asked.
        self._places: Mapping[str, LogEntry] | None = None

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
            if self._places is None or problem is not None:
                self._locate()
            stored = self._read()
            entries = self.store.entries(stored)
            prefix, where = self.store.prefix, str(self.store)
            plan = decide(
                batch,
                query,
                wanted,
                entries,
                run=run,
                where=where,
                adopt=self.adopt,
                begun=begun,
            )
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
        store = replace(self.store, app=shard.app, group=shard.group, topic=topics[0])
        return CommitLogDriver(store, topics, 1, None, ignore_event)

    def entries(self) -> dict[int, LogEntry]:
        """What the commit log says of each shard, wherever it stands now. Raises LedgerError: it stands on none of the outputs."""
        self._locate()
        return self.store.entries(self._read())

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
        if 0 not in mine and not (0 in entries and entries[0].is_given_up):
            raise LedgerError(
                f"{name} nothing says any more which batches are written: its offsets have expired, were deleted, or are another query's. Fix, if you know "
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
        stored, store = self.require_unwritten(batch, query), self.store
        entries, left = store.entries(stored), LogEntry.given_up_for(batch, to)
        # First as they are: a driver that has planned a batch writes none of its shards behind that, and might write some until then.
        held = at_once(lambda k: store.replace(k, stored[k], entries[k]), entries)
        at_once(lambda k: store.replace(k, held[k], left), held)

    def require_written(self, plan: BatchPlan) -> None:
        """Look from outside whether every shard's entry says that the batch is written; else a LedgerChangedError."""
        entries = self.store.entries(self.store.read(range(plan.shards)))
        if unwritten := [k for k in range(plan.shards) if not plan.after.is_said_by(entries.get(k))]:
            raise LedgerChangedError(
                f"{self.store}: batch {plan.batch} ran, but the ledger does not say so of the shards {unwritten}. Another driver works "
                f"under this name, or {self.store.topic} was deleted, and Kafka has dropped the ledger with it. Fix: stop the other driver; "
                "if there is none, start again, and compare the output before you adopt what the refusal names"
            )

    def refresh(self, last: LogEntry | None, *, failed: bool = False) -> None:
        """What `ExactlyOnceSink.refresh` does; ``last`` is what this driver's last batch left.

        Behind a batch that ``failed`` the entries are left alone: a part of it may be written.
        """
        if self._places is None:
            self._locate()
        stored, store = self._read(), self.store
        entries = self.store.entries(stored)
        first = entries.get(0)
        if failed:
            return
        # Another run may have taken the ledger over for a batch that it has not written yet.
        if last is not None and (first is None or not last.is_said_by(first) or last.run != first.run):
            raise LedgerChangedError(
                f"{store}: it says {first or 'nothing'} now, and this driver's last batch has left {last}: another driver has gone on from "
                "there. What is committed stands, once. Fix: stop one of the two"
            )
        if first is None or first.was:
            return
        ours = {k: entry for k, entry in entries.items() if k < first.shards}
        if any(not first.is_said_by(entry) for entry in ours.values()):
            return
        # Marks that are gone are not forgotten: the entry goes on saying how many there were.
        found = store.marks(InputLogs(store.settings).partitions(*store.inputs)) if store.inputs else {}
        # With the ids that they say: those of now would hide that a topic was created anew since.
        ids = OffsetVector(topic_ids=dict(stored_topic_ids(found, with_more=True)))
        marks = stored_positions(found).merged(ids)
        store.replace(0, stored[0], first if store.inputs else replace(first, marks=0), marks=marks)
        at_once(lambda k: store.replace(k, stored[k], ours[k]), ours.keys() - {0})
        self._listener(LedgerRefreshed(store.prefix, first.next_batch))

    # --- inside ------------------------------------------------------------------------------------

    def _locate(self) -> None:
        """Find where the commit log stands: where it was begun, whatever the outputs are now, and in which order.

        Raises:
            LedgerError: on none of the outputs.
        """
        places, store = self.store.places(self._outputs), self.store
        topic = max(places, key=lambda one: places[one].at_s, default=self._outputs[0])
        if topic not in self._outputs:
            raise stands_elsewhere(store.group_of(0), topic, is_input=topic in store.inputs)
        self._places, self.store = places, replace(store, topic=topic)

    def _read(self) -> dict[int, Committed]:
        stored = self.store.read(range(self.shards))
        needed = reach(self.store.entries(stored).get(0), self.shards)
        return stored | self.store.read(range(self.shards, needed))

    def _reshard(self, plan: BatchPlan, stored: Mapping[int, Committed]) -> None:
        """Rewrite every entry; see `eos.spark.stream.log_rules` for the order and why."""
        first, store = replace(plan.rewritten(0), marks=plan.marks), self.store
        begun = store.replace(0, stored.get(0), replace(first, was=plan.was), places=self._places)
        at_once(lambda k: store.replace(k, stored.get(k), plan.rewritten(k)), plan.to_rewrite[1:])
        store.replace(0, begun, first)
