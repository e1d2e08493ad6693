"""Ledger: how far each owned partition is. Every event is told to it once; every question about offsets is asked of it.

An owner (a session, a producer without one, a consumer that reads alone) has one ledger, with a row for each partition that it
owns:

=============  ====================================================================================================
``stored``     what the group has stored: as this owner has committed it last, or as it was found at the takeover
``found``      what was stored at the takeover
``replaced``   what the last commit has replaced
``committed``  where reading goes on after an abort: the offset that is stored, once the reading side has learned of it
``next``       the first offset that was not handed out yet
``at_end``     whether it was read to its LSO since the takeover, or since the last rewind
due            whether its offset is to be committed where it stands, though no record of it was processed
=============  ====================================================================================================

The client's position is no part of it: that also counts records that no fetch has returned (an exception of a signal handler
drops what was polled), that an abort has made void, or that came beside an error event.

A commit has two sides. The thread that commits tells :meth:`sent` and :meth:`ended`; the thread that reads takes up what has
been committed with :meth:`settle`. In between, ``stored`` is ahead of ``committed``, and offsets that are committed beyond
``next`` are records that must not be handed out again.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from eos.core.fetched import FetchedBatch, Reading
from eos.errors import AbortableError, RebalancedError, UsageError
from eos.group.expiry import due_for_renewal
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.kafka.group_offsets import Committed, same_commit
from eos.offsets import OffsetVector, Partition
from eos.records import ConsumedMessage, InputBatch

_MAX_REFUSALS = 3  # without a commit in between: then it is the code that has to change, not the moment
_FIX = "Fix: a transaction for each batch that fetch returns, in their order, also where there is nothing to write"
# How long positions behind control records and aborted records may stay uncommitted: a writer of small transactions
# moves them with each of its markers.
_PASSED_EVERY_S = 5.0
_DAY_S = 86_400.0


class Outcome(StrEnum):
    """The result of the last transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"  # it carried no offsets to compare


class Ledger:
    """The rows of one owner in one group.

    Args:
        metadata: what is stored with its offsets.
        renew_after_s: how old an offset may become before it is committed again.

    Attributes:
        metadata: of the last commit that was sent.
        stored: see above; of :attr:`lost` partitions too.
        lost: partitions that were lost without a callback before, for example in an outage or a long pause, until the shard
            is :meth:`proved` to be ours. Other members may have committed their offsets since; a commit under our own shard
            would come from a replacement of this instance.
        pending: the offsets of a commit without an answer. The group has stored all of them or none: a transaction is atomic.
        left: what the group has stored, if that commit has happened, for those of its partitions that are not owned any more.
        unsettled: offsets that are committed, and not taken up by the reading side.
        committed: see above. A rewind goes back to it.
        next: see above. The consumer moves it as the last step of a fetch.
        at_end: the owned partitions that were read to their LSO.
        rewind_due: the client has to be rewound to :attr:`next` before more is handed out.
        attempt_at: what a commit of this offset says of attempts at the input behind it; see `OffsetMetadata`.
        in_a_row: what the next commit says of poison records; see `OffsetMetadata`.
    """

    def __init__(self, metadata: OffsetMetadata, *, renew_after_s: float = _DAY_S) -> None:
        self.metadata = metadata
        self.stored: dict[Partition, Committed | None] = {}
        self.found: dict[Partition, Committed | None] = {}
        self.lost: set[Partition] = set()
        self.pending: OffsetVector | None = None
        self.left: dict[Partition, Committed] = {}
        self._pending_metadata: dict[Partition, str] = {}
        self._replaced: dict[Partition, Committed | None] = {}
        self.unsettled = OffsetVector()
        self.committed = OffsetVector()
        self.next = OffsetVector()
        self.at_end: set[Partition] = set()
        self.rewind_due = False
        self._claimed = OffsetVector()
        self._reading: weakref.ref[Reading] | None = None
        self._refused = 0
        self._due: set[Partition] = set()
        self._renew_after_s = renew_after_s
        self._renewed_at = time.monotonic()
        self._passed_at = 0.0
        self.attempt_at: Callable[[Partition, int], int] = lambda _partition, _offset: 0
        self.in_a_row: Callable[[], int] = lambda: 0

    # --- partitions come and go ------------------------------------------------------------------------

    def taken_over(
        self, stored: Mapping[Partition, Committed | None], positions: OffsetVector | None = None
    ) -> None:
        """Partitions were taken over with these committed offsets (None: the group has none), to be read from these positions."""
        self.stored.update(stored)
        self.found.update(stored)
        self.lost.difference_update(stored)
        if positions is None:  # nothing is read
            return
        self.committed = self.committed.merged(positions)
        self.next = self.next.merged(positions)
        self.at_end.difference_update(positions)
        self._due |= due_for_renewal(
            stored, self.metadata.mode, self.metadata.app, after_s=self._renew_after_s
        )
        if self.metadata.mode is OwnershipMode.PARTITION:
            # This commit makes a previous owner's comparison fail. Without it a zombie that reopens its producer before our
            # first commit would read the offsets that it committed itself, and fence us.
            self._due |= stored.keys()

    def revoked(self, partitions: Iterable[Partition]) -> None:
        """Partitions were given up in order; later comparisons leave them out."""
        gone = set(partitions)
        for partition in gone - self.lost:
            self.stored.pop(partition, None)
        self._gone(gone)

    def lose(self, partitions: Iterable[Partition]) -> None:
        """Partitions are gone and were not given up; see :attr:`lost`."""
        gone = set(partitions)
        self.lost |= gone & self.stored.keys()
        self._gone(gone)

    def _gone(self, gone: set[Partition]) -> None:
        if self.pending is not None:
            # What remains shows the outcome of an unanswered commit, since a transaction is atomic; and so does what is gone, as long as
            # no other owner has gone on from there.
            self.left.update((p, one) for p, one in self.to_be_stored().items() if p in gone)
            self.pending = self.pending.without(gone) or None
        self.unsettled = self.unsettled.without(gone)
        self._due -= gone
        self.at_end -= gone
        self.committed = self.committed.without(gone)
        self.void()  # of all partitions: a batch may mix their records

    def proved(self) -> None:
        """The broker accepted a commit, or an init after a comparison: the shard was ours then."""
        for partition in self.lost:
            del self.stored[partition]
        self.lost.clear()

    # --- reading ---------------------------------------------------------------------------------------

    def void(self) -> None:
        """What was handed out and not committed will be read again."""
        self._reading = None
        self.next = self.committed
        self.rewind_due = True

    def batch(
        self, messages: Sequence[ConsumedMessage], positions: OffsetVector
    ) -> tuple[FetchedBatch, OffsetVector]:
        """The messages that moved the client to these positions, and :attr:`next` as it is once they are handed out.

        Without messages that stays as it is: control records that were passed go with the next records, or by themselves.
        """
        ends = positions.only(self.next).moved_since(self.next)
        reading = self.reading
        if reading is None:
            reading = Reading()
            self._reading = weakref.ref(reading)
        batch = FetchedBatch(messages, self.next.only(ends), ends, reading)
        return batch, self.next.merged(ends) if messages else self.next

    @property
    def uncommitted(self) -> OffsetVector:
        """The committed offsets of the partitions whose records were handed out and are not all committed."""
        return self.committed.only(p for p, offset in self.committed.items() if self.next[p] != offset)

    @property
    def outstanding(self) -> bool:
        """Whether records were handed out whose offsets are not committed."""
        return self.next != self.committed

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
            return batch.ends.only(in_order if batch.reading is self.reading else ())
        if gone := sorted(begins.keys() - committed.keys()):
            raise RebalancedError(
                f"{gone} are not ours any more: what was read of them is not committed here"
            )
        if batch.reading is not self.reading:
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

    def require_kept(self) -> None:
        """Nothing but the end of the caller's code, or an exception in it, drops a batch that is in no transaction.

        Raises:
            AbortableError: no batch is left of what was handed out and is not committed.
            UsageError: for the third time in a row.
        """
        if self.outstanding and self.reading is None:
            raise self._refusal(
                f"what fetch has returned behind {self.committed} is in no transaction and was dropped: it is read again. {_FIX}"
            )

    @property
    def reading(self) -> Reading | None:
        """The reading since the last :meth:`void`, as long as anybody holds a batch of it: what came before it is void."""
        return None if self._reading is None else self._reading()

    def _refusal(self, text: str) -> AbortableError | UsageError:
        self._refused += 1
        self.void()
        return (AbortableError if self._refused < _MAX_REFUSALS else UsageError)(text)

    # --- offsets that are committed though no record of theirs was processed ---------------------------

    def make_due(self, partitions: Collection[Partition]) -> None:
        """What is to be stored with the offsets of these partitions has changed."""
        self._due.update(partitions)

    def still_due(self, partitions: Collection[Partition]) -> set[Partition]:
        """Those of these that are still to be committed."""
        return self._due.intersection(partitions)

    def due(self) -> OffsetVector:
        """The offsets that the next commit takes along; now and then all of them.

        Kafka deletes offsets that nobody commits again; an owner that has taken over has to be seen in them; and their metadata
        holds the attempts at a record that kills (`eos.crashes.suspects`).
        """
        now = time.monotonic()
        if now - self._renewed_at >= self._renew_after_s:
            self._renewed_at = now
            self._due |= self.committed.keys()
        return self.committed.only(self._due) if self._due else OffsetVector()

    def time_for_passed_markers(self) -> bool:
        """Whether positions behind control records are to be committed now; every few seconds."""
        now = time.monotonic()
        due = now - self._passed_at >= _PASSED_EVERY_S
        if due:
            self._passed_at = now
        return due

    # --- what the open transaction holds ---------------------------------------------------------------

    def claims_begin(self) -> None:
        """A transaction begins, and holds nothing yet."""
        self._claimed = OffsetVector()

    def claim(self, ends: OffsetVector) -> None:
        """It holds what was made of the input up to these offsets."""
        self._claimed = self._claimed.merged(ends)

    def claimed(self) -> tuple[OffsetVector, OffsetVector]:
        """The offsets behind what it holds; and those of them whose partitions are not owned any more."""
        offsets = self._claimed.moved_since(self.committed)
        return offsets, offsets.without(self.committed)

    # --- commits ---------------------------------------------------------------------------------------

    def stored_of(self, partitions: Iterable[Partition]) -> dict[Partition, Committed | None]:
        """What is known to be stored for these of the owned partitions."""
        return {p: self.stored[p] for p in partitions if p in self.stored and p not in self.lost}

    def sent(
        self,
        offsets: OffsetVector,
        started_partitions: Mapping[str, int],
        topic_ids: Mapping[str, str] | None = None,
    ) -> dict[Partition, Committed]:
        """A transaction with these offsets is about to be committed; returns what it is to store, with its metadata.

        Each commit has its own metadata: otherwise a commit of unchanged offsets could not be distinguished from none.
        ``started_partitions`` and ``topic_ids`` go into the metadata, by topic.

        Raises:
            UsageError: an offset is below the one that this owner has committed last.
        """
        for partition, stored in self.stored_of(offsets).items():
            if (
                stored is not None
                and offsets[partition] < stored.offset
                and self.metadata.is_owner_of(stored.metadata)
            ):
                raise UsageError(
                    f"{partition}: offset {offsets[partition]} is behind {stored.offset}, which this producer has committed: its "
                    "input would be processed again. Fix: use eos.Session, which commits batches in their order; with "
                    "add_offsets, never go back behind a committed offset"
                )
        self.pending = offsets
        self.metadata = self.metadata.next()
        by_topic = {
            topic: replace(
                self.metadata,
                started_partitions=started_partitions[topic],
                topic=(topic_ids or {}).get(topic, ""),
                in_a_row=self.in_a_row(),
            )
            for topic in {partition.topic for partition in offsets}
        }
        texts = {topic: str(metadata) for topic, metadata in by_topic.items()}
        self._pending_metadata = {partition: texts[partition.topic] for partition in offsets}
        for partition, offset in offsets.items():
            if attempt := self.attempt_at(partition, offset):
                self._pending_metadata[partition] = str(replace(by_topic[partition.topic], attempt=attempt))
        return self.to_be_stored()

    def to_be_stored(self) -> dict[Partition, Committed]:
        """What the group has stored for the :attr:`pending` offsets if their commit has happened."""
        pending = self.pending or OffsetVector()
        return {
            p: Committed(offset, self._pending_metadata[p], pending.epoch_of(p))
            for p, offset in pending.items()
        }

    def ended(self, outcome: Outcome) -> None:
        """The outcome of that transaction is known."""
        if outcome is Outcome.COMMITTED and self.pending is not None:
            self._replaced = {partition: self.stored.get(partition) for partition in self.pending}
            self.stored.update(self.to_be_stored())
            self.unsettled = self.unsettled.merged(self.pending)
        self.pending, self.left = None, {}

    def settle(self, positions: Callable[[], OffsetVector]) -> None:
        """The reading side takes up what is :attr:`unsettled`: a rewind goes no further back.

        May be called again after an exception of a signal handler has left it.

        Args:
            positions: the client's.
        """
        owned = self.unsettled.only(self.committed)
        beyond = owned.only(p for p, offset in owned.items() if offset > self.next[p])
        if beyond and positions().only(beyond) != beyond:
            # A commit whose answer came late: its records must not be handed out again.
            self.rewind_due = True
        self.committed = self.committed.merged(owned)
        self.next = self.next.merged(beyond)
        self._due.difference_update(self.unsettled)
        self._refused = 0
        self.unsettled = OffsetVector()

    @property
    def last_committed(self) -> frozenset[Partition]:
        """The partitions of the last commit that are still owned."""
        return frozenset(self._replaced.keys() & self.stored.keys() - self.lost)

    def forgotten(self, stored_now: Mapping[Partition, Committed]) -> list[Partition]:
        """Those for which the group has stored what the last commit has replaced. From now on that is what is known of them.

        Where it replaced nothing this is not asked: a session finds, or stores, an offset before its first transaction. And
        librdkafka's mock cluster never stores those of a transaction.
        """
        before = {p: was for p in self.last_committed if (was := self._replaced[p]) is not None}
        found = sorted(p for p, was in before.items() if same_commit(stored_now.get(p), was))
        self.stored.update((p, self._replaced[p]) for p in found)
        return found
