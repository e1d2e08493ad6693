"""A last look at the partitions of a run that ends once it has caught up.

With ``ownership.mode = "partition"`` each partition has an owner of its own, which leaves once that one is processed. Until the slowest
one is, another program may commit in the others, or delete their offsets; the run would end as if all were as it left it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from eos.group.committed import OffsetStore, committed_offsets
from eos.group.others import refuse_others
from eos.guards.takeover import lost_offsets
from eos.kafka.consumer import ConsumerClient, lone_reader
from eos.offsets import Partition
from eos.settings import Settings


def refuse_strangers_since(
    settings: Settings,
    group: str,
    partitions: Sequence[Partition],
    store: Callable[[ConsumerClient], OffsetStore],
) -> None:
    """Refuse offsets that no owner has left so: each has committed one in its partition.

    Args:
        settings: how to reach the cluster.
        group: of the owners.
        partitions: theirs.
        store: where the offsets of a group's client are.

    Raises:
        ConfigError: another program has committed in one, or the offset of one was deleted.
        UnavailableError: the cluster did not answer in time.
    """
    reader = lone_reader(settings, group, stable=True)
    try:
        stored = committed_offsets(store(reader), partitions, timeout_s=settings.open_timeout_s)
    finally:
        reader.close()
    refuse_others(settings, group, stored)
    if lost := [partition for partition in partitions if partition not in stored]:
        raise lost_offsets(lost[0], group)
