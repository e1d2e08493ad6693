"""OwnedOffsets: what this owner last committed, and the comparison that shows whether another owner came since.

init_transactions cannot be made conditional: a zombie that rebuilds its producer fences the rightful owner,
whoever that is (measured: output doubled, the committed offset went from 30 back to 20). So after every init
under an id that we held before, what the group has stored must be what we stored, stamp included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum

from eos.errors import FencedError, RebalancedError, UsageError
from eos.kafka.consumer import Committed
from eos.offsets import OffsetVector, Partition
from eos.stamps import OwnershipMode, Stamp


class Outcome(StrEnum):
    """What became of the last transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"  # it carried no offsets, so nothing can tell


class OwnedOffsets:
    """Per owned partition of one group, what is stored if nobody else has committed since.

    A pending vector is a commit without an answer: its partitions may be stored as before or as after it,
    but all of them the same way, because a transaction is atomic.
    """

    def __init__(self, stamp: Stamp) -> None:
        self.stamp = stamp  # of the last commit that was sent
        self._stored: dict[Partition, Committed | None] = {}
        self._lost: dict[Partition, Committed | None] = {}
        self._at_takeover: dict[Partition, Committed | None] = {}
        self._pending: OffsetVector | None = None
        self._metadata: dict[str, str] = {}  # of the last commit that was sent, by topic

    @property
    def partitions(self) -> frozenset[Partition]:
        """Every partition that a comparison has to look at."""
        return frozenset(self._stored) | frozenset(self._lost) | frozenset(self._pending or ())

    @property
    def pending(self) -> OffsetVector | None:
        return self._pending

    def found(self, stored: Mapping[Partition, Committed | None]) -> None:
        """Partitions came to us with these committed offsets (None: the group has none)."""
        self._stored.update(stored)
        self._at_takeover.update(stored)
        for partition in stored:
            self._lost.pop(partition, None)

    def revoked(self, partitions: Iterable[Partition]) -> None:
        """Partitions were given up in order; what becomes of them is no longer ours to judge."""
        for partition in partitions:
            self._stored.pop(partition, None)

    def lost(self, partitions: Iterable[Partition]) -> None:
        """Partitions were lost without being asked, for example in an outage or a long pause.

        Others may have committed to them since. That is in order unless it was done under our own shard:
        then a replacement of this very instance is at work. So they stay in the comparison until a commit
        or a reopen has shown that the shard is still ours.
        """
        for partition in partitions:
            if partition in self._stored:
                self._lost[partition] = self._stored.pop(partition)
        # Which way an unanswered commit went is read again when the partitions come back.
        self._pending = None

    def proved(self) -> None:
        """The broker took a commit, or an init after a comparison: the shard was ours at that moment."""
        self._lost.clear()

    def sent(self, offsets: OffsetVector, had: Mapping[str, int]) -> dict[Partition, Committed]:
        """A transaction with these offsets is about to be committed; returns what it is to store, with its stamp.

        Each commit has its own stamp: one of the same offsets as the last could else not be told from none. ``had`` is what
        the stamp says of each topic.

        Raises:
            UsageError: an offset is below the one that this owner has committed last.
        """
        for partition, offset in offsets.items():
            stored = self._stored.get(partition)
            if stored is not None and offset < stored.offset and self._is_mine(stored):
                raise UsageError(
                    f"{partition}: offset {offset} is behind {stored.offset}, which this producer has committed: its input "
                    "would be processed again. Fix: ReadCommittedConsumer.transaction(producer, batch); by hand, tell the "
                    "consumer of each commit (advanced), so that it does not rewind behind it"
                )
        self._pending = offsets
        self.stamp = self.stamp.next()
        self._metadata = {
            topic: str(replace(self.stamp, had=had[topic]))
            for topic in {partition.topic for partition in offsets}
        }
        return {partition: self._ours(partition, offset) for partition, offset in offsets.items()}

    def ended(self, outcome: Outcome) -> None:
        """The outcome of that transaction is known."""
        if outcome is Outcome.COMMITTED and self._pending is not None:
            for partition, offset in self._pending.items():
                self._stored[partition] = self._ours(partition, offset)
        self._pending = None

    def look_for_rival(self, found: Mapping[Partition, Committed]) -> None:
        """Hold what the group has stored against what only another owner can have written.

        For offsets that were read while transactions may be pending on them: our own last commit may not show
        yet, because the coordinator answers before it has written the markers (measured: the offset before it
        was read up to 100 ms after the answer). So what we found at the takeover is no evidence.

        Raises:
            FencedError: another owner has committed since.
            RebalancedError: the partition has moved to another shard, and nobody has told us yet.
        """
        foreign: list[Partition] = []
        for partition, stored in found.items():
            if self._is_mine(stored) or stored == self._at_takeover.get(partition):
                continue
            if partition in self._stored or self._by_replacement(stored):
                foreign.append(partition)
        self._raise_if_any(foreign, found)

    def compare(self, found: Mapping[Partition, Committed]) -> Outcome:
        """Hold what the group has stored against what we know.

        Args:
            found: what the group has stored now for :attr:`partitions` and the pending ones.

        Returns:
            What became of the pending transaction (ABORTED if there was none). Nothing is changed.

        Raises:
            FencedError: another owner has committed since.
            RebalancedError: a partition has moved to another shard, and nobody has told us yet. The outcome stays
                open until it is lost.
        """
        pending = self._pending or OffsetVector()
        as_after = {p for p, offset in pending.items() if found.get(p) == self._ours(p, offset)}
        as_before = {p for p in pending if found.get(p) == self._stored.get(p)}
        self._raise_if_any(
            [
                *(
                    p
                    for p, was in self._lost.items()
                    if found.get(p) != was and self._by_replacement(found.get(p))
                ),
                *(p for p, was in self._stored.items() if p not in pending and found.get(p) != was),
                *(p for p in pending if p not in as_after | as_before),
            ],
            found,
        )
        if as_before == set(pending):
            return Outcome.ABORTED
        if as_after != set(pending):  # a transaction is atomic, so somebody else wrote a part of it
            self._raise_if_any(sorted(as_before), found)
        return Outcome.COMMITTED

    def _is_mine(self, stored: Committed) -> bool:
        stamp = Stamp.parse(stored.metadata)
        return stamp is not None and stamp.owner == self.stamp.owner

    def _by_replacement(self, stored: Committed | None) -> bool:
        stamp = Stamp.parse(stored.metadata) if stored is not None else None
        return stamp is not None and stamp.shard == self.stamp.shard and stamp.owner != self.stamp.owner

    def _raise_if_any(self, foreign: Iterable[Partition], found: Mapping[Partition, Committed]) -> None:
        """Say what it means that partitions which we count as ours are not stored as we know them."""
        moved: Partition | None = None
        for partition in foreign:
            if not self._dealt_to_another(found.get(partition)):
                difference = self._difference(partition, found.get(partition))
                raise FencedError(f"{difference}: another owner has taken the partition over")
            moved = partition
        if moved is not None:
            difference = self._difference(moved, found.get(moved))
            raise RebalancedError(f"{difference}: the group has dealt the partition to another member")

    def _dealt_to_another(self, stored: Committed | None) -> bool:
        """Whether a living member under another ordinal has committed it: no sign that our shard has a new owner.

        Under group ownership partitions move between members, and whoever was away for longer than the session
        timeout learns of it only at its next poll.
        """
        stamp = Stamp.parse(stored.metadata) if stored is not None else None
        return (
            stamp is not None
            and stamp.mode == self.stamp.mode == OwnershipMode.GROUP
            and stamp.shard != self.stamp.shard
        )

    def _difference(self, partition: Partition, found: Committed | None) -> str:
        known = self._stored.get(partition, self._lost.get(partition))
        return f"{partition}: the group has stored {_shown(found)}, but this owner last committed {_shown(known)}"

    def _ours(self, partition: Partition, offset: int) -> Committed:
        return Committed(offset, self._metadata[partition.topic])


def _shown(committed: Committed | None) -> str:
    return (
        "nothing" if committed is None else f"offset {committed.offset} ({committed.metadata or 'no stamp'})"
    )
