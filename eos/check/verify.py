"""Verification of a job's output: committed offset of p = c  ⇔  the output is exactly f(input[p][0:c]).

It reads the input below the committed offsets, applies the job's transform again, and compares the result with the
read_committed output up to a settled end (LSO = high watermark). It needs no marks in the records, and shares
nothing with the loop but the transform.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from eos.calls import Call
from eos.check.comparison import Comparison
from eos.check.reading import LogReader, Range
from eos.check.report import Example, InputCount, Kind, VerificationReport
from eos.errors import OffsetGapError, UnavailableError, UsageError
from eos.job import BoundTransform, Job
from eos.kafka.admin import Admin
from eos.offsets import OffsetVector, Partition
from eos.records import InputRecord, OutputRecord
from eos.retry import resume
from eos.settings import Settings

Progress = Callable[
    [str, int, int], None
]  # stage ("input", "output", "compare"), offsets passed, of how many

_FAILED_EXAMPLES = 5
_STEP_S = 0.1


def verify(
    job: Job,
    settings: Settings,
    *,
    group: str | None = None,
    deadline_s: float,
    progress: Progress = lambda _stage, _done, _total: None,
    input_from: Mapping[Partition, int] | None = None,
    output_from: Mapping[Partition, int] | None = None,
) -> VerificationReport:
    """Compare a job's output with its committed input offsets. The job may be stopped, or rest.

    Only this job may write to its output topics: what another writes there is unexpected. Compaction and retention
    of output topics look like lost records.

    Args:
        job: the job; its transform must be deterministic.
        settings: the settings that the job ran with (the poison policy and the job's own settings matter).
        group: the group whose committed offsets count, if not the settings' own.
        deadline_s: seconds for settling and reading.
        progress: told of each step.
        input_from: where the group began, per input partition, if not at 0 (``--start latest``).
        output_from: the end of the output before the group began, per output partition, if it was not empty.

    Raises:
        UnavailableError: the output did not settle, the group went on committing, or not all could be read in time.
        OffsetGapError: input or output has been deleted (retention, DeleteRecords), and nothing says where to begin.
        ConfigError: a topic does not exist, a setting is wrong, or access was refused.
        UsageError: the transform returned what the job does not declare.
    """
    deadline = time.monotonic() + deadline_s
    group = group or settings.group_for(job.name)
    transform = job.bound(settings.job_settings(job.settings) if job.settings is not None else None)
    outcome = _Applied(transform, settings.poison.policy)
    with (
        LogReader(settings, group, deadline) as reader,
        Comparison(
            job.written_topics, broker_timestamps=_broker_timestamps(job, settings, deadline)
        ) as comparison,
    ):
        inputs = reader.partitions(job.inputs)
        snapshot = _snapshot(reader, group, inputs, reader.partitions(job.written_topics), deadline)
        problems = list(_impossible(group, snapshot))
        input_ranges = _input_ranges(snapshot, input_from or {})
        output_ranges = _output_ranges(snapshot, output_from or {})
        records = dict.fromkeys(inputs, 0)
        for record in reader.records(input_ranges, lambda done, total: progress("input", done, total)):
            records[Partition(record.topic, record.partition)] += 1
            comparison.expect(record, outcome.of(record))
        for record in reader.records(output_ranges, lambda done, total: progress("output", done, total)):
            comparison.found(record)
        progress("compare", 0, 1)
        differences = comparison.result(lambda: _check(deadline))
        progress("compare", 1, 1)
    return VerificationReport(
        group=group,
        inputs=tuple(
            InputCount(p, input_ranges[p].start, snapshot.committed.get(p), records[p]) for p in inputs
        ),
        outputs=differences.outputs,
        torn=differences.torn,
        failed=outcome.failed,
        problems=tuple(problems),
        examples=(*differences.examples, *outcome.examples),
    )


def _check(deadline: float) -> None:
    if time.monotonic() >= deadline:
        raise UnavailableError("all was read, but not compared, before the deadline")


class _Snapshot(NamedTuple):
    """Committed offsets, and logs, of one moment between two transactions."""

    committed: OffsetVector
    inputs: dict[Partition, Range]  # up to the LSO
    outputs: dict[Partition, Range]  # up to a settled end


def _snapshot(
    reader: LogReader, group: str, inputs: Sequence[Partition], outputs: Sequence[Partition], deadline: float
) -> _Snapshot:
    while True:
        before = reader.committed_offsets(inputs)
        settled = reader.settled_ranges(outputs)
        after = reader.committed_offsets(inputs)
        # Unchanged offsets around the settled end: no transaction of the group ended in between, so both belong together.
        if before == after:
            return _Snapshot(after, {p: reader.stable_range(p) for p in inputs}, settled)
        if time.monotonic() >= deadline:
            moved = next(p for p in inputs if before.get(p) != after.get(p))
            raise UnavailableError(
                f"the group {group!r} goes on committing ({moved}: {before.get(moved)} -> {after.get(moved)}), so "
                "output and offsets cannot be read as of one moment. Fix: stop the job, or let it catch up"
            )
        time.sleep(_STEP_S)


def _impossible(group: str, snapshot: _Snapshot) -> list[str]:
    """What contradicts exactly-once before a record is read."""
    found = [
        f"{partition}: the committed offset {committed} lies beyond the end of the input ({snapshot.inputs[partition].end}): "
        "the topic was created anew, or somebody else committed it"
        for partition, committed in snapshot.committed.items()
        if committed > snapshot.inputs[partition].end
    ]
    if not snapshot.committed and any(one.start < one.end for one in snapshot.outputs.values()):
        found.append(
            f"the group {group!r} has no committed offset, but there is output: is it the right group?"
        )
    return found


def _input_ranges(snapshot: _Snapshot, begins: Mapping[Partition, int]) -> dict[Partition, Range]:
    _check_known(begins, snapshot.inputs, "input_from")
    ranges = {}
    for partition, log in snapshot.inputs.items():
        start = begins.get(partition, 0)
        end = min(snapshot.committed.get(partition, start), log.end)
        # A partition of which nothing was processed owes nothing to what was deleted of it.
        if start < end:
            _check_not_deleted(partition, start, log.start)
        ranges[partition] = Range(start, max(start, end))
    return ranges


def _output_ranges(snapshot: _Snapshot, begins: Mapping[Partition, int]) -> dict[Partition, Range]:
    _check_known(begins, snapshot.outputs, "output_from")
    ranges = {}
    for partition, log in snapshot.outputs.items():
        start = begins.get(partition, 0)
        _check_not_deleted(partition, start, log.start)
        ranges[partition] = Range(start, max(start, log.end))
    return ranges


def _check_known(begins: Mapping[Partition, int], known: Mapping[Partition, Range], name: str) -> None:
    if unknown := sorted(set(begins) - set(known)):
        raise UsageError(f"{name} names {unknown[0]}, which is no partition of the job")


def _check_not_deleted(partition: Partition, start: int, first: int) -> None:
    if start < first:
        raise OffsetGapError(
            f"{partition}: records below offset {first} have been deleted (retention, DeleteRecords), so their outputs "
            "cannot be computed or found any more. Fix: verify from a moment whose offsets are known on both sides: "
            "input_from= for the inputs, output_from= for the outputs"
        )


class _Applied:
    """The transform with the poison policy around it, as the loop applies both."""

    def __init__(self, transform: BoundTransform, policy: str) -> None:
        self._transform = transform
        self._policy = policy
        self.failed = 0
        self.examples: list[Example] = []

    def of(self, record: InputRecord) -> list[OutputRecord]:
        try:
            return self._transform.record(record)
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a user's function raises
            if self._policy == "dead-letter":
                return [self._transform.dead_letter(record, error)]
            if self._policy != "skip":
                self._failed(record, error)
            return []

    def _failed(self, record: InputRecord, error: Exception) -> None:
        self.failed += 1
        if len(self.examples) < _FAILED_EXAMPLES:
            partition = Partition(record.topic, record.partition)
            text = f"the transform raised {type(error).__name__}: {error}"
            self.examples.append(Example(Kind.FAILED, partition, record.offset, text))


def _broker_timestamps(job: Job, settings: Settings, deadline: float) -> frozenset[str]:
    """The output topics whose broker writes its own time into records; unseen ones (ACL) count as others."""
    admin = Admin(settings.client_config())
    configs = resume(
        Call.METADATA, lambda left: admin.topic_configs(job.written_topics, left), deadline=deadline
    )
    return frozenset(
        topic for topic, config in configs.items() if config.get("message.timestamp.type") == "LogAppendTime"
    )
