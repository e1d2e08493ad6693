"""DueOffsets: offsets that are committed where they stand, though no record of theirs was processed.

Kafka deletes offsets that nobody commits again; an owner that has taken over has to be seen in them; and their metadata
holds the attempts at a record that kills (`eos.session.suspects`).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping

from eos.group.expiry import due_for_renewal
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition

# How long positions behind control records and aborted records may stay uncommitted: a writer of small transactions
# moves them with each of its markers.
_PASSED_EVERY_S = 5.0


class DueOffsets:
    """Which partitions' offsets the next commit takes along.

    Args:
        mine: what the owner stores with its offsets.
        renew_after_s: how old an offset may become before it is committed again.
    """

    def __init__(self, mine: OffsetMetadata, *, renew_after_s: float) -> None:
        self._mine = mine
        self._renew_after_s = renew_after_s
        self._renewed_at = time.monotonic()
        self._passed_at = 0.0
        self._due: set[Partition] = set()

    def taken_over(self, stored: Mapping[Partition, Committed | None]) -> None:
        """Partitions have come, with these offsets."""
        self._due |= due_for_renewal(stored, self._mine.mode, self._mine.app, after_s=self._renew_after_s)
        if self._mine.mode is OwnershipMode.PARTITION:
            # This commit makes a previous owner's comparison fail. Without it a zombie that reopens its producer before our
            # first commit would read the offsets that it committed itself, and fence us.
            self._due |= stored.keys()

    def add(self, partitions: Collection[Partition]) -> None:
        """What is stored with these offsets has changed."""
        self._due.update(partitions)

    def done(self, partitions: Iterable[Partition]) -> None:
        """These are committed, or another owner's."""
        self._due.difference_update(partitions)

    def left(self, partitions: Collection[Partition]) -> set[Partition]:
        """Those of these that are still to be committed."""
        return self._due.intersection(partitions)

    def of(self, resume: OffsetVector) -> OffsetVector:
        """The offsets to commit, of those that all owned partitions go on from; now and then all of them."""
        now = time.monotonic()
        if now - self._renewed_at >= self._renew_after_s:
            self._renewed_at = now
            self._due |= resume.keys()
        return resume.only(self._due) if self._due else OffsetVector()

    def time_for_passed_markers(self) -> bool:
        """Whether positions behind control records are to be committed now; every few seconds."""
        now = time.monotonic()
        due = now - self._passed_at >= _PASSED_EVERY_S
        if due:
            self._passed_at = now
        return due
