"""A last look at the partitions of a run that ends once it has caught up.

With ``ownership.mode = "partition"`` each partition has an owner of its own, which leaves once that one is processed. Until the slowest
one is, another program may commit in the others, or delete their offsets; the run would end as if all were as it left it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from eos.group.committed import OffsetStore, committed_offsets
from eos.group.others import refuse_others
from eos.guards.seen import SeenOffsets
from eos.kafka.consumer import ConsumerClient, lone_reader
from eos.kafka.group_offsets import Committed
from eos.offsets import Partition
from eos.settings import Settings


def refuse_moved_since(
    settings: Settings,
    group: str,
    left: Mapping[Partition, Committed],
    store: Callable[[ConsumerClient], OffsetStore],
) -> None:
    """Refuse offsets that are not as the owners have left them, or further on.

    Args:
        settings: how to reach the cluster.
        group: of the owners.
        left: what each has left in its partition.
        store: where the offsets of a group's client are.

    Raises:
        ConfigError: another program has committed in one, or the offset of one was deleted or set back.
        OffsetGapError: a topic was deleted and created anew.
        UnavailableError: the cluster did not answer in time.
    """
    seen = SeenOffsets(settings, group)
    seen.compare(left, left)
    reader = lone_reader(settings, group, stable=True)
    try:
        stored = committed_offsets(store(reader), left, timeout_s=settings.open_timeout_s)
    finally:
        reader.close()
    refuse_others(settings, group, stored)
    seen.compare(left, stored)
