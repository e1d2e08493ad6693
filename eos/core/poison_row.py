"""PoisonRow: how many records in a row were poison, from owner to owner: each committed offset says it to the next one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import islice

from eos.group.metadata import OffsetMetadata
from eos.kafka.group_offsets import Committed
from eos.offsets import Partition


class PoisonRow:
    """The count behind what is committed, and behind what is produced.

    A process counts in memory, and one that dies, or is started again, would begin anew: a transform that is wrong for every record
    would send all of the input to the dead-letter topic, one life after the other.

    Attributes:
        at_commit: at the last commit, by this owner or the ones before it.
        produced: behind the last records of the open transaction, or of the one that commits.
    """

    def __init__(self) -> None:
        self.at_commit = 0
        self.produced = 0
        self._stored: set[Partition] = set()  # whose stored offsets name a row

    def says(self) -> int:
        """What the next commit says: see `Ledger.in_a_row`."""
        return self.produced

    def begins(self) -> None:
        """A transaction begins, with nothing produced yet."""
        self.produced = self.at_commit

    def taken_over(self, stored: Mapping[Partition, Committed | None]) -> None:
        """Partitions have come, with these offsets: the longest row counts, for their records may come in any order."""
        for partition, in_a_row in _rows(stored).items():
            self._stored.add(partition)
            self.at_commit = max(self.at_commit, in_a_row)

    def committed(self, stored: Mapping[Partition, Committed | None]) -> Collection[Partition]:
        """These offsets were committed; returns the partitions whose stored offsets name a row that is over."""
        for partition, committed in islice(stored.items(), 1):  # one commit says the same of each partition
            self.at_commit = _rows({partition: committed}).get(partition, 0)
        if self.at_commit:
            self._stored.update(stored)
            return ()
        self._stored.difference_update(stored)
        return self._stored

    def withdraw(self, partitions: Iterable[Partition]) -> Collection[Partition]:
        """What was counted stays so; a row that is over goes with no partition."""
        return () if self.at_commit else self._stored.intersection(partitions)

    def forget(self, partitions: Iterable[Partition]) -> None:
        """These partitions are gone."""
        self._stored.difference_update(partitions)


def _rows(stored: Mapping[Partition, Committed | None]) -> dict[Partition, int]:
    rows = {}
    for partition, committed in stored.items():
        metadata = OffsetMetadata.parse(committed.metadata) if committed is not None else None
        if metadata is not None and metadata.in_a_row:
            rows[partition] = metadata.in_a_row
    return rows
