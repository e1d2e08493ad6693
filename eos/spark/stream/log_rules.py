"""The rules of a streaming sink's commit log: which shards of a batch are written already, and when to refuse.

The commit log is one consumer group per shard, ``<group>.ledger.<shard>``, whose committed offset on one existing
partition is the number of the next batch. It is committed in the transaction that writes the shard's records, so a
shard's records are visible if and only if its entry names the next batch. Nothing here talks to Kafka.

How a batch is divided into shards has to be agreed on as well: how many there are, and whether they are the input's
partitions (*in place*) or those of a shuffle by key. Two drivers that share a checkpoint but not this division would
write a part of the rows twice and another part never. So every entry says it, a write is refused under its fence if
it says another, and a change (a *resharding*) rewrites every entry before the first record is written: shard 0 first,
with ``was``, the number until then; then the others; then shard 0 once more, without ``was``. Each step is made under its
shard's fence and only over the entry that was read. Of two drivers that do so at once only one gets to its last step: the
first to write shard 0 finds it changed, or has finished before the other began, whose steps then stop the writes of the
first. It is never begun once a shard of the batch is written: such a batch is finished with its own division. Any rows can be
shuffled by key, so that is always possible; a batch that was begun in place is refused where its rows have left their tasks since.

Drivers may also differ in a batch's input: copies of a checkpoint, or a file of it that a later one has replaced. Each shard's
fence does not see that, and they would write other shards of one batch. So a batch that nobody has begun is written only over
entries of the same *run* of the query; a run that finds others takes them over, in the steps of a resharding to the division
that there is. After it, no driver that has planned before can write. A batch that is begun is finished by whoever reads the
same input (`eos.spark.stream.micro_batch`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from eos.errors import ConfigError
from eos.offsets import next_offset
from eos.spark.stream.log_entry import Checksum, Division, LogEntry
from eos.spark.write.commit_record import ConflictError


class LedgerError(ConfigError):
    """The commit log and the batch do not belong together: a person has to decide. The message says how."""


class LedgerChangedError(ConflictError):
    """Another driver has written the commit log since it was read. What it wrote stands."""


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
        first: shard 0's entry, if that is written.
        was: so many shards there were, and their entries have to be rewritten before anything else is written. 0: nothing to
            rewrite.
        unchecked: a person has said that what is done is accepted as it is.
        marks: how many input partitions have a mark beside shard 0's entry.
        input: a digest of the offsets between which its input lies (`Checksum.input`).
        run: of the query, which writes it.
        in_place: whether the shards are the input's partitions (`Division`).
    """

    query: str
    batch: int
    shards: int
    done: Mapping[int, Checksum] = field(default_factory=dict)
    entries: Mapping[int, LogEntry] = field(default_factory=dict)
    first: LogEntry | None = None
    was: int = 0
    unchecked: bool = False
    marks: int = 0
    input: str = ""
    run: str = ""
    in_place: bool = False

    @property
    def division(self) -> Division:
        """How its rows are divided."""
        return Division(self.shards, self.in_place)

    @property
    def token(self) -> str:
        """What a person passes as ``adopt`` to decide for this batch of this query, and for no other."""
        return f"{self.query}:{self.batch}"

    @property
    def to_pass(self) -> str:
        """How a person passes it, for messages."""
        return f"--adopt {self.token} (in code: adopt={self.token!r})"

    @property
    def after(self) -> LogEntry:
        """The entry of a shard when its part of the batch is written."""
        return LogEntry(
            next_offset(self.batch), self.query, self.shards, run=self.run, in_place=self.in_place
        )

    @property
    def leaves(self) -> LogEntry:
        """Shard 0's entry when the batch is written: what this run writes, or what a run before it has written."""
        return self.first or self.after

    @property
    def to_rewrite(self) -> range:
        """The shards whose entries have to be rewritten before anything else is written."""
        return range(max(self.was, self.shards) if self.was else 0)

    def rewritten(self, shard: int) -> LogEntry:
        """What a resharding leaves in an entry. With the same division, it still says what the batch before came to."""
        before = self.entries.get(shard)
        return replace(
            self.after, next_batch=self.batch, checksum=Checksum() if before is None else before.checksum
        )

    def is_done(self, shard: int, found: LogEntry | None) -> bool:
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
            f"batch {self.batch}, shard {shard}: its ledger says {found or 'nothing'} now and said {expected or 'nothing'} when "
            "the batch was planned. Another driver works with this checkpoint or under this name. Fix: stop one of them"
        )


def reach(first: LogEntry | None, shards: int) -> int:
    """How many shards' entries a decision needs, if so many are wanted; ``first`` is that of shard 0."""
    return shards if first is None else max(shards, first.shards, first.was)


def decide(
    batch: int,
    query: str,
    wanted: Division,
    stored: Mapping[int, LogEntry],
    *,
    run: str,
    where: str,
    adopt: str | None = None,
    begun: str = "",
) -> BatchPlan:
    """What is left to do of a batch, for a driver that would divide its rows so.

    Args:
        batch: its number.
        query: the id of the streaming query that asks.
        wanted: how it would divide them, if the batch is not begun.
        stored: the entries of the first `reach` shards, as far as there are any.
        run: of the query that asks.
        where: the commit log's groups, for messages.
        adopt: what a refusal said to pass, if a person has decided so.
        begun: what says that records of the query's first batch may be written, though there may be no entry.

    Raises:
        LedgerError: commit log and batch do not belong together; nothing may be written or skipped.
    """
    first = stored.get(0)
    marks = first.marks if first is not None else 0
    anew = replace(_anew(batch, query, wanted, reach(first, wanted.shards)), marks=marks, run=run)
    try:
        plan = _taken_over(_decide(batch, query, wanted, stored, begun=begun), run)
    except LedgerError as error:
        if adopt != anew.token:
            raise LedgerError(f"{where}: {error} {_adoption(anew)}") from None
        return replace(anew, unchecked=True)
    is_adopted = adopt == anew.token
    # Outside of the above: to write all of a batch anew, of which a part is written, is no way out.
    moved = plan.in_place and plan.done and plan.shards != wanted.partitions
    if moved and (plan.entries or not is_adopted):
        raise _divided_otherwise(plan, wanted, where)
    return replace(plan, unchecked=is_adopted, marks=marks, run=run)


def stands_elsewhere(group: str, topic: str, *, is_input: bool) -> LedgerError:
    """The error for a commit log that stands on a topic which is none of the sink's outputs; ``group`` is shard 0's.

    It is not moved, whatever a person decides: what it says of shards and of the input would have to be moved in one step.
    """
    why, fix = (
        "the sink's outputs do not name that topic",
        "name it again (no row needs to go there), or give this sink a name of its own",
    )
    if is_input:
        why = "that is an input now, whose offsets are kept in the same place"
        fix = "take it out of the inputs, and name it among the outputs again (no row needs to go there)"
    return LedgerError(
        f"{group}, …: the ledger stands on {topic}, and {why}. Fix: {fix}. If the topic is gone for good, delete the ledger's groups: the "
        "next refusal says what to look at, and what to adopt"
    )


def _taken_over(plan: BatchPlan, run: str) -> BatchPlan:
    """The plan, or first the takeover, where nobody has begun the batch and another run's driver may have planned it."""
    if plan.was or plan.done or all(entry.run == run for entry in plan.entries.values()):
        return plan
    return replace(plan, was=plan.shards)


def _anew(batch: int, query: str, wanted: Division, was: int) -> BatchPlan:
    return BatchPlan(query, batch, wanted.shards, was=was, in_place=wanted.in_place)


def _decide(
    batch: int, query: str, wanted: Division, stored: Mapping[int, LogEntry], *, begun: str
) -> BatchPlan:
    first = stored.get(0)
    if first is None:
        if batch == 0 and not stored and not begun:
            return _anew(batch, query, wanted, wanted.shards)
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
    # beginning of the commit log there were none, and that may have been interrupted.
    for k in range(first.was or first.shards):
        if k in stored or batch > 0 or not first.was:
            _require_at(batch, query, k, stored.get(k))
    agreed = {stored[k].division for k in there} == {first.division} and len(there) == first.shards
    anew = _anew(batch, query, wanted, first.was or first.shards)
    if agreed and not first.was and first.division == wanted:
        return replace(anew, was=0, entries={k: stored[k] for k in range(wanted.shards)})
    return anew


def _unfinished(
    batch: int, query: str, stored: Mapping[int, LogEntry], begun: Mapping[int, LogEntry]
) -> BatchPlan:
    """A batch of which shards are written is finished with the division that it was begun with."""
    divisions = {entry.division for entry in begun.values()}
    if len(divisions) > 1:
        raise LedgerError(
            f"batch {batch} was written {', and '.join(sorted(map(str, divisions)))}: "
            "another driver is changing the division, or another program than a sink has written the ledger."
        )
    [division] = divisions
    shards = division.shards
    todo = [k for k in range(shards) if k not in begun]
    for k in todo:
        _require_at(batch, query, k, stored.get(k))
    return BatchPlan(
        query,
        batch,
        shards,
        done={k: entry.checksum for k, entry in begun.items() if k < shards},
        entries={k: stored[k] for k in todo},
        first=begun.get(0),
        in_place=division.in_place,
    )


def _is_written(entry: LogEntry, batch: int, query: str) -> bool:
    return entry.query == query and entry.next_batch == next_offset(batch)


def _require_at(batch: int, query: str, shard: int, entry: LogEntry | None) -> None:
    if entry is None:
        raise LedgerError(
            f"the entry of shard {shard} is missing, so nothing says whether it is written in batch {batch}. Its "
            "offset has expired, or was deleted."
        )
    if entry.query != query:
        raise LedgerError(f"the entry of shard {shard} is of another query, {entry.query}.")
    if entry.next_batch != batch:
        _raise_misplaced(batch, shard, entry)


def _raise_misplaced(batch: int, shard: int, entry: LogEntry) -> None:
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
        f"{plan.to_pass}. Batch {plan.batch} is then written as a whole"
    )


def _divided_otherwise(plan: BatchPlan, wanted: Division, where: str) -> LedgerError:
    way_out = (
        ""
        if plan.entries
        else f". All of it is written: to accept that as the batch, pass once: {plan.to_pass}"
    )
    return LedgerError(
        f"{where}: batch {plan.batch} was begun {plan.division}, of which {sorted(plan.done)} are written. Now its rows would be "
        f"{wanted}: a row would come to another shard, and be written twice or never. Nothing more of it was written. Fix: start once "
        "more with what the batch was begun with (the transform, the source's options, Spark's version) until it "
        f"is written (--until-caught-up), and change that then{way_out}"
    )


def different_content(plan: BatchPlan, differing: Mapping[int, tuple[str, str]]) -> LedgerError:
    """The error for a batch that was computed again: per shard that came out otherwise, what is written and what was computed."""
    shown = "; ".join(f"shard {k}: written {was}, now {now}" for k, (was, now) in sorted(differing.items()))
    return LedgerError(
        f"batch {plan.batch} is written in part, and computing it again gives other rows, or reads another part of the input: "
        f"{shown}. Either the transform was changed, or a setting that it goes by (poison.policy), or it is not deterministic (rand, "
        "sample, uuid, the clock, a lookup that has changed), so that rows may have moved from one shard to another, or the checkpoint was "
        "restored from a copy that did not know this batch yet, or two drivers have planned it or the batch before. Fix: one driver, with the checkpoint that was last in use, and the inputs=[…], the transform "
        "and its settings that the batch was begun with; a deterministic transform. If you accept what is written as "
        f"those shards' part of the batch, pass once: {plan.to_pass}"
    )
