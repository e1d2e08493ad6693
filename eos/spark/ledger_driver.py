"""The ledger as a driver works with it: found, read, agreed on, and kept from being forgotten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from eos.errors import AbortableError, EosError, FencedError, ReopenError
from eos.events import BatchResumed, LedgerRefreshed, LedgerSharded, Listener
from eos.group.topic_ids import stored_topic_ids
from eos.kafka.group_offsets import Committed, stored_positions
from eos.offsets import OffsetVector
from eos.spark.ledger import BatchPlan, LedgerChangedError, decide, reach
from eos.spark.ledger_entry import LedgerEntry
from eos.spark.ledger_store import LedgerStore, at_once

_TRIES = 3


class LedgerDriver:
    """One driver's view of a sink's ledger, which begins at ``store`` and stands on one of ``outputs``."""

    def __init__(
        self, store: LedgerStore, outputs: Sequence[str], shards: int, adopt: str | None, listener: Listener
    ) -> None:
        self.store = store
        self._outputs = outputs
        self._shards = shards
        self._adopt = adopt
        self._listener = listener
        self._empty: Sequence[str] | None = None  # topics on which no entry stands, once they were looked at

    def plan(self, batch: int, query: str, *, begun: str = "") -> BatchPlan:
        """Read the ledger once and decide what is left of a batch; reshard it where that is the first thing to do.

        Raises:
            LedgerError: ledger and batch do not belong together.
            LedgerChangedError: another driver works under this name, with another number of shards.
            EosError: the cluster did not answer.
        """
        problem: EosError | None = None
        for _ in range(_TRIES):
            if self._empty is None or problem is not None:
                self._locate()
            stored = self._read()
            entries = self.store.entries(stored)
            where = str(self.store)
            plan = decide(batch, query, self._shards, entries, where=where, adopt=self._adopt, begun=begun)
            prefix = self.store.prefix
            if not plan.was:
                if plan.done:
                    self._listener(BatchResumed(prefix, batch, sorted(plan.done), plan.shards))
                return plan
            try:
                self._reshard(plan, stored)
            except (FencedError, AbortableError, ReopenError) as error:
                problem = error  # of another driver, or of a commit: read what is stored now
                continue
            was = plan.was if entries else 0
            self._listener(LedgerSharded(prefix, batch, query, plan.shards, was, adopted=plan.unchecked))
        raise LedgerChangedError(
            f"{self.store}: no agreement on {self._shards} shards in {_TRIES} tries; the last one: {problem}. Is "
            "another driver at work under this name with another number? Fix: stop one of them"
        ) from problem

    def is_adopted(self, batch: int, query: str) -> bool:
        """Whether a person has said, for this batch of this query, to pass over a refusal."""
        return self._adopt == BatchPlan(query, batch, self._shards).token

    def committed_before(self) -> str:
        """What says that this sink has committed before, although nothing else is left of it; "" if nothing does."""
        return self.store.committed_before(range(self._shards))

    def require_written(self, plan: BatchPlan) -> None:
        """Look from outside whether every shard's entry says that the batch is written; else a LedgerChangedError."""
        entries = self.store.entries(self.store.read(range(plan.shards)))
        if unwritten := [k for k in range(plan.shards) if not plan.after.is_said_by(entries.get(k))]:
            raise LedgerChangedError(
                f"{self.store}: batch {plan.batch} ran, but the ledger does not say so of the shards {unwritten}. Is "
                "another driver at work under this name? Fix: stop one of them"
            )

    def refresh(self, last: LedgerEntry | None) -> None:
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
        found = store.marks() if store.inputs else {}
        # With the ids that they say: those of now would hide that a topic was created anew since.
        ids = OffsetVector(topic_ids=dict(stored_topic_ids(found, with_more=True)))
        marks = stored_positions(found).merged(ids)
        store.replace(0, stored[0], first if store.inputs else replace(first, marks=0), marks=marks)
        at_once(lambda k: store.replace(k, stored[k], ours[k]), ours.keys() - {0})
        self._listener(LedgerRefreshed(store.prefix, first.next_batch))

    # --- inside ------------------------------------------------------------------------------------

    def _locate(self) -> None:
        """Find where the ledger stands: where it was begun, whatever the order of the outputs is now."""
        places = self.store.places(self._outputs)
        # Several: it was moved once, by an order to adopt; where it was committed last, it is.
        topic = max(places, key=lambda one: places[one].at_s, default=self._outputs[0])
        self.store = replace(self.store, topic=topic)
        self._empty = [] if places else self._outputs

    def _read(self) -> dict[int, Committed]:
        stored = self.store.read(range(self._shards))
        needed = reach(self.store.entries(stored).get(0), self._shards)
        return stored | self.store.read(range(self._shards, needed))

    def _reshard(self, plan: BatchPlan, stored: Mapping[int, Committed]) -> None:
        """Rewrite every entry; see `eos.spark.ledger` for the order and why."""
        first, store = replace(plan.rewritten, marks=plan.marks), self.store
        begun = store.replace(0, stored.get(0), replace(first, was=plan.was), empty=self._empty or ())
        at_once(lambda k: store.replace(k, stored.get(k), plan.rewritten), plan.to_rewrite[1:])
        store.replace(0, begun, first)
