"""OwnedOffsets: what this owner last committed, compared with what the group has stored, to detect another owner.

init_transactions is unconditional: a zombie that rebuilds its producer fences the current owner (measured: output doubled,
the committed offset went from 30 back to 20). So after every init of an id that this owner has held before, the group must
have stored what this owner committed last, offset metadata included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from enum import StrEnum

from eos.errors import ONE_OWNER, FencedError, RebalancedError, UsageError
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition

_SET_FROM_OUTSIDE = (
    "another program has set it while the job ran. Fix: stop the job before its "
    "offsets are set; the next start goes on from what is stored now"
)


class Outcome(StrEnum):
    """The result of the last transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"  # it carried no offsets to compare


class OwnedOffsets:
    """Per owned partition of one group, what is stored as long as no other owner commits.

    Pending offsets belong to a commit without an answer. The group has either stored all of them or none, because a
    transaction is atomic.
    """

    def __init__(self, metadata: OffsetMetadata) -> None:
        self.metadata = metadata  # of the last commit that was sent
        self._stored: dict[Partition, Committed | None] = {}
        self._lost: dict[Partition, Committed | None] = {}
        self._at_takeover: dict[Partition, Committed | None] = {}
        self._before: dict[Partition, Committed | None] = {}  # what the last commit has replaced
        self._pending: OffsetVector | None = None
        self._sent_metadata: dict[Partition, str] = {}  # of the last commit that was sent
        # What a commit of this offset says of attempts at the input behind it; see `OffsetMetadata`.
        self.attempt_at: Callable[[Partition, int], int] = lambda _partition, _offset: 0
        self.in_a_row = 0  # what the next commit says of poison records; see `OffsetMetadata`

    @property
    def partitions(self) -> frozenset[Partition]:
        """Every partition that a comparison has to look at."""
        return frozenset(self._stored) | frozenset(self._lost) | frozenset(self._pending or ())

    @property
    def pending(self) -> OffsetVector | None:
        return self._pending

    def taken_over(self, stored: Mapping[Partition, Committed | None]) -> None:
        """Partitions were taken over with these committed offsets (None: the group has none)."""
        self._stored.update(stored)
        self._at_takeover.update(stored)
        for partition in stored:
            self._lost.pop(partition, None)

    def revoked(self, partitions: Iterable[Partition]) -> None:
        """Partitions were revoked in order; later comparisons leave them out."""
        gone = set(partitions)
        for partition in gone:
            self._stored.pop(partition, None)
        if self._pending is not None:
            # The remaining partitions show the outcome of an unanswered commit: a transaction is atomic.
            self._pending = self._pending.without(gone) or None

    def lost(self, partitions: Iterable[Partition]) -> None:
        """Partitions were lost without a callback before, for example in an outage or a long pause.

        Other members may have committed their offsets since, which is in order. A commit under our own shard is not: it
        comes from a replacement of this instance. So these partitions stay in the comparison until a commit or a reopen has
        shown that the shard is still ours.
        """
        for partition in partitions:
            if partition in self._stored:
                self._lost[partition] = self._stored.pop(partition)
        # The outcome of an unanswered commit is read when the partitions are assigned again.
        self._pending = None

    def proved(self) -> None:
        """The broker accepted a commit, or an init after a comparison: the shard was ours then."""
        self._lost.clear()

    def stored(self, partitions: Iterable[Partition]) -> dict[Partition, Committed | None]:
        """What is known to be stored for these of the owned partitions."""
        return {partition: self._stored[partition] for partition in partitions if partition in self._stored}

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
        for partition, offset in offsets.items():
            stored = self._stored.get(partition)
            if stored is not None and offset < stored.offset and self.metadata.is_owner_of(stored.metadata):
                raise UsageError(
                    f"{partition}: offset {offset} is behind {stored.offset}, which this producer has committed: its input "
                    "would be processed again. Fix: use eos.Session, which commits batches in their order; with add_offsets, "
                    "never go back behind a committed offset"
                )
        self._pending = offsets
        self.metadata = self.metadata.next()
        by_topic = {
            topic: replace(
                self.metadata,
                started_partitions=started_partitions[topic],
                topic=(topic_ids or {}).get(topic, ""),
                in_a_row=self.in_a_row,
            )
            for topic in {partition.topic for partition in offsets}
        }
        texts = {topic: str(metadata) for topic, metadata in by_topic.items()}
        self._sent_metadata = {partition: texts[partition.topic] for partition in offsets}
        for partition, offset in offsets.items():
            if attempt := self.attempt_at(partition, offset):
                self._sent_metadata[partition] = str(replace(by_topic[partition.topic], attempt=attempt))
        return {partition: self._ours(offsets, partition) for partition in offsets}

    def ended(self, outcome: Outcome) -> None:
        """The outcome of that transaction is known."""
        if outcome is Outcome.COMMITTED and self._pending is not None:
            self._before = {partition: self._stored.get(partition) for partition in self._pending}
            for partition in self._pending:
                self._stored[partition] = self._ours(self._pending, partition)
        self._pending = None

    @property
    def last_committed(self) -> frozenset[Partition]:
        """The partitions of the last commit that are still owned."""
        return frozenset(self._before).intersection(self._stored)

    def forgotten(self, stored_now: Mapping[Partition, Committed]) -> list[Partition]:
        """Those for which the group has stored what the last commit has replaced. From now on that is what is known of them.

        Where it replaced nothing this is not asked: a session finds, or stores, an offset before its first transaction. And
        librdkafka's mock cluster never stores those of a transaction.
        """
        before = {p: was for p in self.last_committed if (was := self._before[p]) is not None}
        found = sorted(p for p, was in before.items() if _same(stored_now.get(p), was))
        self._stored.update((p, self._before[p]) for p in found)
        return found

    def look_for_rival(self, stored_now: Mapping[Partition, Committed]) -> None:
        """Look for offsets that only another owner can have committed.

        For offsets that were read while transactions may be pending on them. Our own last commit may not be visible
        yet, because the coordinator answers before it has written the markers (measured: the previous offset was
        read up to 100 ms after the answer). So the offsets from the takeover are no evidence of another owner.

        Raises:
            FencedError: another owner has committed since.
            RebalancedError: the partition has moved to another shard; the consumer has not been called back yet.
        """
        foreign: list[Partition] = []
        for partition, stored in stored_now.items():
            if self.metadata.is_owner_of(stored.metadata) or _same(stored, self._at_takeover.get(partition)):
                continue
            if partition in self._stored or self._by_replacement(stored):
                foreign.append(partition)
        self._raise_if_any(foreign, stored_now)

    def compare(self, stored_now: Mapping[Partition, Committed]) -> Outcome:
        """Compare what the group has stored with what this owner has committed.

        Args:
            stored_now: what the group has stored now for :attr:`partitions` and the pending ones.

        Returns:
            The outcome of the pending transaction (ABORTED if there was none). No state changes.

        Raises:
            FencedError: another owner has committed since.
            RebalancedError: a partition has moved to another shard; the consumer has not been called back yet. The
                outcome stays open until the partition is lost.
        """
        pending = self._pending or OffsetVector()
        as_after = {p for p in pending if _same(stored_now.get(p), self._ours(pending, p))}
        as_before = {p for p in pending if _same(stored_now.get(p), self._stored.get(p))}
        self._raise_if_any(
            [
                *(
                    p
                    for p, was in self._lost.items()
                    if not _same(stored_now.get(p), was) and self._by_replacement(stored_now.get(p))
                ),
                *(
                    p
                    for p, was in self._stored.items()
                    if p not in pending and not _same(stored_now.get(p), was)
                ),
                *(p for p in pending if p not in as_after | as_before),
            ],
            stored_now,
        )
        if as_before == set(pending):
            return Outcome.ABORTED
        if as_after != set(pending):  # a transaction is atomic, so another owner has committed since
            self._raise_if_any(sorted(as_before), stored_now)
        return Outcome.COMMITTED

    def _by_replacement(self, stored: Committed | None) -> bool:
        metadata = _parsed(stored)
        return (
            metadata is not None
            and metadata.shard == self.metadata.shard
            and metadata.owner != self.metadata.owner
        )

    def _raise_if_any(self, foreign: Iterable[Partition], stored_now: Mapping[Partition, Committed]) -> None:
        """Raise for partitions whose stored offset is not this owner's: a fence, or a move to another member."""
        moved: Partition | None = None
        for partition in foreign:
            if not self._of_another_member(stored_now.get(partition)):
                stored = stored_now.get(partition)
                by = _parsed(stored)
                where = f" on {by.host}" if by is not None and by.host else ""
                why = (
                    _SET_FROM_OUTSIDE
                    if stored is not None and by is None
                    else f"another owner{where} has taken the partition over. {ONE_OWNER}"
                )
                raise FencedError(f"{self._difference(partition, stored)}: {why}")
            moved = partition
        if moved is not None:
            difference = self._difference(moved, stored_now.get(moved))
            raise RebalancedError(f"{difference}: the group has assigned the partition to another member")

    def _of_another_member(self, stored: Committed | None) -> bool:
        """Whether a member with another ordinal has committed it, which does not mean that our shard has a new owner.

        Under group ownership partitions move between members. A member that was paused for longer than the session
        timeout learns of it at its next poll.
        """
        metadata = _parsed(stored)
        return (
            metadata is not None
            and metadata.mode == self.metadata.mode == OwnershipMode.GROUP
            and metadata.shard != self.metadata.shard
        )

    def _difference(self, partition: Partition, stored_now: Committed | None) -> str:
        known = self._stored.get(partition, self._lost.get(partition))
        return f"{partition}: the group has stored {_shown(stored_now)}, but this owner last committed {_shown(known)}"

    def _ours(self, offsets: OffsetVector, partition: Partition) -> Committed:
        return Committed(offsets[partition], self._sent_metadata[partition], offsets.epoch_of(partition))


def _parsed(stored: Committed | None) -> OffsetMetadata | None:
    return None if stored is None else OffsetMetadata.parse(stored.metadata)


def _same(one: Committed | None, other: Committed | None) -> bool:
    """Whether both are the same commit. Compares offset and metadata; a broker need not keep the epoch."""
    return (one and one[:2]) == (other and other[:2])


def _shown(committed: Committed | None) -> str:
    return (
        "nothing"
        if committed is None
        else f"offset {committed.offset} ({committed.metadata or 'no metadata'})"
    )
