"""What a start has seen of its group's offsets: they do not go, do not go back, and are not begun anew."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from eos.base.commands import suggested
from eos.core.surroundings import TakeOver
from eos.errors import ConfigError
from eos.group.metadata import OffsetMetadata
from eos.group.others import of_others
from eos.group.topics import TopicIds, stored_topic_ids
from eos.guards.expired import ever_written
from eos.guards.takeover import STARTED_THEN, lost_offsets
from eos.kafka.group_offsets import Committed
from eos.offsets import Partition, as_places
from eos.settings import Settings
from eos.shards import STARTED


class SeenOffsets:
    """The looks of one start at its group, each held against those before.

    Another start that does not know of an offset, since it was deleted before its first look, begins the topic anew.
    """

    def __init__(self, settings: Settings, group: str, *, when: str = STARTED_THEN) -> None:
        self._settings = settings
        self._group = group
        self._when = when
        self._topics: set[str] = set()
        self._offsets: dict[Partition, Committed] = {}

    def compare(self, partitions: Collection[Partition], stored: Mapping[Partition, Committed]) -> None:
        """Hold what is stored now against what was seen before, and remember it.

        Raises:
            ConfigError: a topic has no offset any more, or an offset of eos's is gone, went back, or was begun anew.
            OffsetGapError: a topic has none, since it was deleted and created anew.
            UnavailableError: the cluster did not answer in time.
        """
        settings, group = self._settings, self._group
        there = {partition.topic for partition in stored}
        gone = [p for p in partitions if p.topic in self._topics - there]
        if was_in := stored_topic_ids({p: self._offsets.get(p) for p in gone}):
            ids, timeout_s = TopicIds(settings), settings.open_timeout_s
            now_in = ids.of({topic for topic, _ in was_in}, timeout_s=timeout_s)
            ids.refuse_recreated(was_in, now_in, timeout_s=timeout_s)
        if lost := ever_written(settings, gone):
            raise lost_offsets(lost[0], group, when=self._when)
        here = [p for p in partitions if p.topic in there]
        _refuse_gone_back(self._offsets, stored, here, group, when=self._when)
        self._topics |= there
        others = of_others(stored)
        self._offsets.update((p, one) for p, one in stored.items() if p not in others)


def gone_back(_: Settings, found: TakeOver) -> None:
    """The guard of a takeover: refuse an offset that is gone, behind the one which the owner has seen when it started, or begun anew."""
    _refuse_gone_back(found.entered, found.stored, found.partitions, found.group, when=STARTED_THEN)


def _refuse_gone_back(
    before: Mapping[Partition, Committed],
    stored: Mapping[Partition, Committed],
    partitions: Iterable[Partition],
    group: str,
    *,
    when: str,
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
            raise lost_offsets(partition, group, when=when)
        if now is None or now.offset == was.offset:
            continue
        is_back = now.offset < was.offset
        if is_back or _is_begun(now):
            raise ConfigError(
                f"{partition}: the group {group!r} had the committed offset {was.offset} {when}, and has {now.offset} "
                "now: it was set back, or deleted and begun anew by another start. What lies between the two may "
                f"{'be processed twice' if is_back else 'never be processed'}. Fix: stop every instance. If {now.offset} is meant, start "
                "again. Else look in the output how far the input was processed, and set the offset: "
                + suggested("offsets set", "--to", as_places({partition: was.offset}), job=True)
            )


def _is_begun(stored: Committed) -> bool:
    """Whether a start has begun here, and no owner has committed since."""
    metadata = OffsetMetadata.parse(stored.metadata)
    return metadata is not None and metadata.shard == STARTED
