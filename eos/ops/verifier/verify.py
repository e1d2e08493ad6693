"""Verification of a job's output: committed offset of p = c  ⇔  the output is exactly f(input[p][0:c])."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

from eos.base.listing import listed
from eos.deadletter import died_with, lettered, skipped
from eos.errors import EosError, reason_of
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.job import Job
from eos.kafka.group_offsets import Committed
from eos.offsets import Partition
from eos.ops.check.held_back import OnHeldBack, held_back, telling
from eos.ops.verifier.comparison import Comparison
from eos.ops.verifier.logs import LogReader
from eos.ops.verifier.placement import OWN
from eos.ops.verifier.report import Compared, Difference, Example, InputCount, VerificationReport
from eos.ops.verifier.state import gone, input_ranges, output_ranges, problems, read_state, waiting
from eos.ops.verifier.watch import OnProgress, Watch
from eos.records import InputBatch, InputRecord, OutputRecord, OutputRefusedError
from eos.settings import Settings
from eos.settings.binding import bind
from eos.transform import BoundTransform, refuse_limit

OnMade = Callable[[InputRecord, Sequence[OutputRecord]], None]

_DEADLINE_S = 3600.0
_FAILED_EXAMPLES = 5
_MAX_LISTED = 8
_OF_SPARK = (OwnershipMode.BATCH, OwnershipMode.SINK)  # a query's marks of its input are in its ledger


def verify(
    job: Job,
    settings: Settings,
    *,
    group: str | None = None,
    timeout_s: float = _DEADLINE_S,
    on_progress: OnProgress = lambda _stage, _done, _total: None,
    input_from: Mapping[Partition, int] | None = None,
    output_from: Mapping[Partition, int] | None = None,
    grown_from: Mapping[str, int] | None = None,
    partitioner: str = OWN,
    order: bool | None = None,
    archive: Mapping[Partition, Sequence[InputRecord]] | None = None,
    on_made: OnMade = lambda _record, _made: None,
    on_held_back: OnHeldBack = lambda _one: None,
) -> VerificationReport:
    """Compare a job's output with its committed input offsets, from outside.

    It reads the input below the group's committed offsets, applies the job's transform again, and compares the result
    with the read_committed output. It needs no marks in the records, it only reads, and it does not join the group. The
    job may be stopped, or run without new input; an open transaction on the output is waited for.

    The transform is not called for a record whose dead letter says that processes died with it, or that an operator has skipped
    it; a note says how many.

    The report judges what is committed. Input that is not processed yet is in it, too (`VerificationReport.complete`),
    with the transaction that holds it back, if there is one.

    Only this job may write to its output topics: the records of other writers are unexpected. Records that compaction or
    retention has removed from output topics look lost, and outputs of those removed from input topics unexpected. A scratch database for the comparison is kept in the directory of
    temporary files (TMPDIR) while it runs: 100 to 200 bytes per output record.

    Args:
        job: the job; its transform must be deterministic.
        settings: the settings that the job ran with: group, poison policy, the job's own settings.
        group: the group whose committed offsets count, if not the settings' own.
        timeout_s: seconds for all of it. In the main thread a call of the transform that hangs is ended then; in another thread
            once it comes back to a line of Python.
        on_progress: called twice a second, from a thread of its own too, with the stage ("state" of the cluster, dead "letters",
            "input", "output", "compare", and the "rest" that is not processed), the offsets passed, and of how many.
        input_from: per input partition, where the group began, if not at 0 (``input.start = "latest"``).
        output_from: per output partition, its end before the group began, if it was not empty.
        grown_from: of output topics that were given more partitions after their first records: how many they had
            before. Without it, each key belongs where the present count puts it.
        partitioner: by which the outputs were written: "murmur2_random", as eos and Java do, or "consistent_random", which is
            librdkafka's default.
        order: whether to compare the order of the outputs; None: unless Spark has committed the offsets, because a
            shuffle keeps no order. A batch function that returns several batches for one topic orders them itself.
        archive: read_committed records in front of ``input_from`` that were kept before they were deleted, each partition
            in offset order.
        on_made: called with each processed input record, and the outputs that it makes.
        on_held_back: called with each output partition that an open transaction holds back for more than moments.

    Returns:
        What was compared and what differs. ``report.exactly_once`` is the verdict; ``report.rows()`` is a table of it.

    Raises:
        UnavailableError: the output did not settle, the group went on committing, or the deadline passed.
        OffsetGapError: input or output has been deleted (retention, DeleteRecords), and nothing says where to begin.
        ConfigError: a topic does not exist, a setting is wrong, or access was refused.
        UsageError: the transform returned what the job does not declare, or an argument names a partition or topic that
            the job does not have.

    >>> report = eos.verify(job, eos.Settings.load("conf/refunds.toml"))  # doctest: +SKIP
    >>> assert report.exactly_once, report.rows()  # doctest: +SKIP
    """
    watch = Watch(timeout_s, on_progress)
    return watch.keep(
        lambda: _verified(
            job,
            settings,
            watch,
            group=group or job.identity(settings).group,
            begins=(input_from or {}, output_from or {}),
            grown_from=grown_from or {},
            partitioner=partitioner,
            order=order,
            archive=archive or {},
            on_made=on_made,
            on_held_back=on_held_back,
        )
    )


def _verified(
    job: Job,
    settings: Settings,
    watch: Watch,
    *,
    group: str,
    begins: tuple[Mapping[Partition, int], Mapping[Partition, int]],
    grown_from: Mapping[str, int],
    partitioner: str,
    order: bool | None,
    archive: Mapping[Partition, Sequence[InputRecord]],
    on_made: OnMade,
    on_held_back: OnHeldBack,
) -> VerificationReport:
    deadline = watch.deadline
    transform = bind(job, settings)
    applied = _Applied(transform, settings.poison.policy)
    watch.at("state", 0, 1)
    with LogReader(settings, group, deadline) as reader:
        inputs, outputs = reader.partitions(job.inputs), reader.partitions(job.written_topics)
        state = read_state(
            reader, group, inputs, outputs, deadline, on_wait=telling(settings, deadline, on_held_back)
        )
        contradictions = tuple(problems(reader, state))
        processed = input_ranges(state.inputs, state.offsets, begins[0])
        written = output_ranges(state, begins[1])
        configs = reader.configs({*job.inputs, *job.written_topics})
        why_not = _why_not_in_order(order, state.committed.values())
        records = Counter[Partition]()
        watch.at("state", 1, 1)
        with Comparison(
            Counter(partition.topic for partition in outputs),
            broker_timestamps={
                t for t, one in configs.items() if one.get("message.timestamp.type") == "LogAppendTime"
            },
            dead_letters=job.dead_letters,
            grown_from=grown_from,
            partitioner=partitioner,
            order=not why_not,
        ) as comparison:
            if job.dead_letters:
                letters = {p: log for p, log in written.items() if p.topic == job.dead_letters}
                applied.trust(reader.records(letters, partial(watch.at, "letters")))
            read = reader.records(processed, partial(watch.at, "input"))
            for record in chain(*archive.values(), read):
                records[Partition(record.topic, record.partition)] += 1
                watch.record = record
                made = applied.to(record)
                watch.record = None
                on_made(record, made)
                comparison.expect(record, made)
            for record in reader.records(written, partial(watch.at, "output")):
                comparison.found(record)
            watch.at("compare", 0, 1)
            compared = comparison.result()
            watch.at("compare", 1, 1)
        watch.at("rest", 0, 1)
        rest = waiting(reader, state.inputs, processed)
        watch.at("rest", 1, 1)
    if not state.committed and any(one.found for one in compared.outputs):  # what was aborted is none
        problem = f"the group {group!r} has no committed offset, but there is output: is it the right group?"
        contradictions = (*contradictions, problem)
    lsos = {partition: log.end for partition, log in state.inputs.items()}
    return VerificationReport(
        group=group,
        inputs=tuple(
            InputCount(
                p,
                processed[p].start,
                state.offset_of(p),
                records[p],
                rest[p],
                gone(state.inputs[p], processed[p]),
            )
            for p in inputs
        ),
        outputs=compared.outputs,
        torn=compared.torn,
        failed=applied.failed,
        problems=contradictions,
        examples=(*compared.examples, *applied.examples),
        notes=(
            *_of_others(state.committed),
            *_unseen(job, configs),
            *_compacted(job, configs),
            *applied.notes(),
        ),
        held_back=held_back(settings, lsos, state.high_watermarks, deadline),
        order=why_not or _how_compared(compared, by_batches=transform.takes_batches),
    )


def _why_not_in_order(wanted: bool | None, stored: Iterable[Committed]) -> str:
    """Why the order is not compared; "" if it is."""
    if wanted is False:
        return "not compared, as asked"
    known = [found for one in stored if (found := OffsetMetadata.parse(one.metadata, with_more=True))]
    # The owner of a Spark task's offsets is "<run>t<task>", that of a loop's a hexadecimal number.
    if wanted is None and any(one.mode in _OF_SPARK or "t" in one.owner for one in known):
        return "not compared: a Spark run has committed the offsets, and a shuffle keeps no order"
    return ""


def _how_compared(compared: Compared, *, by_batches: bool) -> str:
    text = "compared in each output partition, for each input partition by itself"
    if compared.undecided:
        text += f"; {compared.undecided:,} outputs that several input partitions make alike were left out"
    if by_batches and any(one.differences[Difference.REORDERED] for one in compared.outputs):
        text += (
            ". A batch function that returns several batches for one topic orders them itself: if this one does, verify "
            "without the order (order=False, --no-order)"
        )
    return text


def _of_others(stored: Mapping[Partition, Committed]) -> Iterator[str]:
    others = [p for p, one in stored.items() if OffsetMetadata.parse(one.metadata, with_more=True) is None]
    if others:
        yield (
            f"{listed(sorted(others), _MAX_LISTED)}: another program than eos has committed the offset, which may be behind input that no "
            "job has processed"
        )


def _unseen(job: Job, configs: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    if unseen := sorted({*job.inputs, *job.written_topics} - configs.keys()):
        yield (
            f"the configuration of {', '.join(unseen)} may not be seen (ACL DescribeConfigs): whether compaction has removed records, or "
            "the broker sets their timestamps, is not known"
        )


def _compacted(job: Job, configs: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """What compaction takes away from a verdict, in words; a topic whose configuration is not known counts as not compacted."""
    compacted = {topic for topic, one in configs.items() if "compact" in one.get("cleanup.policy", "")}
    for topic in job.inputs:
        if topic in compacted:
            yield (
                f"input {topic} is compacted (cleanup.policy): the outputs of records that compaction has removed look "
                "unexpected, and whether one of them is lost cannot be seen"
            )
    for topic in job.written_topics:
        if topic in compacted:
            yield (
                f"output {topic} is compacted (cleanup.policy): what compaction has removed looks lost, and a duplicate that it "
                "has removed is not seen"
            )


class _Applied:
    """The transform with the poison policy around it, as the loop applies both."""

    def __init__(self, transform: BoundTransform, policy: str) -> None:
        self._transform, self._policy = transform, policy
        self.failed = 0
        self.examples: list[Example] = []
        self._died_with: set[tuple[Partition, int]] = set()  # by their dead letters
        self._skipped: set[tuple[Partition, int]] = set()
        self._lettered: set[tuple[Partition, int]] = (
            set()
        )  # by letters of a time when the policy was another one
        self._by_letter = self._left_out = 0

    def trust(self, letters: Iterable[InputRecord]) -> None:
        """Take from these dead letters which records are not to be transformed."""
        for letter in letters:
            if place := died_with(letter):  # under any policy: the job may have run under another one before
                self._died_with.add(place)
            if self._policy != "dead-letter" and (place := lettered(letter)):
                self._lettered.add(place)
            if place := skipped(letter):  # under any policy: a person did it
                self._skipped.add(place)

    def notes(self) -> Iterator[str]:
        """What was taken on trust, in words."""
        for places, why in (
            (self._died_with, "processes died with them"),
            (self._skipped, "an operator has skipped them (eos skip)"),
        ):
            if places:
                yield f"{len(places):,} records were not transformed here: their dead letters say that {why}"
        if self._by_letter:
            yield (
                f"the transform raises for {self._by_letter:,} of the records. Each has a dead-letter record, written while "
                f"poison.policy was 'dead-letter'; it is {self._policy!r} now"
            )
        if self._left_out:
            yield f"{self._left_out:,} records fail here, and count as left out: poison.policy is 'skip'"

    def to(self, record: InputRecord) -> list[OutputRecord]:
        if self._died_with or self._skipped:
            place = (Partition(record.topic, record.partition), record.offset)
            if place in self._died_with or place in self._skipped:
                # The reason is not compared.
                return [self._transform.dead_letter(record, EosError("its letter says why"))]
        try:
            return self._transform.record(record)
        except OutputRefusedError:
            raise
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            refuse_limit(error, InputBatch.of([record]).place)
            place = (Partition(record.topic, record.partition), record.offset)
            if place in self._lettered:
                self._by_letter += 1
            if self._policy == "dead-letter" or place in self._lettered:
                return [self._transform.dead_letter(record, error)]
            if self._policy != "skip":
                self.failed += 1
                partition = Partition(record.topic, record.partition)
                text = (
                    f"the transform raised {reason_of(error)}. poison.policy is {self._policy!r} here: verify with the one that the "
                    "job ran with"
                )
                self.examples += [Example(Difference.FAILED, partition, record.offset, text)]
                del self.examples[_FAILED_EXAMPLES:]
            else:
                self._left_out += 1
            return []
