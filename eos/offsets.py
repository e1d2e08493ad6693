"""OffsetVector: the input offsets that a transaction commits; the only "+1" in the code base."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple


class Partition(NamedTuple):
    """A topic's partition."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.number}]"


def next_offset(last_read: int) -> int:
    """The offset to read after ``last_read``: Kafka's committed offset names the *next* record."""
    return last_read + 1


class OffsetVector(Mapping[Partition, int]):
    """Per input partition, the next offset to read. Immutable and picklable.

    Raises:
        ValueError: an offset is negative.

    >>> OffsetVector({Partition("in", 0): 5}).advanced([(Partition("in", 0), 9)])
    OffsetVector(in[0]=10)
    """

    __slots__ = ("_next",)

    def __init__(self, next_offsets: Mapping[Partition, int] | None = None) -> None:
        self._next: dict[Partition, int] = dict(next_offsets or {})
        for partition, offset in self._next.items():
            if offset < 0:
                # librdkafka ignores such entries silently (OFFSET_INVALID is -1001): a commit without effect.
                msg = f"{partition}: {offset} is not an offset"
                raise ValueError(msg)

    def __getitem__(self, partition: Partition) -> int:
        return self._next[partition]

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._next)

    def __len__(self) -> int:
        return len(self._next)

    def __hash__(self) -> int:
        return hash(frozenset(self._next.items()))

    def __repr__(self) -> str:
        inner = ", ".join(f"{p}={o}" for p, o in sorted(self._next.items()))
        return f"OffsetVector({inner})"

    def advanced(self, last_read: Iterable[tuple[Partition, int]]) -> OffsetVector:
        """This vector after the records at ``last_read`` (partition, offset of the record) were processed."""
        merged = dict(self._next)
        for partition, offset in last_read:
            merged[partition] = next_offset(offset)
        return OffsetVector(merged)

    def merged(self, newer: Mapping[Partition, int]) -> OffsetVector:
        """This vector with the entries of ``newer`` in the place of its own."""
        return OffsetVector({**self._next, **newer})

    def only(self, partitions: Iterable[Partition]) -> OffsetVector:
        """The entries of these partitions."""
        wanted = set(partitions)
        return OffsetVector({p: o for p, o in self._next.items() if p in wanted})

    def without(self, partitions: Iterable[Partition]) -> OffsetVector:
        """The entries of all other partitions."""
        unwanted = set(partitions)
        return OffsetVector({p: o for p, o in self._next.items() if p not in unwanted})
