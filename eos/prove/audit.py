"""Audit: a judgement over the transactions themselves, from the cluster's own log.

It needs no transform. Where it is told which input an output is made of, by the output itself (`eos.prove.tagged`) or by the
transform (`eos.prove.origins`), it also sees whether that was committed together with the input's offset.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from eos.offsets import Partition
from eos.prove.log import COMMIT, OFFSETS, Batch, ClusterLog, Decision
from eos.prove.tagged import UNCOUNTED, Tag


class Visible(NamedTuple):
    """A record that a read_committed reader has got, and its tag if it has one."""

    offset: int
    tag: Tag | None = None


@dataclass(frozen=True)
class Audit:
    """What was found.

    Attributes:
        against: what speaks against exactly-once, in words.
        transactions: those of the job that the coordinators have decided, by outcome.
        commits: to which offsets each commit has taken the group.
        beside: other topics that transactions have written to, of which nothing is judged.
    """

    against: tuple[str, ...]
    transactions: Mapping[str, int] = field(default_factory=dict)
    commits: Sequence[Mapping[Partition, int]] = ()
    beside: tuple[str, ...] = ()


class _Segment(NamedTuple):
    """What one transaction has written to a partition: from its first batch there to its marker."""

    partition: Partition
    producer_id: int
    number: int  # of this producer's transactions that have written to this partition
    committed: bool
    ended_ms: int
    ranges: tuple[tuple[int, int], ...]  # first and last offsets of its batches


class _Covering(NamedTuple):
    """A commit of offsets of this producer, by its number, took the committed offset of an input partition to ``end``."""

    end: int
    producer_id: int
    number: int


def audit(
    log: ClusterLog,
    group: str,
    inputs: Collection[str],
    outputs: Collection[str],
    visible: Mapping[Partition, Sequence[Visible]],
    *,
    ledgers: Mapping[str, Collection[str]] | None = None,
) -> Audit:
    """Judge a log that has settled.

    Args:
        log: of the outputs, the offsets and the coordinators.
        group: whose offsets count.
        inputs: the input topics.
        outputs: the output topics.
        visible: what a read_committed reader has got of each output partition, in order of offset.
        ledgers: further groups, each with the topics of offsets that must not go back either.
    """
    found = _Found()
    ours = {OFFSETS, *outputs}
    written = {p: batches for p, batches in log.batches.items() if p.topic in ours - {OFFSETS}}
    segments: dict[Partition, list[_Segment]] = {}
    for partition, batches in log.batches.items():
        segments[partition] = list(_segments(batches, found))
    _against_decisions(log, segments, found)
    for decision in log.decisions:
        if decision.committed and (apart := _without_offsets(decision, ours - {OFFSETS})):
            where = f"{apart}, producer {decision.producer_id}"
            found.add("a transaction with outputs and without offsets", where)
    for partition, batches in written.items():
        seen = [one.offset for one in visible.get(partition, ())]
        _visibility(partition, batches, segments[partition], seen, found)
    offsets = _Offsets(group, set(inputs), found)
    of_ledgers = [_Offsets(name, set(topics), found) for name, topics in (ledgers or {}).items()]
    for partition, batches in sorted(log.batches.items()):
        if partition.topic == OFFSETS:
            for batch in batches:
                for one in (offsets, *of_ledgers):
                    one.add(batch)
    tags = _Tags(offsets.covering, found)
    for partition, records in visible.items():
        tags.add(partition, records, segments.get(partition, ()))
    tags.end()
    kinds = Counter(
        "committed" if one.committed else "aborted"
        for one in log.decisions  # other writers have written to the input
        if any(partition.topic in ours for partition in one.partitions)
    )
    touched = {partition.topic for one in log.decisions for partition in one.partitions}
    beside = tuple(sorted(touched - ours - {*inputs}))
    return Audit(tuple(found.in_words()), kinds, offsets.commits, beside)


class _Found:
    """Anomalies by kind: how many, and the first one."""

    def __init__(self) -> None:
        self._counts = Counter[str]()
        self._first: dict[str, str] = {}

    def add(self, kind: str, where: str) -> None:
        self._counts[kind] += 1
        self._first.setdefault(kind, where)

    def in_words(self) -> Iterator[str]:
        for kind, count in self._counts.items():
            yield f"{count:,} x {kind}; the first: {self._first[kind]}"


def _segments(batches: Sequence[Batch], found: _Found) -> Iterator[_Segment]:
    """By the markers; what has none is still open."""
    open_: dict[int, list[tuple[int, int]]] = {}
    numbers = Counter[int]()
    for batch in batches:
        if batch.marker:
            yield _Segment(
                batch.partition,
                batch.producer_id,
                numbers[batch.producer_id],
                batch.marker == COMMIT,
                batch.written_ms,
                tuple(open_.pop(batch.producer_id, ())),
            )
            numbers[batch.producer_id] += 1
        elif batch.transactional:
            open_.setdefault(batch.producer_id, []).append((batch.base, batch.last))
    for producer_id, ranges in open_.items():
        where = f"{batches[0].partition}@{ranges[0][0]}, producer {producer_id}"
        found.add("a transaction that is still open in the log", where)


def _against_decisions(
    log: ClusterLog, segments: Mapping[Partition, Sequence[_Segment]], found: _Found
) -> None:
    """Each decision has its marker in each of its partitions, and no marker is without one: else the transaction is torn."""
    decided: defaultdict[tuple[int, Partition], list[Decision]] = defaultdict(list)
    for one in sorted(log.decisions, key=lambda one: one.began_ms):
        for partition in one.partitions:
            decided[one.producer_id, partition].append(one)
    marked: defaultdict[tuple[int, Partition], list[_Segment]] = defaultdict(list)
    for partition, parts in segments.items():
        for part in parts:
            marked[part.producer_id, partition].append(part)
    for key in sorted(decided.keys() | marked.keys()):
        producer_id, partition = key
        if partition in log.batches and not _carried_out(decided[key], marked[key]):
            where = (
                f"{partition}, producer {producer_id}: {len(decided[key])} decisions, "
                f"{sum(one.committed for one in decided[key])} of them commits; "
                f"{len(marked[key])} markers, {sum(one.committed for one in marked[key])} of them commits"
            )
            found.add("a partition whose markers are not the coordinator's decisions (torn)", where)


def _without_offsets(decision: Decision, outputs: Collection[str]) -> Partition | None:
    """The first of its outputs, if no offset was committed with them: what they are made of is in no transaction, or in another."""
    written = sorted(one for one in decision.partitions if one.topic in outputs)
    return written[0] if written and all(one.topic != OFFSETS for one in decision.partitions) else None


def _carried_out(decisions: Sequence[Decision], markers: Sequence[_Segment]) -> bool:
    """Whether a producer's transactions were ended in a partition as they were decided, and when.

    A marker may come twice, with nothing in between: a coordinator that is elected anew before it knows that all are written
    writes them again (measured with 4.2: one that was paused, and elected 30 ms after the first ones).
    """
    ended = [False] * len(decisions)
    for marker in markers:
        number = bisect_right(decisions, marker.ended_ms, key=lambda one: one.decided_ms) - 1
        if number < 0 or decisions[number].committed != marker.committed or (ended[number] and marker.ranges):
            return False
        if number + 1 < len(decisions) and marker.ended_ms > decisions[number + 1].began_ms:
            return False
        ended[number] = True
    return all(ended)


def _visibility(
    partition: Partition,
    batches: Sequence[Batch],
    segments: Sequence[_Segment],
    seen: Sequence[int],
    found: _Found,
) -> None:
    aborted = [one for part in segments if not part.committed for one in part.ranges]
    committed = [one for part in segments if part.committed for one in part.ranges]
    plain = [(one.base, one.last) for one in batches if not one.marker and not one.transactional]
    for first, last in aborted:
        for offset in seen[bisect_left(seen, first) : bisect_right(seen, last)]:
            found.add("a record of an aborted transaction that readers see (G1a)", f"{partition}@{offset}")
    for first, last in (*committed, *plain):
        if bisect_right(seen, last) - bisect_left(seen, first) < last - first + 1:
            found.add("a batch that was committed and that readers do not see", f"{partition}@{first}")
    for first, _ in plain:
        found.add("a batch of output outside of any transaction", f"{partition}@{first}")


class _Offsets:
    """By which commit the group passed which input; a commit in a transaction counts from its marker on."""

    def __init__(self, group: str, inputs: set[str], found: _Found) -> None:
        self.commits: list[dict[Partition, int]] = []
        self.covering: defaultdict[Partition, list[_Covering]] = defaultdict(list)
        self._group, self._inputs, self._found = group, inputs, found
        self._at: defaultdict[Partition, int] = defaultdict(int)
        self._pending: defaultdict[int, dict[Partition, int]] = defaultdict(dict)
        self._numbers = Counter[int]()

    def add(self, batch: Batch) -> None:
        """The next batch of the offsets' log."""
        where = f"{batch.partition}@{batch.base}"
        if batch.marker:
            ended = self._pending.pop(batch.producer_id, {})
            if batch.marker == COMMIT:
                self._take(ended, batch.producer_id, where)
            return
        commits = {
            one.partition: one.offset
            for one in batch.commits
            if one.group == self._group and one.partition.topic in self._inputs
        }
        if batch.transactional:
            self._pending[batch.producer_id].update(commits)
        else:
            self._take(commits, -1, where)

    def _take(self, commits: Mapping[Partition, int], producer_id: int, where: str) -> None:
        moved = {partition: offset for partition, offset in commits.items() if offset > self._at[partition]}
        if moved:
            self.commits.append(moved)
        for partition, offset in commits.items():
            was, self._at[partition] = self._at[partition], offset
            if offset < was:
                self._found.add(
                    "a committed offset that went back", f"{partition}: {was} to {offset} ({where})"
                )
            elif offset > was:
                self.covering[partition].append(_Covering(offset, producer_id, self._numbers[producer_id]))
                if producer_id < 0:
                    text = f"{partition} to {offset} ({where})"
                    self._found.add("a commit of offsets outside of any transaction", text)
        self._numbers[producer_id] += 1


class _Tags:
    """Outputs held against the input that they are made of."""

    def __init__(self, covering: Mapping[Partition, Sequence[_Covering]], found: _Found) -> None:
        self._covering, self._found = covering, found
        self._there: defaultdict[tuple[Partition, int], set[int]] = defaultdict(set)
        self._of: dict[tuple[Partition, int], int] = {}

    def add(self, partition: Partition, records: Iterable[Visible], segments: Sequence[_Segment]) -> None:
        """The records of an output partition."""
        part_of = _part_of(segments)
        last: dict[Partition, tuple[int, int]] = {}
        together: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        for offset, tag in records:
            if tag is None:
                continue
            where = f"{partition}@{offset}, made of {tag.source}@{tag.offset}"
            if tag.of != UNCOUNTED:  # else the comparison with the input does this
                self._count(tag, where)
                if (tag.offset, tag.number) < last.get(tag.source, (-1, -1)):
                    self._found.add("an output behind a later one of its input partition (reordered)", where)
                last[tag.source] = tag.offset, tag.number
            part, by = part_of(offset), _covered(self._covering.get(tag.source, ()), tag.offset)
            if by is None:
                self._found.add("an output of input that is not committed", where)
            elif part is None or part.producer_id != by.producer_id:
                self._found.add("an output apart from its input's offset, by another producer", where)
            else:
                together[part.producer_id, part.number].add(by.number)
        self._one_to_one(partition, together)

    def _count(self, tag: Tag, where: str) -> None:
        if tag.number in self._there[tag.source, tag.offset]:
            self._found.add("a duplicated output", where)
        self._there[tag.source, tag.offset].add(tag.number)
        self._of[tag.source, tag.offset] = tag.of

    def _one_to_one(self, partition: Partition, together: Mapping[tuple[int, int], set[int]]) -> None:
        """Each transaction has the outputs of one commit of offsets, and the other way round."""
        for (producer_id, number), commits in together.items():
            if len(commits) > 1:
                where = f"{partition}, producer {producer_id}, its transaction {number} there"
                self._found.add("a transaction whose outputs belong to several commits of offsets", where)
        parts = Counter((key[0], one) for key, commits in together.items() for one in commits)
        for (producer_id, number), count in parts.items():
            if count > 1:
                where = f"{partition}, producer {producer_id}, its commit of offsets {number}"
                self._found.add("a commit of offsets whose outputs are in several transactions", where)

    def end(self) -> None:
        """All partitions were added."""
        for (source, offset), numbers in self._there.items():
            of = self._of[source, offset]
            if len(numbers) < of:
                text = f"{source}@{offset}: {len(numbers)} of {of}"
                self._found.add("an input record with a part of its outputs (torn)", text)


def _part_of(segments: Sequence[_Segment]) -> Callable[[int], _Segment | None]:
    """Which transaction has written the record at an offset."""
    ranges = sorted((first, last, part) for part in segments for first, last in part.ranges)
    firsts = [first for first, _, _ in ranges]

    def part_of(offset: int) -> _Segment | None:
        at = bisect_right(firsts, offset) - 1
        return ranges[at][2] if at >= 0 and offset <= ranges[at][1] else None

    return part_of


def _covered(commits: Sequence[_Covering], offset: int) -> _Covering | None:
    """The commit by which the group went beyond this offset."""
    at = bisect_right(commits, offset, key=lambda one: one.end)
    return commits[at] if at < len(commits) else None
