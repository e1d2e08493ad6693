"""OffsetVector: the input offsets that a transaction commits; the only "+1" in the code base."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping
from typing import NamedTuple


class Partition(NamedTuple):
    """A topic's partition."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.number}]"


def as_places(offsets: Mapping[Partition, int | str]) -> str:
    """Offsets as ``eos offsets set --to`` takes them: ``orders:2@4711,orders:3@17``; a word stands for one that is not known."""
    return ",".join(f"{p.topic}:{p.number}@{offset}" for p, offset in sorted(offsets.items()))


def next_offset(last_read: int) -> int:
    """The offset to read after ``last_read``: Kafka's committed offset names the *next* record."""
    return last_read + 1


class OffsetVector(Mapping[Partition, int]):
    """Per input partition, the next offset to read. Immutable and picklable.

    An offset counts in one log only, so the vector also carries what names that log, as far as it is known: the leader
    epoch of the record before the offset (KIP-320: a log that was truncated and has grown again has other epochs) and the
    id of the topic (one that was deleted and created anew has another id). Two vectors are equal if their offsets are.

    Args:
        next_offsets: per partition, the next offset to read.
        epochs: per partition, the leader epoch of the record before it.
        topic_ids: per topic, the id of the topic that the offsets count in.

    Raises:
        ValueError: an offset is negative.

    >>> OffsetVector({Partition("in", 0): 5}).advanced([(Partition("in", 0), 9)])
    OffsetVector(in[0]=10)
    """

    __slots__ = ("_epochs", "_next", "_topic_ids")

    def __init__(
        self,
        next_offsets: Mapping[Partition, int] | None = None,
        epochs: Mapping[Partition, int] | None = None,
        topic_ids: Mapping[str, str] | None = None,
    ) -> None:
        self._next: dict[Partition, int] = dict(next_offsets or {})
        self._epochs: dict[Partition, int] = dict(epochs or {})
        self._topic_ids: dict[str, str] = dict(topic_ids or {})
        if self._next and min(self._next.values()) < 0:
            # librdkafka ignores such entries silently (OFFSET_INVALID is -1001): a commit without effect.
            partition, offset = min(self._next.items(), key=lambda entry: entry[1])
            msg = f"{partition}: {offset} is not an offset"
            raise ValueError(msg)

    def __getitem__(self, partition: Partition) -> int:
        return self._next[partition]

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._next)

    def __len__(self) -> int:
        return len(self._next)

    def __contains__(self, partition: object) -> bool:
        return partition in self._next

    def keys(self) -> KeysView[Partition]:
        return self._next.keys()  # of the dict: those of Mapping are Python, and cost five times as much

    def items(self) -> ItemsView[Partition, int]:
        return self._next.items()

    def __hash__(self) -> int:
        return hash(frozenset(self._next.items()))

    def __repr__(self) -> str:
        inner = ", ".join(f"{p}={o}" for p, o in sorted(self._next.items()))
        return f"OffsetVector({inner})"

    def epoch_of(self, partition: Partition) -> int | None:
        """The leader epoch of the record before the partition's offset, if it is known."""
        return self._epochs.get(partition)

    @property
    def topic_ids(self) -> Mapping[str, str]:
        """The ids of the topics that the offsets count in, as far as they are known."""
        return self._topic_ids

    def advanced(self, last_read: Iterable[tuple[Partition, int]]) -> OffsetVector:
        """This vector after the records at ``last_read`` (partition, offset of the record) were processed."""
        return self.merged({partition: next_offset(offset) for partition, offset in last_read})

    def merged(self, newer: Mapping[Partition, int]) -> OffsetVector:
        """This vector with the entries of ``newer`` in the place of its own."""
        offsets = _plain(newer)
        epochs, topic_ids = self._epochs, self._topic_ids
        if isinstance(newer, OffsetVector):
            epochs = epochs | newer._epochs  # noqa: SLF001 - of the same class
            topic_ids = topic_ids | newer._topic_ids  # noqa: SLF001
            without = offsets.keys() - newer._epochs.keys()  # noqa: SLF001
        else:
            without = set(offsets)
        if not without.isdisjoint(epochs):  # an epoch is that of the record before its own offset
            epochs = {p: epoch for p, epoch in epochs.items() if p not in without}
        return OffsetVector({**self._next, **offsets}, epochs, topic_ids)

    def only(self, partitions: Iterable[Partition]) -> OffsetVector:
        """The entries of these partitions."""
        wanted = partitions if isinstance(partitions, (OffsetVector, frozenset, set)) else set(partitions)
        if len(wanted) < len(self._next):
            return self._kept([p for p in wanted if p in self._next])
        return self._kept([p for p in self._next if p in wanted])

    def without(self, partitions: Iterable[Partition]) -> OffsetVector:
        """The entries of all other partitions."""
        unwanted = set(partitions)
        return self._kept([p for p in self._next if p not in unwanted])

    def moved_since(self, former: Mapping[Partition, int]) -> OffsetVector:
        """The entries that differ from those of ``former``."""
        before = _plain(former)
        return self._kept([p for p, offset in self._next.items() if before.get(p) != offset])

    def _kept(self, partitions: list[Partition]) -> OffsetVector:
        if len(partitions) == len(self._next):
            return self  # immutable, so it can be shared
        kept = {p: self._next[p] for p in partitions}
        epochs = {p: self._epochs[p] for p in partitions if p in self._epochs}
        return OffsetVector(kept, epochs, self._topic_ids)


def _plain(offsets: Mapping[Partition, int]) -> Mapping[Partition, int]:
    return offsets._next if isinstance(offsets, OffsetVector) else offsets  # noqa: SLF001 - of the same class
