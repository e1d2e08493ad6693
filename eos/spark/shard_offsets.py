"""Offsets that a shard commits without any rows: read under its own fence, and committed as its owner does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from eos.events import Listener, ignore_event
from eos.group.committed import fresh_reader
from eos.group.metadata import OffsetMetadata
from eos.kafka.group_offsets import Committed, GroupMetadata
from eos.offsets import OffsetVector, Partition
from eos.producer.producer import ShardProducer
from eos.settings import Settings
from eos.shards import Shard

_metadata: dict[str, GroupMetadata] = {}


def group_metadata(settings: Settings, group: str) -> GroupMetadata:
    """The metadata of no member of a group, which is its name alone: made once per process."""
    if group not in _metadata:
        with fresh_reader(settings, group, stable=False) as reader:
            _metadata[group] = reader.group_metadata()
    return _metadata[group]


def commit_offsets(
    settings: Settings,
    shard: Shard,
    group: str,
    partitions: Collection[Partition],
    choose: Callable[[Mapping[Partition, Committed]], OffsetVector],
    *,
    metadata: OffsetMetadata,
    started: Mapping[str, int],
    listener: Listener = ignore_event,
) -> dict[Partition, Committed | None]:
    """Own a shard for as long as it takes to commit offsets.

    The init comes first, and then the offsets are read: of two drivers at once neither takes the other's commit back.

    ``choose`` goes from what is stored of ``partitions`` to what is committed, which may be nothing. Returns what is
    stored then.

    Raises:
        FencedError: another driver has opened the shard meanwhile.
        EosError: what ``choose`` raised, or the commit met.
    """
    with ShardProducer(
        settings, shard, metadata=metadata, listener=listener, started_partitions=started
    ) as producer:
        if offsets := choose(producer.take_over(group, partitions)):
            with producer.transaction() as transaction:
                transaction.add_offsets(offsets, group_metadata(settings, group))
        return producer.owned_offsets(group).stored(partitions)
