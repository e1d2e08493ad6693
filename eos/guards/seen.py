"""What a start has seen of its group's offsets: they do not go, and do not go back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from eos.base.commands import suggested
from eos.core.surroundings import TakeOver
from eos.errors import ConfigError
from eos.group.metadata import OffsetMetadata
from eos.group.others import of_others
from eos.group.topics import stored_topic_ids
from eos.guards.expired import ever_written
from eos.guards.takeover import lost_offsets
from eos.kafka.group_offsets import Committed
from eos.offsets import Partition, as_places
from eos.settings import Settings


class SeenOffsets:
    """The looks of one start at its group, each held against those before.

    Another start that does not know of an offset, since it was deleted before its first look, begins the topic anew.

    Attributes:
        offsets: of eos's, as they were seen last.
    """

    def __init__(self, settings: Settings, group: str) -> None:
        self._settings = settings
        self._group = group
        self._topics: set[str] = set()
        self.offsets: dict[Partition, Committed] = {}

    def compare(self, partitions: Collection[Partition], stored: Mapping[Partition, Committed]) -> None:
        """Hold what is stored now against what was seen before, and remember it.

        Raises:
            ConfigError: a topic has no offset any more, or an offset of eos's is gone, or went back.
        """
        there = {partition.topic for partition in stored}
        gone = [p for p in partitions if p.topic in self._topics - there]
        if lost := ever_written(self._settings, gone):
            raise lost_offsets(lost[0], self._group)
        _refuse_gone_back(self.offsets, stored, [p for p in partitions if p.topic in there], self._group)
        self._topics |= there
        others = of_others(stored)
        self.offsets.update((p, one) for p, one in stored.items() if p not in others)


def gone_back(_: Settings, found: TakeOver) -> None:
    """The guard of a takeover: refuse an offset that is gone, or behind the one which the owner has seen when it started."""
    _refuse_gone_back(found.entered, found.stored, found.partitions, found.group)


def _refuse_gone_back(
    before: Mapping[Partition, Committed],
    stored: Mapping[Partition, Committed],
    partitions: Iterable[Partition],
    group: str,
) -> None:
    """What another program has committed is for another guard; what counts in a topic that was created anew since is no step back."""
    now_in, others = dict(stored_topic_ids(stored)), of_others(stored)
    for partition in sorted(partitions):
        if partition not in before or partition in others:
            continue
        was, now = before[partition], stored.get(partition)
        metadata = OffsetMetadata.parse(was.metadata)
        counted_in = "" if metadata is None else metadata.topic
        if counted_in and counted_in != now_in.get(partition.topic, counted_in):
            continue
        if now is None and was.offset:
            raise lost_offsets(partition, group)
        if now is not None and now.offset < was.offset:
            raise ConfigError(
                f"{partition}: the group {group!r} had the committed offset {was.offset} when this instance started, and has {now.offset} "
                "now: it was set back, or deleted and begun anew by another start. What lies between the two may be processed twice. Fix: stop "
                f"every instance. If {now.offset} is meant, start again. Else look in the output for what was processed again, and set the "
                f"offset: {suggested('offsets set', '--to', as_places({partition: was.offset}), job=True)}"
            )
