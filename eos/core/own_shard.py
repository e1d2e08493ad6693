"""The shard that an owner has, by the mode of ownership."""

from __future__ import annotations

from eos.errors import ConfigError
from eos.group.metadata import OwnershipMode
from eos.offsets import Partition
from eos.settings import Settings
from eos.shards import OrdinalShard, PartitionShard, Shard


def own_shard(settings: Settings, app: str, partition: Partition | None) -> Shard:
    """That of the instance, or of the partition.

    Raises:
        ConfigError: there is a partition and the mode is not by partition, or the other way round.
    """
    group = settings.group_for(app)
    by_partition = OwnershipMode(settings.ownership.mode) is OwnershipMode.PARTITION
    if by_partition != (partition is not None):
        raise ConfigError(
            f"ownership.mode is {settings.ownership.mode!r}, and the session was given "
            f"{'no partition' if partition is None else f'the partition {partition}'}. Fix: "
            + (
                "a session for each partition, with partition=Partition(topic, number)"
                if by_partition
                else "ownership.mode = 'partition', or no partition"
            )
        )
    return (
        OrdinalShard(app, group, settings.ordinal)
        if partition is None
        else PartitionShard(app, group, partition)
    )
