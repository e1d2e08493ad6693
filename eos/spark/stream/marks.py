"""The input of a streaming query, held against the topics and logs that the batches before were read from.

Spark's checkpoint stores offsets by the topic's name. A topic that was deleted and created anew, or a log that was
truncated and has grown again, is read on from the old offset, and the records below it are never processed. So the commit log
keeps *marks*: in the transaction that writes shard 0's entry, its group commits the offsets behind the batch on the input
partitions themselves, each with the topic's id and the leader epoch. Kafka drops them together with a deleted topic, so an
entry also says how many there are: marks that are gone are as telling as marks with another id.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Self

from eos.errors import ConfigError, OffsetGapError, UsageError
from eos.group.topics import stored_topic_ids
from eos.guards.truncated import refuse_truncated
from eos.kafka.admin import Mark
from eos.kafka.group_offsets import stored_positions
from eos.offsets import OffsetVector, Partition
from eos.settings import Settings
from eos.spark.analysis.source_offsets import Places, input_digest, places_of
from eos.spark.session.checkpoint import Checkpoint, RunningQuery
from eos.spark.session.jvm import kind_of, nodes
from eos.spark.source import InputLogs
from eos.spark.stream.commit_log import CommitLog
from eos.spark.stream.log_entry import LogEntry
from eos.spark.stream.log_rules import BatchPlan, LedgerChangedError, LedgerError
from eos.spark.stream.plans import merged, planned_offsets, planned_sources, read_before

_READS = "StreamingDataSourceV2ScanRelation"  # of a source with records in this batch; else an empty relation stands there


def input_of(log: CommitLog, plan: BatchPlan, query: RunningQuery) -> tuple[BatchPlan, OffsetVector]:
    """The plan with a digest of its input, and the batch's marks, once its topics and logs are those of the marks before.

    They are not compared where a person accepts others.

    Raises:
        LedgerError: the batch does not begin where the last one that is written has ended.
        LedgerChangedError: another driver has planned the batch too.
        UsageError: the query does not read one of the topics.
        OffsetGapError: a topic was deleted and created anew, or a log was truncated.
        ConfigError: the checkpoint cannot be reached.
        UnavailableError: the cluster did not answer in time.
    """
    topics, settings, checkpoint = log.inputs, log.settings, query.checkpoint
    is_another = not plan.batch or plan.unchecked  # or may be: nothing before counts
    earlier = [] if is_another else planned_sources(checkpoint, plan.batch - 1)
    if not topics:
        anew = {} if is_another else _without(planned_offsets(checkpoint, plan.batch), earlier)
        _refuse_unnamed(log, plan.batch, anew)
        refuse_read_again(checkpoint, plan.batch, read_before(checkpoint, plan.batch, anew), merged(earlier))
        return plan, OffsetVector()
    running = _running_input(query, plan.batch, topics)
    _refuse_unnamed(log, plan.batch, running.unnamed)
    is_done = 0 in plan.done
    marked_with = plan.batch if is_done else plan.batch - 1
    is_checked = plan.marks > 0 and marked_with >= 0 and not plan.unchecked
    before = planned_sources(checkpoint, plan.batch) if is_done else earlier
    logs = logs_of_input(settings)
    # The ids first: what is read after them counts in these topics, or the commit is refused.
    topic_ids = logs.ids({partition.topic for partition in running.ends})
    # Also where the batches before were not told of their input: what is read from its beginning has no mark, or is back.
    reads = {**running.ends, **dict.fromkeys(running.unnamed, 0)}
    anew = {} if is_another or is_done else _without(reads, earlier)
    marks = log.marks(running.ends.keys() if is_checked else running.ends.keys() & anew.keys())
    again = read_before(checkpoint, plan.batch, anew)
    # A mark goes with its topic, so what was read behind it, while the sink was not told of it, was read of the same one.
    known = {p: max(mark.offset, again.pop(p, 0)) for p, mark in marks.items()}
    written = merged(before) | known
    for places in [running.ends] if is_done else running.begins(before if is_checked else []):
        refuse_gap(checkpoint, marked_with, known, places, written)
    refuse_read_again(checkpoint, plan.batch, again, written)
    logs.refuse_recreated(stored_topic_ids(marks, with_more=True), topic_ids)
    read = {p for p in merged(before if is_checked else []) if p.topic in topics}
    if unmarked := sorted(read - marks.keys()):
        told_of_all = len(read) <= plan.marks or len(read & marks.keys()) < plan.marks
        raise _gone(log, unmarked) if told_of_all else UntoldInputError.of(unmarked)
    stable = logs.at(Mark.LAST_STABLE, running.ends)
    # In the epoch that the mark was made in, the leader has only appended; only another one may have truncated its log.
    doubtful = {p: one for p, one in marks.items() if one.leader_epoch not in (None, stable.epoch_of(p))}
    refuse_truncated(settings, log.group_of(0), stored_positions(doubtful), timeout_s=settings.open_timeout_s)
    epochs = {p: epoch for p in running.ends if (epoch := stable.epoch_of(p)) is not None}
    return replace(plan, input=input_digest(running.sources)), OffsetVector(running.ends, epochs, topic_ids)


def refuse_unread(log: CommitLog, adopt: str | None) -> None:
    """Refuse an input topic that was created anew behind the last batch, where Spark has planned none that would show it.

    Spark plans no batch where a topic ends as it did before, though its records are others. They would count as processed.

    Args:
        log: whose marks they are.
        adopt: what a refusal said to pass, if a person has decided so.

    Raises:
        OffsetGapError: says which topic, and the ways out.
        ConfigError: a topic does not exist.
        UnavailableError: the cluster did not answer in time.
    """
    first = log.entries(log.read([0])).get(0) if log.inputs else None
    if first is None or not first.marks:
        return
    marks = log.marks(InputLogs(log.settings).partitions(*log.inputs))
    if gone := sorted(set(log.inputs) - {partition.topic for partition in marks}):
        error = _gone(log, gone) if len(marks) < first.marks else UntoldInputError.of(gone)
        _refuse(log, BatchPlan(first.query, first.next_batch, first.shards), error, adopt)


def refuse_lost_marks(log: CommitLog, first: LogEntry, checkpoint: Checkpoint, adopt: str | None) -> None:
    """As `refuse_unread`, at the start of a query, whose inputs may be others by now. Raises as that does, and UnreadableError."""
    if gone := lost_marks(log, first, checkpoint):
        # By the batch that runs next: the one that the ledger has as the last may come once more.
        _refuse(log, BatchPlan(first.query, checkpoint.next_batch(), first.shards), _gone(log, gone), adopt)


def lost_marks(log: CommitLog, first: LogEntry, checkpoint: Checkpoint) -> list[Partition]:
    """The input partitions that the last batch has read, and whose marks Kafka has dropped with their topics.

    Args:
        log: whose marks they are.
        first: shard 0's entry.
        checkpoint: says what that batch has read.

    Raises:
        ConfigError: such a topic does not exist any more, or the checkpoint cannot be reached.
        UnavailableError: the cluster did not answer in time.
    """
    read = planned_offsets(checkpoint, first.next_batch - 1) if first.marks else {}
    marks = log.marks(read) if read else {}
    if len(marks) >= first.marks:
        return []  # the others never had one: the sink was not told of all inputs
    gone = sorted(p for p in read.keys() - marks.keys() if p.topic in log.inputs)
    InputLogs(log.settings).partitions(*sorted({partition.topic for partition in gone}))
    return gone


def logs_of_input(settings: Settings) -> InputLogs:
    """The input's logs; of a topic that was deleted, the error says what a query may do."""

    def gone(topics: Iterable[str]) -> ConfigError:
        return ConfigError(
            f"an input topic was deleted while the query ran: topic {', '.join(sorted(topics))} does not exist. Nothing more of the batch "
            "was written. Fix: leave it out of the inputs, and start with a new checkpoint and --start earliest or latest for the others; "
            "or create it anew, and the next start says how to go on with it"
        )

    return InputLogs(settings, gone=gone)


class UntoldInputError(OffsetGapError):
    """Nothing shows whether an input is the one that it was, because the sink was not told of it before."""

    @classmethod
    def of(cls, what: Iterable[Partition | str]) -> Self:
        return cls(
            f"{', '.join(map(str, what))}: the query has read it, and the ledger has no mark of that, because inputs=[…] did not name it "
            "before. So nothing shows whether the topic is still the one that it was."
        )


class ReadBeforeError(OffsetGapError):
    """Nothing shows whether an input that is read from its beginning is one that the query has read before.

    Attributes:
        put_right: how the checkpoint is put right, if it is.
    """

    put_right = ""


def way_out(plan: BatchPlan, error: OffsetGapError) -> str:
    """What a person may do where the input of a batch is another one than before, or nothing shows whether it is."""
    if isinstance(error, ReadBeforeError):
        return (
            f"Fix: if each of these topics is the one that it was, {error.put_right}. Leave a topic that was deleted and created anew since out "
            f"of these lines, and the next start asks for it alone. If all of these were, pass once: {plan.to_pass}"
        )
    if isinstance(error, UntoldInputError):
        return (
            f"Fix: if no topic of that name was deleted since the query began, pass once: {plan.to_pass}. (Of one that was created anew, "
            "the records below the checkpoint's offsets would never be processed.)"
        )
    return (
        "Fix: to process the new topic or log from its beginning, start with a new checkpoint and --start earliest (the "
        "ledger then says what to adopt). To go on from the checkpoint's offsets, so that records below them are never "
        f"processed, pass once: {plan.to_pass}"
    )


def refuse_gap(
    checkpoint: Checkpoint,
    batch: int,
    known: Mapping[Partition, int],
    expected: Mapping[Partition, int],
    written: Places,
) -> None:
    """Refuse to go on where the last batch that is written did not end: what lies between would never be processed, or twice.

    ``known`` says where ``batch`` ended, by its marks; ``expected`` where it ended, as the batch that runs takes it; ``written`` how far
    each partition was read, as far as that is sure.

    Raises:
        LedgerError: says where, and how the checkpoint is put right.
    """
    if other := sorted(p for p, at in known.items() if p in expected and at != expected[p]):
        first = other[0]
        raise LedgerError(
            f"batch {batch} was written up to {first} offset {known[first]}, and this query takes it for written up to "
            f"{expected[first]}: what lies between would be {'skipped' if known[first] < expected[first] else 'repeated'}. Two "
            f"drivers have planned the batch in this checkpoint, or a file of it was restored, or {first.topic} was no input for a while. "
            f"Fix: {_put_right(checkpoint, batch, written)}"
        )


def refuse_read_again(checkpoint: Checkpoint, batch: int, again: Places, written: Places) -> None:
    """Refuse to read from its beginning what the query has read before: what is written of it would be written again.

    Of what the sink was told of, a mark says so, as long as the topic was not deleted. Of the rest only older batches' plans do.

    Args:
        checkpoint: of the query.
        batch: the one that runs.
        again: what it reads from its beginning, and how far it was read before.
        written: how far each partition was read.

    Raises:
        ReadBeforeError: names the first one.
    """
    if again:
        named = ", ".join(f"{p} up to offset {at}" for p, at in sorted(again.items()))
        error = ReadBeforeError(
            f"batch {batch} reads from its beginning what this query has read before, and has left out since: {named}. What was written of it "
            "would be written again, if it is the topic that it was."
        )
        error.put_right = _put_right(checkpoint, batch - 1, {**written, **again})
        raise error


def _put_right(checkpoint: Checkpoint, batch: int, written: Places) -> str:
    ends: dict[str, dict[str, int]] = {}
    for partition, offset in sorted(written.items()):
        ends.setdefault(partition.topic, {})[str(partition.number)] = offset
    return (
        f"with every driver stopped, put {checkpoint}/offsets/{batch} right, whose last lines are to say {json.dumps(ends)}, and remove "
        "the files of later batches there: see 'Two drivers of one query' in docs/operations/spark.md"
    )


# --- inside ----------------------------------------------------------------------------------------------


def _refuse(log: CommitLog, plan: BatchPlan, error: OffsetGapError, adopt: str | None) -> None:
    if plan.token != adopt:
        raise OffsetGapError(f"{log}: {error} {way_out(plan, error)}")


def _gone(log: CommitLog, what: Iterable[Partition | str]) -> OffsetGapError:
    return OffsetGapError(
        f"{', '.join(map(str, what))}: the ledger has fewer marks than the batch before has made, and none of these. Kafka drops it together "
        "with a topic that is deleted, so the topic was deleted and created anew; or another program has committed in the group "
        f"{log.group_of(0)}, or deleted from it, and the topic is the one that it was; or inputs=[…] did not name it then."
    )


def _without(places: Places, earlier: Iterable[Places]) -> Places:
    """What of these the batch before has not read."""
    read = merged(earlier)
    return {p: at for p, at in places.items() if p not in read}


def _refuse_unnamed(log: CommitLog, batch: int, unnamed: Collection[Partition]) -> None:
    """Refuse a batch that reads a former input of the sink: nothing would show which of its records are written already."""
    others = [p for p in unnamed if p.topic != log.topic]
    if left_out := sorted({p.topic for p in log.marks(others)} if others else ()):
        raise UsageError(
            f"batch {batch} reads {', '.join(left_out)}, once among the sink's inputs, and inputs=[…] does not name that now. Nothing was "
            "written: which of its records are written already would not show. Fix: name it, or do not read it. If that batch was planned "
            "before it was left out: start with it, in the query and in inputs=[…], until the batch is written; and leave it out then"
        )


class _RunningInput(NamedTuple):
    """What the batch that runs reads.

    Attributes:
        sources: of each that has new records, where it begins and ends.
        ends: where the batch ends in the sink's inputs; of a partition that two sources read, the further place.
        unnamed: what the query reads beside the sink's inputs.
    """

    sources: Sequence[tuple[Places, Places]]
    ends: Places
    unnamed: Collection[Partition]

    def begins(self, before: Sequence[Places]) -> Iterator[Places]:
        """Up to where the batch before was written, as this one takes it: once per source.

        A source that goes on where it has ended by that batch's plan takes it for written as that says, though another source that
        reads the same partition may be ahead. What a source reads for the first time it reads from the beginning, and takes for
        written up to nowhere: whatever another source has read of it, and where a topic was taken out and is back.
        """
        written = merged(before)
        read = {partition for _, end in self.sources for partition in end}
        yield {p: at for p, at in self.ends.items() if p not in read}
        for begin, end in self.sources:
            known = written if begin in before else {}
            yield {p: known.get(p, begin[p]) if p in begin else 0 for p in end if p in self.ends}


def _running_input(query: RunningQuery, batch: int, topics: Sequence[str]) -> _RunningInput:
    """What the batch that runs reads, by the plan that Spark runs.

    Its file in the checkpoint need not say the same: Spark writes it as "look, then rename", which is no step of its own on
    an object store, so of two drivers that plan a batch the later one's file may stay.
    """
    planned = planned_sources(query.checkpoint, batch)
    every = merged(planned)
    ends = {p: at for p, at in every.items() if p.topic in topics}
    if unread := set(topics) - {partition.topic for partition in ends}:
        raise UsageError(
            f"the sink's inputs name {', '.join(sorted(unread))}, of which batch {batch} reads nothing: "
            f"{query.checkpoint}/offsets/{batch} has no such topic. Fix: inputs=[…] are the topics that the query reads on the "
            "cluster that it writes to. If that batch was planned before a topic was added, or while one was left out: start once "
            "without the topic, in the query and in inputs=[…]"
        )
    sources: list[tuple[Places, Places]] = []
    for node in nodes(query.execution.logical()):
        if kind_of(node) == _READS and node.endOffset().isDefined():
            begin = node.startOffset()
            end = places_of(json.loads(node.endOffset().get().json()))
            sources.append((places_of(json.loads(begin.get().json())) if begin.isDefined() else {}, end))
    if other := next((end for _, end in sources if end not in planned), None):
        first, at = min(other.items() - every.items() or other.items())
        raise LedgerChangedError(
            f"batch {batch} ends at {first} offset {at} here, and {query.checkpoint}/offsets/{batch} says "
            f"{every.get(first)}: another driver works with this checkpoint, and has planned the batch too. Nothing of it was "
            "written here. Fix: stop one of the two, and start the other one again"
        )
    return _RunningInput(sources, ends, every.keys() - ends.keys())
