"""The rules of a streaming sink's ledger: which shards of a batch are written already, and when to refuse.

The ledger is one consumer group per shard, ``<group>.ledger.<shard>``, whose committed offset on one existing
partition is the number of the next batch. It is committed in the transaction that writes the shard's records, so a
shard's records are visible if and only if its entry names the next batch. Nothing here talks to Kafka.

How many shards there are has to be agreed on as well: two drivers that share a checkpoint but not this number would
write a part of the rows twice and another part never. So every entry says it, a write is refused under its fence if
it says another, and a change (a *resharding*) rewrites every entry before the first record is written: shard 0 first,
with ``was``, the number until then; then the others; then shard 0 once more, without ``was``. Each step is made under its
shard's fence and only over the entry that was read. Of two drivers that do so at once only one gets to its last step: the
first to write shard 0 finds it changed, or has finished before the other began, whose steps then stop the writes of the
first. It is never begun once a shard of the batch is written: such a batch is finished with its own number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from eos.errors import ConfigError
from eos.offsets import next_offset
from eos.spark.done import ConflictError
from eos.spark.ledger_entry import Content, LedgerEntry


class LedgerError(ConfigError):
    """The ledger and the batch do not belong together: a person has to decide. The message says how."""


class LedgerChangedError(ConflictError):
    """Another driver has written the ledger since it was read. What it wrote stands."""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What is left to do of a batch.

    Immutable and picklable: the executors get it as it is.

    Args:
        query: the id of the streaming query.
        batch: its number.
        shards: how many there are in this batch.
        done: the shards that are written, with what was written.
        entries: per shard that is not, the entry that a write must find.
        was: so many shards there were, and their entries have to be rewritten before anything else is written. 0: nothing to
            rewrite.
        unchecked: a person has said that what is done is accepted as it is.
        marks: how many input partitions have a mark beside shard 0's entry.
        input: a digest of the offsets between which its input lies (`Content.input`).
    """

    query: str
    batch: int
    shards: int
    done: Mapping[int, Content] = field(default_factory=dict)
    entries: Mapping[int, LedgerEntry] = field(default_factory=dict)
    was: int = 0
    unchecked: bool = False
    marks: int = 0
    input: str = ""

    @property
    def token(self) -> str:
        """What a person passes as ``adopt`` to decide for this batch of this query, and for no other."""
        return f"{self.query}:{self.batch}"

    @property
    def after(self) -> LedgerEntry:
        """The entry of a shard when its part of the batch is written."""
        return LedgerEntry(next_offset(self.batch), self.query, self.shards)

    @property
    def to_rewrite(self) -> range:
        """The shards whose entries have to be rewritten before anything else is written."""
        return range(max(self.was, self.shards) if self.was else 0)

    @property
    def rewritten(self) -> LedgerEntry:
        """What a resharding leaves in every entry."""
        return LedgerEntry(self.batch, self.query, self.shards)

    def is_done(self, shard: int, found: LedgerEntry | None) -> bool:
        """Whether a shard's entry, read under its fence, says that it is written; if not, it is what the plan found.

        Raises:
            LedgerChangedError: it is neither what the plan found nor what the plan's own write would leave.
        """
        expected = self.entries.get(shard)
        # The very same entry: one that says the same may be a step of a resharding that is not complete.
        if expected is not None and expected == found:
            return False
        if self.after.is_said_by(found):
            return True
        raise LedgerChangedError(
            f"batch {self.batch}, shard {shard}: its ledger says {_shown(found)} now and said {_shown(expected)} when "
            "the batch was planned. Another driver works with this checkpoint or under this name. Fix: stop one of them"
        )


def reach(first: LedgerEntry | None, shards: int) -> int:
    """How many shards' entries a decision needs.

    Args:
        first: the entry of shard 0.
        shards: how many are wanted.
    """
    return shards if first is None else max(shards, first.shards, first.was)


def decide(
    batch: int,
    query: str,
    shards: int,
    stored: Mapping[int, LedgerEntry],
    *,
    where: str,
    adopt: str | None = None,
    begun: str = "",
) -> BatchPlan:
    """What is left to do of a batch.

    Args:
        batch: its number.
        query: the id of the streaming query that asks.
        shards: how many are wanted.
        stored: the entries of the first `reach` shards, as far as there are any.
        where: the ledger's groups, for messages.
        adopt: what a refusal said to pass, if a person has decided so.
        begun: what says that records of the query's first batch may be written, though there may be no entry; "" if
            nothing does.

    Raises:
        LedgerError: ledger and batch do not belong together; nothing may be written or skipped.
    """
    first = stored.get(0)
    marks = first.marks if first is not None else 0
    anew = BatchPlan(query, batch, shards, was=reach(first, shards), marks=marks)
    try:
        plan = _decide(batch, query, shards, stored, begun)
    except LedgerError as error:
        if adopt != anew.token:
            raise LedgerError(f"{where}: {error} {_adoption(anew)}") from None
        return replace(anew, unchecked=True)
    return replace(plan, unchecked=adopt == anew.token, marks=marks)


def _decide(batch: int, query: str, shards: int, stored: Mapping[int, LedgerEntry], begun: str) -> BatchPlan:
    first = stored.get(0)
    if first is None:
        if batch == 0 and not stored and not begun:
            return BatchPlan(query, batch, shards, was=shards)
        known = "is not the first" if batch else f"was begun before ({begun or 'another shard has an entry'})"
        raise LedgerError(
            f"batch {batch} {known}, but no entry of shard 0 says which batches are written. Its offset has "
            "expired (offsets.retention.minutes, 7 days by default, without a batch), or its group, or the topic that "
            "it stood on, was deleted; or another sink has this name. Fix, if an output was taken away from this sink's: "
            "name it again, the ledger may stand on it."
        )
    if first.query != query:
        raise LedgerError(
            f"the ledger is that of the query {first.query}, whose next batch is {first.next_batch}; this is the "
            f"query {query} with batch {batch}. The checkpoint was deleted, or it is another one, or two queries share "
            "a name. Fix: start with the checkpoint that belongs to the ledger, or give the sink a name of its own."
        )
    if not batch <= first.next_batch <= next_offset(batch):
        _raise_misplaced(batch, 0, first)
    there = [k for k in range(max(first.shards, first.was)) if k in stored]
    written = {k: stored[k] for k in there if _is_written(stored[k], batch, query)}
    if written:
        return _unfinished(batch, query, stored, written)
    # The driver that began a resharding had found the entries of all shards that there were in their place; at the
    # beginning of the ledger there were none, and that may have been interrupted.
    for k in range(first.was or first.shards):
        if k in stored or batch > 0 or not first.was:
            _require_at(batch, query, k, stored.get(k))
    settled = (
        not first.was and {stored[k].shards for k in there} == {first.shards} and len(there) == first.shards
    )
    if settled and first.shards == shards:
        return BatchPlan(query, batch, shards, entries={k: stored[k] for k in range(shards)})
    return BatchPlan(query, batch, shards, was=first.was or first.shards)


def _unfinished(
    batch: int, query: str, stored: Mapping[int, LedgerEntry], begun: Mapping[int, LedgerEntry]
) -> BatchPlan:
    """A batch of which shards are written is finished with the number of shards that it was begun with."""
    counts = {entry.shards for entry in begun.values()}
    if len(counts) > 1:
        raise LedgerError(
            f"batch {batch} was written as {' and as '.join(str(count) for count in sorted(counts))} shards: "
            "another driver is changing their number, or another program than a sink has written the ledger."
        )
    shards = counts.pop()
    todo = [k for k in range(shards) if k not in begun]
    for k in todo:
        _require_at(batch, query, k, stored.get(k))
    return BatchPlan(
        query,
        batch,
        shards,
        done={k: entry.content for k, entry in begun.items() if k < shards},
        entries={k: stored[k] for k in todo},
    )


def _is_written(entry: LedgerEntry, batch: int, query: str) -> bool:
    return entry.query == query and entry.next_batch == next_offset(batch)


def _require_at(batch: int, query: str, shard: int, entry: LedgerEntry | None) -> None:
    if entry is None:
        raise LedgerError(
            f"the entry of shard {shard} is missing, so nothing says whether it is written in batch {batch}. Its "
            "offset has expired, or was deleted."
        )
    if entry.query != query:
        raise LedgerError(f"the entry of shard {shard} is of another query, {entry.query}.")
    if entry.next_batch != batch:
        _raise_misplaced(batch, shard, entry)


def _raise_misplaced(batch: int, shard: int, entry: LedgerEntry) -> None:
    direction = "goes back" if entry.next_batch > batch else "jumps"
    raise LedgerError(
        f"this is batch {batch}, but the next batch of shard {shard} is {entry.next_batch}: the number {direction}. The "
        "checkpoint was restored from an older copy, files of it are missing, two drivers use copies of one, or the sink was "
        "not called for a batch (if not df.isEmpty(): …). Fix: start with the checkpoint that was last in use; call the sink "
        "for each batch, also for an empty one."
    )


def _adoption(plan: BatchPlan) -> str:
    return (
        f"If you know that everything before this query's batch {plan.batch} is written and nothing of it, pass once: "
        f"adopt={plan.token!r}. Batch {plan.batch} is then written as a whole"
    )


def different_content(plan: BatchPlan, differing: Mapping[int, tuple[str, str]]) -> LedgerError:
    """The error for a batch that was computed again, where shards that are written came out otherwise.

    Args:
        plan: of the batch.
        differing: per shard, what is written and what was computed now.
    """
    shown = "; ".join(f"shard {k}: written {was}, now {now}" for k, (was, now) in sorted(differing.items()))
    return LedgerError(
        f"batch {plan.batch} is written in part, and computing it again gives other rows, or reads another part of the input: "
        f"{shown}. Either a transform is not deterministic (rand, uuid, the clock, a lookup that has changed), so that rows may have "
        "moved from one shard to another, or the checkpoint was restored from a copy that did not know this batch yet, or two drivers "
        "have planned it or the batch before. Fix: one driver, with the checkpoint that was last in use and the inputs=[…] that the "
        "batch was begun with, and a deterministic transform. If you accept what is written as "
        f"those shards' part of the batch, pass once: adopt={plan.token!r}"
    )


def _shown(entry: LedgerEntry | None) -> str:
    if entry is None:
        return "nothing"
    change = f" (was {entry.was})" if entry.was else ""
    return f"next batch {entry.next_batch} of {entry.shards} shards{change} of query {entry.query}"
