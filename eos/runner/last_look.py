"""A last look at the partitions of a run that ends once it has caught up.

With ``ownership.mode = "partition"`` each partition has an owner of its own, which leaves once that one is processed. Until the slowest
one is, another program may commit in the others, or delete their offsets; the run would end as if all were as it left it. So the
process that ends last looks: that of the run, or the parent of several workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from eos import retry
from eos.errors import UnavailableError
from eos.faces.surroundings import SURROUNDINGS
from eos.group.committed import OffsetStore, committed_offsets, fresh_reader
from eos.group.others import refuse_others
from eos.guards.seen import SeenOffsets
from eos.job import OwnLoops
from eos.kafka.consumer import ConsumerClient
from eos.kafka.group_offsets import Committed
from eos.offsets import Partition
from eos.runner.stopping import stop_signals
from eos.settings import Settings
from eos.transform import Applied

OffsetStoreOf = Callable[[ConsumerClient], OffsetStore]  # where the offsets of a group's client are


def refuse_moved_since(
    settings: Settings,
    group: str,
    left: Mapping[Partition, Committed],
    store: OffsetStoreOf,
) -> None:
    """Refuse offsets that are not as the owners have left them, or further on.

    Args:
        settings: how to reach the cluster.
        group: of the owners.
        left: what each has left in its partition.
        store: of the owners.

    Raises:
        ConfigError: another program has committed in one, or the offset of one was deleted or set back.
        OffsetGapError: a topic was deleted and created anew.
        UnavailableError: the cluster did not answer in time.
    """
    seen = SeenOffsets(settings, group, when="when its owner was done")
    seen.compare(left, left)
    with fresh_reader(settings, group, stable=True) as reader:
        stored = committed_offsets(store(reader), left, timeout_s=settings.open_timeout_s)
    refuse_others(settings, group, stored)
    seen.compare(left, stored)


def refuse_moved_since_workers(
    work: Applied | OwnLoops, settings: Settings, group: str, left: Mapping[Partition, Committed]
) -> bool:
    """As :func:`refuse_moved_since`, in the main thread of the workers' parent.

    Args:
        work: what the workers have done, bound in this process.
        settings: of the parent.
        group: of the owners.
        left: what the owners of all workers have left; empty where there is nothing to look at.

    Returns:
        Whether it has looked: SIGTERM or Ctrl-C ends a look that has no answer yet.
    """
    if not left or not work.reads_topics:
        return True
    destination = (work.surroundings(settings) or SURROUNDINGS).destination
    with stop_signals() as stop, retry.given_up_when(stop.is_set):
        try:
            refuse_moved_since(settings, group, left, destination.store)
        except UnavailableError as error:
            if not error.given_up:
                raise
            return False
        finally:
            work.close()
    return True
