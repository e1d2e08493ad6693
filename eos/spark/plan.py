"""InputPlan: the input offset vector of one batch run: which records it reads and where its commit will stand."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from eos.errors import UsageError
from eos.offsets import OffsetVector, Partition

Commit = Literal["partition", "batch"]
SHARD = "shard"  # the column that says whose transaction a row belongs to
WHOLE_INPUT = 0  # its value in every row with commit="batch"


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets [start, end) of one input partition; ``end`` is what will be committed.

    Control records and aborted records take offsets too, so ``end - start`` is no count of records. What names the log is
    committed with ``end``: the leader's epoch when the log was seen to hold it, and the topic's id. Two ranges are equal
    if their offsets are.
    """

    partition: Partition
    start: int
    end: int
    epoch: int | None = field(default=None, compare=False)
    topic_id: str = field(default="", compare=False)


@dataclass(frozen=True)
class InputPlan:
    """What one run reads: a range per input partition that has something new.

    Immutable and picklable: the executors get it as it is.

    Args:
        group: the group whose committed offsets the ranges start at.
        partitions: every partition of the input topics, sorted; a partition's place in it is its *shard* number.
        ranges: of the partitions that have new offsets, sorted by partition.
        app: the name of the batch that it was made for.
        commit: the unit of a transaction that it was made for.
    """

    group: str
    partitions: tuple[Partition, ...]
    ranges: tuple[OffsetRange, ...]
    app: str
    commit: Commit

    def __iter__(self) -> Iterator[OffsetRange]:
        return iter(self.ranges)

    def __len__(self) -> int:
        return len(self.ranges)

    @cached_property
    def _shards(self) -> dict[Partition, int]:
        return {partition: number for number, partition in enumerate(self.partitions)}

    def shard_of(self, partition: Partition) -> int:
        """The shard number of a partition: the value of the column ``shard``."""
        return self._shards[partition]

    @cached_property
    def by_shard(self) -> dict[int, tuple[OffsetRange, ...]]:
        """By shard number, what its transaction covers."""
        if self.commit == "batch":
            return {WHOLE_INPUT: self.ranges}
        return {self.shard_of(one.partition): (one,) for one in self}

    @property
    def starts(self) -> OffsetVector:
        """Where the run begins, for the partitions that it reads."""
        return OffsetVector({one.partition: one.start for one in self.ranges})

    @property
    def ends(self) -> OffsetVector:
        """What the group will have committed after the run, for the partitions that it reads."""
        return ends_of(self.ranges)

    @property
    def identity(self) -> str:
        """Twelve characters that are the same for the same ranges, and for no others: a name for the run's input."""
        text = " ".join(f"{one.partition}:{one.start}-{one.end}" for one in self.ranges)
        return hashlib.sha256(f"{self.group} {text}".encode()).hexdigest()[:12]

    def table(self) -> list[tuple[str, ...]]:
        """Rows of text for a person, the first one the head: the ranges, and what they come to.

        Offsets count control records and aborted records too.
        """
        rows = [(str(one.partition), str(one.start), str(one.end), str(one.end - one.start)) for one in self]
        total = sum(one.end - one.start for one in self)
        unchanged = len(self.partitions) - len(self.ranges)
        return [
            ("partition", "start", "end", "offsets"),
            *rows,
            (f"{len(self)} of {len(self.partitions)}, {unchanged} with nothing new", "", "", str(total)),
        ]

    def only(self, partitions: Iterable[Partition]) -> InputPlan:
        """The plan of these partitions alone; shard numbers stay."""
        wanted = set(partitions)
        return replace(self, ranges=tuple(r for r in self.ranges if r.partition in wanted))

    def refuse_other(self, app: str, group: str, inputs: Iterable[str], commit: Commit) -> None:
        """Refuse a run that the plan was not made for: it was checked against that one's offsets alone.

        Raises:
            UsageError: says what differs.
        """
        made_for = {
            "name": self.app,
            "group": self.group,
            "commit": self.commit,
            "inputs": sorted({partition.topic for partition in self.partitions}),
        }
        wanted = {"name": app, "group": group, "commit": commit, "inputs": sorted(set(inputs))}
        for what, mine in made_for.items():
            if mine != wanted[what]:
                raise UsageError(
                    f"the plan was made for {what} = {mine!r}, and this run has {what} = {wanted[what]!r}: whether another run "
                    f"is at work on those offsets was not asked. Fix: plan=batch.plan({commit!r}) of the batch that runs"
                )


def ends_of(ranges: Iterable[OffsetRange]) -> OffsetVector:
    """What will be committed for these ranges."""
    ranges = tuple(ranges)
    return OffsetVector(
        {one.partition: one.end for one in ranges},
        {one.partition: one.epoch for one in ranges if one.epoch is not None},
        {one.partition.topic: one.topic_id for one in ranges if one.topic_id},
    )
