"""HandedOut: which input a consumer has given to its caller, and how much of that is committed.

The client's position does not say this. It also counts records that no fetch has returned (an exception of a signal handler
drops what was polled), that an abort has made void, or that came beside an error event. So the offsets to commit come from
here: a batch carries the offsets that it begins and ends at, and it is committed only where the last commit ended.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

from eos.errors import AbortableError, RebalancedError, UsageError
from eos.events import InputTaken
from eos.headers import traceparents_of
from eos.offsets import OffsetVector, Partition
from eos.records import ConsumedMessage, InputBatch

_MAX_REFUSALS = 3  # without a commit in between: then it is the code that has to change, not the moment
_FIX = "Fix: a transaction for each batch that fetch returns, in their order, also where there is nothing to write"


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


class HandedOut:
    """Per owned partition: the next offset to hand out, and the one that a rewind goes back to.

    Attributes:
        committed: where each owned partition goes on after an abort.
        next: the first offset that was not handed out yet. The consumer moves it as the last step of a fetch.
        at_end: the owned partitions that were read to their LSO since they were taken over, or since the last rewind.
        rewind_due: the client has to be rewound to :attr:`next` before more is handed out.
    """

    def __init__(self) -> None:
        self.committed = OffsetVector()
        self.next = OffsetVector()
        self.at_end: set[Partition] = set()
        self.rewind_due = False
        self._reading: weakref.ref[Reading] | None = None
        self._refused = 0

    def own(self, offsets: OffsetVector) -> None:
        """Partitions were taken over, to be read from these offsets."""
        self.committed = self.committed.merged(offsets)
        self.next = self.next.merged(offsets)
        self.at_end.difference_update(offsets)

    def disown(self, partitions: Iterable[Partition]) -> None:
        """Partitions are gone, and what was handed out, of all partitions, is void: a batch may mix their records."""
        gone = set(partitions)
        self.committed = self.committed.without(gone)
        self.at_end -= gone
        self.void()

    def void(self) -> None:
        """What was handed out and not committed will be read again."""
        self._reading = None
        self.next = self.committed
        self.rewind_due = True

    def advanced(self, offsets: OffsetVector) -> OffsetVector:
        """These offsets are committed; returns those of them that lie beyond what was handed out."""
        offsets = offsets.only(self.committed)
        self.committed = self.committed.merged(offsets)
        beyond = offsets.only(p for p, offset in offsets.items() if offset > self.next[p])
        self.next = self.next.merged(beyond)
        self._refused = 0
        return beyond

    def batch(
        self, messages: Sequence[ConsumedMessage], positions: OffsetVector
    ) -> tuple[FetchedBatch, OffsetVector]:
        """The messages that moved the client to these positions, and :attr:`next` as it is once they are handed out.

        Without messages that stays as it is: control records that were passed go with the next records, or by themselves.
        """
        ends = positions.only(self.next).moved_since(self.next)
        reading = self._since_void()
        if reading is None:
            reading = Reading()
            self._reading = weakref.ref(reading)
        batch = FetchedBatch(messages, self.next.only(ends), ends, reading)
        return batch, self.next.merged(ends) if messages else self.next

    def to_commit(self, batch: InputBatch) -> OffsetVector:
        """The offsets to commit with what is made of a batch.

        Raises:
            RebalancedError: partitions of the batch are not ours any more.
            AbortableError: the batch is void, or records before it are in no transaction.
            UsageError: no fetch has returned it; or it is the third batch in a row that is refused.
        """
        if not isinstance(batch, FetchedBatch):
            if len(batch):
                raise UsageError(
                    "transaction(): this batch was not returned by fetch, so nothing says which offsets go with it. "
                    "Fix: give it the very batch that fetch has returned"
                )
            return OffsetVector()
        if not batch.has_offsets:
            raise RebalancedError("the partitions of this batch had no position any more when it was fetched")
        begins, committed = batch.begins, self.committed
        in_order = {p for p, offset in begins.items() if committed.get(p) == offset}
        if not len(batch):  # it has only passed control records, which may be left to a later commit
            return batch.ends.only(in_order if batch.reading is self._since_void() else ())
        if gone := sorted(begins.keys() - committed.keys()):
            raise RebalancedError(
                f"{gone} are not ours any more: what was read of them is not committed here"
            )
        if batch.reading is not self._since_void():
            raise self._refusal(
                "this batch is void: since it was fetched, a transaction was aborted or partitions came or went, and its "
                "records are read again. Fix: fetch, and process what it returns"
            )
        if early := sorted(begins.keys() - in_order):
            partition = early[0]
            raise self._refusal(
                f"{partition}: this batch begins at offset {begins[partition]}, and offsets are committed up to "
                f"{committed[partition]}: what fetch has returned in between is in no transaction, and is read again. {_FIX}"
            )
        return batch.ends

    @property
    def outstanding(self) -> bool:
        """Whether records were handed out whose offsets are not committed."""
        return self.next != self.committed

    def require_kept(self) -> None:
        """Nothing but the end of the caller's code, or an exception in it, drops a batch that is in no transaction.

        Raises:
            AbortableError: no batch is left of what was handed out and is not committed.
            UsageError: for the third time in a row.
        """
        if self.outstanding and self._since_void() is None:
            raise self._refusal(
                f"what fetch has returned behind {self.committed} is in no transaction and was dropped: it is read again. {_FIX}"
            )

    def _since_void(self) -> Reading | None:
        return None if self._reading is None else self._reading()

    def _refusal(self, text: str) -> AbortableError | UsageError:
        self._refused += 1
        self.void()
        return (AbortableError if self._refused < _MAX_REFUSALS else UsageError)(text)
