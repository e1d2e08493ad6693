"""What a start has seen of its group's offsets: they do not go, and do not go back, until its input is taken over."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from eos.base.commands import suggested
from eos.core.surroundings import TakeOver
from eos.errors import ConfigError
from eos.group.others import of_others
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
        self.offsets: dict[Partition, int] = {}

    def compare(self, partitions: Collection[Partition], stored: Mapping[Partition, Committed]) -> None:
        """Hold what is stored now against what was seen before, and remember it.

        Raises:
            ConfigError: a topic has no offset any more, or an offset of eos's went back.
        """
        there = {partition.topic for partition in stored}
        gone = [p for p in partitions if p.topic in self._topics - there]
        if lost := ever_written(self._settings, gone):
            raise lost_offsets(lost[0], self._group)
        _refuse_gone_back(self.offsets, stored, self._group)
        self._topics |= there
        others = of_others(stored)
        self.offsets.update({p: one.offset for p, one in stored.items() if p not in others})


def gone_back(_: Settings, found: TakeOver) -> None:
    """The guard of a takeover: refuse an offset that is behind the one which the owner has seen when it started."""
    _refuse_gone_back(found.entered, found.own, found.group)


def _refuse_gone_back(
    before: Mapping[Partition, int], stored: Mapping[Partition, Committed], group: str
) -> None:
    others = of_others(stored)
    for partition, offset in sorted(before.items()):
        now = stored[partition].offset if partition in stored and partition not in others else offset
        if now < offset:
            raise ConfigError(
                f"{partition}: the group {group!r} had the committed offset {offset} when this instance started, and has {now} now: it was "
                "set back, or deleted, and another instance has begun the topic anew. Input between the two may be processed twice. Fix: stop "
                "every instance, look in the output for what was processed again, and set the offset: "
                + suggested("offsets set", "--to", as_places({partition: offset}), job=True)
            )
