"""The state of a job's topics: committed offsets and logs, as of one moment between two transactions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from eos.base.deadline import Deadline
from eos.errors import OffsetGapError, UnavailableError, UsageError
from eos.group.metadata import OffsetMetadata
from eos.kafka.admin import Mark
from eos.kafka.group_offsets import Committed
from eos.offsets import Partition
from eos.ops.verifier.logs import LogReader, OnWait, Range

_STEP_S = 0.1
_BOTH_SIDES = (
    "verify from a moment whose offsets are known on both sides: input_from (--input-from) for the inputs, output_from "
    "(--output-from) for the outputs"
)


class TopicsState(NamedTuple):
    """Committed offsets and logs of one moment between two transactions."""

    committed: dict[Partition, Committed]
    inputs: dict[Partition, Range]  # up to the LSO
    high_watermarks: Mapping[Partition, int]  # of the inputs
    outputs: dict[Partition, Range]  # up to a settled end

    def offset_of(self, partition: Partition) -> int | None:
        """The committed offset; None without one."""
        return _offset(self.committed.get(partition))

    @property
    def offsets(self) -> dict[Partition, int]:
        """The committed offsets."""
        return {partition: one.offset for partition, one in self.committed.items()}


def read_state(
    reader: LogReader,
    group: str,
    inputs: Sequence[Partition],
    outputs: Sequence[Partition],
    deadline: Deadline,
    *,
    on_wait: OnWait,
) -> TopicsState:
    """Wait until the output is settled and the committed offsets do not move; ``on_wait`` is that of `LogReader.settled`.

    Raises:
        UnavailableError: they did not until the deadline.
    """
    while True:
        before = reader.committed(inputs)
        settled = reader.settled(outputs, on_wait)
        after = reader.committed(inputs)
        moved = [p for p in inputs if _offset(before.get(p)) != _offset(after.get(p))]
        # Unchanged offsets around the settled end: no transaction of the group ended in between, so both belong together.
        if not moved:
            # High watermarks first: what is below one and not below an LSO read afterwards is held back.
            ends = reader.offsets_at(Mark.HIGH_WATERMARK, inputs)
            starts, lsos = reader.offsets_at(Mark.START, inputs), reader.offsets_at(Mark.LAST_STABLE, inputs)
            return TopicsState(after, {p: Range(starts[p], lsos[p]) for p in inputs}, ends, settled)
        if deadline.passed:
            was, now = _offset(before.get(moved[0])), _offset(after.get(moved[0]))
            raise UnavailableError(
                f"the group {group!r} goes on committing ({moved[0]}: {was} -> {now}), so output and offsets cannot be read "
                "as of one moment. Fix: stop the job, or let it catch up"
            )
        time.sleep(_STEP_S)


def _offset(committed: Committed | None) -> int | None:
    return None if committed is None else committed.offset


def problems(reader: LogReader, state: TopicsState) -> Iterator[str]:
    """What contradicts exactly-once before a record is read, in words."""
    shapes = reader.shapes({partition.topic for partition in state.inputs})
    for partition, committed in state.committed.items():
        end = state.inputs[partition].end
        if committed.offset > end:
            if committed.offset <= (ends := state.high_watermarks[partition]):
                yield (
                    f"{partition}: the committed offset {committed.offset} lies beyond the last stable offset ({end}), not "
                    f"beyond the high watermark ({ends}): its reader has passed records of a transaction that is still open, as "
                    "with isolation.level=read_uncommitted"
                )
            else:
                yield (
                    f"{partition}: the committed offset {committed.offset} lies beyond the end of the input ({ends}): the topic "
                    "was created anew, or another program committed the offset"
                )
        metadata = OffsetMetadata.parse(committed.metadata, with_more=True)
        shape = shapes.get(partition.topic)
        # Where the metadata has no topic id (older ones, other clients), nothing shows in which topic the offset counts.
        if metadata and metadata.topic and shape and shape.topic_id not in ("", metadata.topic):
            yield (
                f"{partition}: the committed offset {committed.offset} counts in the topic with the id {metadata.topic}. "
                f"The topic of this name has the id {shape.topic_id} now: it was deleted and created anew"
            )


def input_ranges(
    logs: Mapping[Partition, Range],
    stored: Mapping[Partition, int],
    begins: Mapping[Partition, int],
    *,
    fix: str = _BOTH_SIDES,
) -> dict[Partition, Range]:
    """What of the input is processed, from where the group began.

    Args:
        logs: of the inputs, up to the LSO.
        stored: the group's offsets.
        begins: where it began, if not at 0.
        fix: what to do where a part has been deleted.

    Raises:
        UsageError: ``begins`` names a partition that the job does not read, or an offset behind the committed one.
        OffsetGapError: a part of it has been deleted.
    """
    _check_known(begins, logs, "input_from")
    ranges = {}
    for partition, log in logs.items():
        start, committed = begins.get(partition, 0), stored.get(partition)
        if committed is not None and partition in begins and start > committed:
            raise UsageError(
                f"input_from: the group did not begin at {start} of {partition}, because its committed offset is {committed}"
            )
        end = min(start if committed is None else committed, log.end)
        if start < end:  # of a partition without processed records it does not matter what was deleted
            _check_not_deleted(partition, start, log.start, fix)
        ranges[partition] = Range(start, max(start, end))
    return ranges


def waiting(
    reader: LogReader, logs: Mapping[Partition, Range], processed: Mapping[Partition, Range]
) -> dict[Partition, int]:
    """How many offsets up to the LSO are not processed, per partition; 0 where only markers and aborted records follow."""
    rest = {p: Range(max(processed[p].end, log.start), log.end) for p, log in logs.items()}
    with_records = {Partition(one.topic, one.partition) for one in reader.records(rest, first_only=True)}
    return {
        p: rest[p].end - processed[p].end if p in with_records or gone(log, processed[p]) else 0
        for p, log in logs.items()
    }


def gone(log: Range, processed: Range) -> int:
    """How many offsets behind the processed ones have been deleted: nothing shows that no record was among them."""
    return max(0, log.start - processed.end)


def output_ranges(state: TopicsState, begins: Mapping[Partition, int]) -> dict[Partition, Range]:
    """What of the output is the group's, from where it was before the group began.

    Raises:
        UsageError: ``begins`` names a partition that the job does not write, or an offset behind its end.
        OffsetGapError: a part of it has been deleted.
    """
    _check_known(begins, state.outputs, "output_from")
    ranges = {}
    for partition, log in state.outputs.items():
        start = begins.get(partition, 0)
        if start > log.end:
            raise UsageError(
                f"output_from: {partition} ends at {log.end}, so no output before the group's went up to {start}"
            )
        _check_not_deleted(partition, start, log.start, _BOTH_SIDES)
        ranges[partition] = Range(start, max(start, log.end))
    return ranges


def _check_known(begins: Mapping[Partition, int], known: Mapping[Partition, Range], name: str) -> None:
    if unknown := sorted(set(begins) - set(known)):
        raise UsageError(f"{name} names {unknown[0]}, which is no partition of the job")
    if below := [one for one in begins.items() if one[1] < 0]:
        raise UsageError(f"{name}: {below[0][0]} has no offset {below[0][1]}")


def _check_not_deleted(partition: Partition, start: int, first: int, fix: str) -> None:
    if start < first:
        raise OffsetGapError(
            f"{partition}: records below offset {first} have been deleted (retention, DeleteRecords), so their outputs "
            f"cannot be computed or found any more. Fix: {fix}"
        )
