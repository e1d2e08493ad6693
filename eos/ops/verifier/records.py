"""Records of a topic as they lie in its log, and what became of their transactions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from eos.base.deadline import Deadline
from eos.base.listing import counted
from eos.errors import ConfigError
from eos.headers import Headers, legible
from eos.kafka.admin import Mark
from eos.offsets import Partition
from eos.ops.verifier.logs import LogReader, Range
from eos.records import InputRecord
from eos.settings import Settings

_GROUP = "eos-show"  # which is only named: nothing is committed, and no member joins
# Markers take offsets too, one a transaction and partition; of as many offsets as this some are records.
_OFFSETS_PER_RECORD, _MORE_OFFSETS = 4, 100


class State(StrEnum):
    """What a reader gets of a record."""

    COMMITTED = "committed"
    ABORTED = "aborted"  # no read_committed reader ever gets it
    OPEN = "open"  # of a transaction that has not ended, or behind one


@dataclass(frozen=True, slots=True)
class Shown:
    """A record, its headers as far as they can be read, and its state."""

    record: InputRecord
    headers: Headers
    state: State


def records(
    settings: Settings,
    topic: str,
    *,
    start: tuple[Partition, int] | None,
    count: int,
    timeout_s: float = 60.0,
) -> Iterator[Shown]:
    """Records of a topic, by partition and offset.

    Args:
        settings: how to reach the cluster.
        topic: whose.
        start: the partition and the offset to begin at; None: the last ones of each partition.
        count: how many, of each partition.
        timeout_s: for all of it.

    Raises:
        ConfigError: there is no such topic, partition or offset, or access was refused.
        UnavailableError: the cluster did not answer in time.
    """
    group, deadline = settings.group or _GROUP, Deadline(timeout_s)
    with LogReader(settings, group, deadline, committed=False) as log:
        partitions = log.partitions([topic])
        if start is not None:
            if start[0] not in partitions:
                raise ConfigError(
                    f"{start[0]} does not exist: {topic} has {counted(len(partitions), 'partition')}"
                )
            partitions = [start[0]]
        starts, ends = log.offsets_at(Mark.START, partitions), log.offsets_at(Mark.HIGH_WATERMARK, partitions)
        window = _OFFSETS_PER_RECORD * count + _MORE_OFFSETS
        ranges = {p: Range(max(starts[p], ends[p] - window), ends[p]) for p in partitions}
        if start is not None:
            partition, offset = start
            if not starts[partition] <= offset < ends[partition]:
                raise ConfigError(
                    f"{partition} holds the offsets {starts[partition]} to {ends[partition] - 1}, not {offset}"
                )
            ranges = {partition: Range(offset, min(ends[partition], offset + window))}
        found: defaultdict[Partition, list[InputRecord]] = defaultdict(list)
        for record in log.records(ranges):
            found[Partition(record.topic, record.partition)].append(record)
        chosen = {p: those[:count] if start is not None else those[-count:] for p, those in found.items()}
        lsos = log.offsets_at(Mark.LAST_STABLE, partitions)
    stable = {p: Range(those[0].offset, min(lsos[p], those[-1].offset + 1)) for p, those in chosen.items()}
    with LogReader(settings, group, deadline) as log:
        committed = {(one.partition, one.offset) for one in log.records(stable)}
    for partition in sorted(chosen):
        for record in chosen[partition]:
            is_committed = (record.partition, record.offset) in committed
            decided = State.COMMITTED if is_committed else State.ABORTED
            state = decided if record.offset < lsos[partition] else State.OPEN
            yield Shown(record, legible(record.headers), state)
