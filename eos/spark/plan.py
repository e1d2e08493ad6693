"""InputPlan: the input offset vector of one batch run: which records it reads and where its commit will stand."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from eos.offsets import OffsetVector, Partition


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets [start, end) of one input partition; ``end`` is what will be committed.

    Control records and aborted records take offsets too, so ``end - start`` is no count of records.
    """

    partition: Partition
    start: int
    end: int


@dataclass(frozen=True)
class InputPlan:
    """What one run reads: a range per input partition that has something new.

    Immutable and picklable: the executors get it as it is.

    Args:
        group: the group whose committed offsets the ranges start at.
        partitions: every partition of the input topics, sorted; a partition's place in it is its *shard* number.
        ranges: of the partitions that have new offsets, sorted by partition.
    """

    group: str
    partitions: tuple[Partition, ...]
    ranges: tuple[OffsetRange, ...]

    def __iter__(self) -> Iterator[OffsetRange]:
        return iter(self.ranges)

    def __len__(self) -> int:
        return len(self.ranges)

    @cached_property
    def _by_shard(self) -> dict[int, OffsetRange]:
        return {self.shard_of(one.partition): one for one in self.ranges}

    def shard_of(self, partition: Partition) -> int:
        """The shard number of a partition: the value of the column ``shard``."""
        return self.partitions.index(partition)

    def range_of(self, shard: int) -> OffsetRange | None:
        """The range of a shard number; None if it has none in this run."""
        return self._by_shard.get(shard)

    @property
    def ends(self) -> OffsetVector:
        """What the group will have committed after the run, for the partitions that it reads."""
        return OffsetVector({one.partition: one.end for one in self.ranges})

    @property
    def identity(self) -> str:
        """Twelve characters that are the same for the same ranges, and for no others: a name for the run's input."""
        text = " ".join(f"{one.partition}:{one.start}-{one.end}" for one in self.ranges)
        return hashlib.sha256(f"{self.group} {text}".encode()).hexdigest()[:12]

    def only(self, partitions: Iterable[Partition]) -> InputPlan:
        """The plan of these partitions alone; shard numbers stay."""
        wanted = set(partitions)
        return InputPlan(self.group, self.partitions, tuple(r for r in self.ranges if r.partition in wanted))
