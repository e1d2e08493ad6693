"""Guards of a takeover that only look at what was found: another owner's offsets, other topics, input that is gone."""

from __future__ import annotations

from eos.base.commands import suggested
from eos.core.surroundings import TakeOver
from eos.errors import ConfigError, OffsetGapError
from eos.group.committed import offsets_at
from eos.group.others import refuse_others
from eos.group.topics import refuse_recreated, stored_topic_ids
from eos.guards.expired import ever_written
from eos.guards.owners import refuse_foreign, refuse_moved
from eos.kafka.admin import Mark
from eos.offsets import Partition, as_places
from eos.settings import Settings


def recreated(_: Settings, found: TakeOver) -> None:
    """Refuse offsets of a topic that was deleted and created anew; also where they are gone with it, and the owner has seen them."""
    topics = {partition.topic for partition in found.partitions} - {
        partition.topic for partition in found.stored
    }
    gone = {p: one for p, one in found.entered.items() if p.topic in topics}
    ids = stored_topic_ids(found.own) | stored_topic_ids(gone)
    refuse_recreated({*ids, *found.known_ids}, found.topic_ids)


def foreign(settings: Settings, found: TakeOver) -> None:
    """Refuse offsets of another app, mode of ownership or program, or that were moved. What a start has adopted was committed again by it."""
    refuse_moved(found.group, found.own, found.app)
    refuse_foreign(settings, found.group, found.own, found.mode, found.app)
    refuse_others(settings, found.group, found.own)


def new_and_deleted(settings: Settings, found: TakeOver) -> None:
    """A partition without an offset in a topic that was started before is new: it is read from offset 0, if that is still there.

    Every topic was started when the owner entered. A topic without any offset has lost them since: the group was deleted.
    """
    new = [partition for partition in found.partitions if partition not in found.stored]
    started = {partition.topic for partition in found.stored}
    if lost := ever_written(settings, [partition for partition in new if partition.topic not in started]):
        raise lost_offsets(lost[0], found.group)
    for partition, beginning in offsets_at(settings, Mark.START, new).items():
        if beginning > 0:
            raise OffsetGapError(
                f"{partition}: it is new to the group {found.group!r}, and its log begins at {beginning}: input was deleted "
                "(retention, DeleteRecords) before it was processed. Nothing is skipped silently. Fix: to go on without it, "
                "set the offset while the job is stopped: "
                + suggested("offsets set", "--to", as_places({partition: beginning}), job=True)
            )


STARTED_THEN = "when this instance started"


def lost_offsets(partition: Partition, group: str, *, when: str = STARTED_THEN) -> ConfigError:
    """The error for a partition that had a committed offset then."""
    return ConfigError(
        f"{partition}: the group {group!r} had committed offsets of {partition.topic} {when}, and has none here any "
        "more: they were deleted. How far the input was processed is not known; reading it from its beginning could write its output "
        "twice. Fix: stop every instance, find each partition's last processed record in the output, and set the offsets: "
        + suggested("offsets set", "--to", as_places({partition: "N"}), job=True)
    )
