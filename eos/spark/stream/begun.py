"""Begun: the file by which a sink notes in a query's checkpoint that it has begun to write, and to which topics.

The commit log alone cannot tell a first batch that was never begun from one whose entries are forgotten. Nor does it show that
two sinks of one query write to the same topic: a sink that was renamed, or that a second driver runs under another name, has
another commit log, in which nothing is written yet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from eos.errors import EosError
from eos.offsets import Partition
from eos.shards import parse_transactional_id
from eos.spark.session.checkpoint import Checkpoint, RunningQuery
from eos.spark.stream.log_driver import CommitLogDriver
from eos.spark.stream.log_entry import Division, LogEntry
from eos.spark.stream.log_rules import BatchPlan, LedgerError, decide
from eos.spark.stream.marks import lost_marks

_START, _END = "eos-ledger-", "begun"
_OUTPUTS = "outputs:"


class BegunNote:
    """The note of one sink, by the prefix of its transactional.ids, and the topics that it writes to."""

    def __init__(self, checkpoint: Checkpoint, prefix: str, outputs: Iterable[str]) -> None:
        self.checkpoint = checkpoint
        self._prefix = prefix
        self.outputs = frozenset(outputs)
        self.name = _name(prefix)

    def __str__(self) -> str:
        return f"{self.checkpoint}/{self.name}"

    def text(self) -> str | None:
        """What is noted; None: the sink has not begun."""
        return self.checkpoint.text(self.name)

    def write(self, ledger: str) -> None:
        """Note that the sink begins, with its commit log's place."""
        lines = [ledger, f"{_OUTPUTS} {' '.join(sorted(self.outputs))}"]
        self.checkpoint.write(self.name, "\n".join(lines))

    def delete(self, prefix: str = "") -> None:
        """As if the sink, or the other one with this prefix, had not begun."""
        self.checkpoint.delete(_name(prefix or self._prefix))

    def rivals(self) -> Mapping[str, frozenset[str]]:
        """The other sinks of the query that write to a topic of this one, with all of theirs; by the prefix of their ids."""
        found: dict[str, frozenset[str]] = {}
        for name in self.checkpoint.names():
            prefix = name.removeprefix(_START).removesuffix(_END)
            if name == self.name or name != _name(prefix):
                continue
            theirs = _outputs(self.checkpoint.text(name) or "")
            if theirs & self.outputs:
                found[prefix] = theirs
        return found


def plan_noted(
    log: CommitLogDriver, outputs: Iterable[str], batch: int, query: RunningQuery, wanted: Division
) -> BatchPlan:
    """The plan of a batch, whose rows would be divided as ``wanted``; a sink's first one in this checkpoint is noted there before anything is written.

    That Spark has planned a batch does not tell whether it was begun: Spark plans before each call, and the call may
    have failed at once.

    Raises:
        LedgerError: commit log and batch do not belong together, or another sink of the query writes to one of the topics.
    """
    note = BegunNote(query.checkpoint, log.store.prefix, outputs)
    noted, former = note.text(), _former(log, note, BatchPlan(query.id, batch, log.shards))
    begun = ""
    if batch == 0:
        begun = log.store.committed_before(range(log.shards)) if noted is None else f"{note}: {noted}"
    plan = log.plan(batch, query.id, query.run, wanted, begun=begun)
    if noted is None or _outputs(noted) != note.outputs:
        note.write(str(log.store))
    try:
        for prefix, one in former.items():
            one.give_up(batch, query.id, log.store.prefix)
            note.delete(prefix)
        if others := note.rivals():  # of another driver, which has looked when this one did
            raise _rivals(note, others, plan)
    except EosError:
        if noted is None:
            note.delete()
        raise
    return plan


def found_at_a_start(log: CommitLogDriver, outputs: Iterable[str], checkpoint: Checkpoint) -> LogEntry | None:
    """Shard 0's entry, from which the query goes on; None: there is nothing to go on from, or a person has decided so.

    Where a query has no new input, no batch comes that would show what is wrong, and its input counts as processed.

    Raises:
        LedgerError: ledger and checkpoint do not belong together, or it stands on none of the outputs; or another sink of the query
            writes to one of the topics.
        UnreadableError: a file of the checkpoint is not whole.
    """
    query, batch = checkpoint.query_id(), checkpoint.next_batch()
    if query is None:
        return None
    note = BegunNote(checkpoint, log.store.prefix, outputs)
    _former(log, note, BatchPlan(query, batch, log.shards))
    noted = note.text()
    if noted is None:
        return None
    entries = log.entries()
    first = entries.get(0)
    # As the last batch was divided: what the next one needs is not known yet.
    wanted = (
        Division(log.shards)
        if first is None
        else Division(first.shards, first.in_place, partitions=first.shards)
    )
    begun, where = f"{note}: {noted}", str(log.store)
    decide(batch, query, wanted, entries, run="", where=where, adopt=log.adopt, begun=begun)
    return first if first is not None and first.query == query else None


# --- inside ----------------------------------------------------------------------------------------------


def _former(log: CommitLogDriver, note: BegunNote, plan: BatchPlan) -> dict[str, CommitLogDriver]:
    """The commit logs of other names that a person gives up, by prefix; LedgerError without that, or if one has the batch."""
    rivals = note.rivals()
    former = {prefix: log.under(prefix, outputs) for prefix, outputs in rivals.items()}
    if rivals and log.adopt != plan.token:
        unread = [
            partition
            for one in former.values()
            if (first := one.entries().get(0)) is not None and first.query == plan.query
            for partition in lost_marks(one.store, first, note.checkpoint)
        ]
        raise _rivals(note, rivals, plan, unread)
    for one in former.values():
        one.require_unwritten(plan.batch, plan.query)
    return former


def _rivals(
    note: BegunNote, rivals: Mapping[str, frozenset[str]], plan: BatchPlan, unread: Collection[Partition] = ()
) -> LedgerError:
    named = "; ".join(
        f"the sink {_sink_of(prefix)} writes to {', '.join(sorted(topics & note.outputs))}"
        for prefix, topics in sorted(rivals.items())
    )
    also = (
        f". And {', '.join(map(str, sorted(unread)))} was deleted and created anew since that one's last batch: under this name, "
        "records below the checkpoint's offsets are never processed. Under the former one the refusal says what else can be done"
        if unread
        else ""
    )
    return LedgerError(
        f"{note}: in this query's checkpoint {named} too. Under two names every row of a batch would be written there twice. Fix: "
        "the name and the group that the sink had (it was renamed, or a second driver runs it under another name); or one sink for "
        "all rows of a topic. To give the other name up for good, between two batches, pass once: "
        f"{plan.to_pass}. It cannot write then any more{also}"
    )


def _sink_of(prefix: str) -> str:
    """A sink by the prefix of its transactional.ids, for messages."""
    shard = parse_transactional_id(f"{prefix}o.0")
    return f"{shard.app!r}" if shard.group == shard.app else f"{shard.app!r} of the group {shard.group!r}"


def _name(prefix: str) -> str:
    return f"{_START}{prefix}{_END}"


def _outputs(text: str) -> frozenset[str]:
    lines = [line.removeprefix(_OUTPUTS) for line in text.splitlines() if line.startswith(_OUTPUTS)]
    return frozenset(" ".join(lines).split())
