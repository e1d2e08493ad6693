"""FetchedBatch: the records of one fetch, with the offsets that they begin and end at."""

from __future__ import annotations

from collections.abc import Sequence

from eos.events import InputTaken
from eos.headers import traceparents_of
from eos.offsets import OffsetVector, Partition
from eos.records import ConsumedMessage, InputBatch


class Reading:
    """What was handed out since it was last made void. Its batches keep it, and nothing else does."""


class FetchedBatch(InputBatch):
    """The records of one fetch, and the offsets to commit with them.

    Attributes:
        begins: where the partitions that this fetch has moved stood before it.
        ends: where they stand behind it; they may have passed control records only.
        reading: since when nothing that was handed out has become void.
    """

    def __init__(
        self, messages: Sequence[ConsumedMessage], begins: OffsetVector, ends: OffsetVector, reading: Reading
    ) -> None:
        super().__init__(messages)
        self.begins = begins
        self.ends = ends
        self.reading = reading

    @property
    def has_offsets(self) -> bool:
        """Whether :attr:`ends` says how far the records go: of all partitions, since a lost assignment is lost as a whole."""
        outer = [(m.topic(), m.partition()) for m in (*self._messages[:1], *self._messages[-1:])]
        return all(Partition(str(topic), int(number or 0)) in self.ends for topic, number in outer)

    def taken(self, shard: str) -> InputTaken:
        """The event that a transaction of the shard holds these records."""
        return InputTaken(shard, len(self), self.begins, self.ends, traceparents_of(self._messages))

    def as_received(self) -> FetchedBatch:
        """The same records with columns of its own."""
        return FetchedBatch(self._messages, self.begins, self.ends, self.reading)
