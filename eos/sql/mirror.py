"""The positions of a sink as offsets of its group in Kafka: written behind each commit, for tools that show a group's lag.

No owner begins at them. But they were written after the position, so a position that is behind its mirror went back: the database is a
copy of an earlier time. That shows at the next start what an owner knows by itself only while it runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from eos.base.commands import suggested
from eos.base.listing import listed
from eos.core.destination import ForTools
from eos.core.surroundings import TakeOver
from eos.errors import OffsetGapError
from eos.group.committed import committed_offsets, fresh_reader
from eos.group.mirror import MIRROR
from eos.kafka.group_offsets import Committed
from eos.offsets import Partition, as_places
from eos.settings import Settings

_MAX_LISTED = 8


class Mirror:
    """Writes them; an `eos.core.committer.OffsetNote`.

    Args:
        consumer: the owner's, by which they are committed, as a member of the group.
    """

    def __init__(self, consumer: ForTools) -> None:
        self._consumer = consumer

    def committed(self, stored: Mapping[Partition, Committed | None]) -> Collection[Partition]:
        """Send them behind the commit, and wait for nothing."""
        self._consumer.commit_for_tools(
            {p: Committed(one.offset, MIRROR, one.leader_epoch) for p, one in stored.items() if one}
        )
        return ()

    def taken_over(self, stored: Mapping[Partition, Committed | None]) -> None:
        """Nothing to do."""

    def begins(self) -> None:
        """Nothing to do."""

    def withdraw(self, partitions: Iterable[Partition]) -> Collection[Partition]:  # noqa: ARG002 - as of every note
        """Nothing is to be committed."""
        return ()

    def forget(self, partitions: Iterable[Partition]) -> None:
        """Nothing to do."""


def mirrored(settings: Settings, group: str, partitions: Collection[Partition]) -> dict[Partition, Committed]:
    """The offsets that the group has in Kafka.

    Raises:
        UnavailableError: the cluster did not answer in time.
    """
    with fresh_reader(settings, group, stable=False) as reader:
        return committed_offsets(reader, partitions, timeout_s=settings.open_timeout_s)


def differences(
    group: str, positions: Mapping[Partition, Committed], offsets: Mapping[Partition, Committed]
) -> list[str]:
    """Where the group's offsets in Kafka are not what the positions are, in words."""
    behind, ahead, other = [], [], []
    for partition, position in sorted(positions.items()):
        offset = offsets.get(partition)
        if offset is None:
            behind.append(f"{partition} has none")
        elif offset.metadata != MIRROR:
            other.append(f"{partition} at {offset.offset:,}")
        elif offset.offset < position.offset:
            behind.append(f"{partition} by {position.offset - offset.offset:,}")
        elif offset.offset > position.offset:
            ahead.append(f"{partition} by {offset.offset - position.offset:,}")
    found = []
    if behind:
        found.append(
            f"the offsets of group {group!r} in Kafka, a mirror for tools, are behind the positions: {listed(behind, _MAX_LISTED)}"
        )
    if ahead:
        found.append(
            f"the positions are behind the offsets of group {group!r} in Kafka, which were written after them: {listed(ahead, _MAX_LISTED)}. "
            "The database is a copy from an earlier time, and the next start ends with 6"
        )
    if other:
        found.append(
            f"group {group!r} has offsets in Kafka that another program has set, and no owner begins at: {listed(other, _MAX_LISTED)}"
        )
    return found


def refuse_behind_its_mirror(settings: Settings, found: TakeOver) -> None:
    """The guard of a takeover: no position is behind the offset that was written after it, and none is gone.

    Raises:
        OffsetGapError: names the first one that is.
    """
    offsets = mirrored(settings, found.group, found.partitions)
    new = dict.fromkeys((p for p in found.partitions if p not in found.stored), 0)
    refuse_other_than_the_mirror(found.group, new, offsets)
    behind = {
        partition: (position.offset, mirror.offset)
        for partition, position in sorted(found.own.items())
        if (mirror := offsets.get(partition))
        and mirror.metadata == MIRROR
        and position.offset < mirror.offset
    }
    if behind:
        partition, (position, offset) = next(iter(behind.items()))
        places = as_places({one: at for one, (at, _) in behind.items()})
        raise OffsetGapError(
            f"{partition}: its position in eos_progress is {position}, and it was committed up to {offset} before (the "
            f"offset of group {found.group!r} in Kafka was written behind it): the database is a copy from an earlier time (a dump "
            "that was restored, a replica without its last commits). What lies between would be processed again. Fix: if the job's tables went "
            "back together with eos_progress, that is right. Put Kafka's copy back too, once the group has no members, and start again: "
            f"{suggested('offsets set', '--to', places, job=True)}. Else bring both to the same time first"
        )


def refuse_other_than_the_mirror(
    group: str, firsts: Mapping[Partition, int], offsets: Mapping[Partition, Committed]
) -> None:
    """Refuse first positions where the group has offsets that were written behind other ones.

    Args:
        group: the job's.
        firsts: where it would begin.
        offsets: what `mirrored` has returned.

    Raises:
        OffsetGapError: names the first one.
    """
    for partition, first in sorted(firsts.items()):
        mirror = offsets.get(partition)
        if mirror is None or mirror.metadata != MIRROR or mirror.offset == first:
            continue
        consequence = "skip" if first > mirror.offset else "process again"
        raise OffsetGapError(
            f"{partition}: eos_progress has no position of it, and it was committed up to {mirror.offset} before (the offset of group "
            f"{group!r} in Kafka was written behind it): the rows were deleted, or the database is another one, or a copy from before "
            f"the first run. To begin at {first} would {consequence} what lies between. Fix: bring eos_progress back; or, if that is right for the "
            f"job's tables, set the positions: {suggested('offsets set', '--to', as_places(firsts), job=True)}"
        )
