"""Renewal: offsets that no task of a run will commit are committed again where they stand, by the driver."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping

from eos.events import Listener
from eos.group.committed import offsets_at
from eos.group.expiry import due_for_renewal
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.kafka.admin import Mark
from eos.kafka.consumer import Committed, ConsumerClient, stored_positions
from eos.offsets import OffsetVector, Partition
from eos.producer.producer import ShardProducer
from eos.settings import Settings
from eos.shards import BatchShard, PartitionShard

# As of a task's offsets, `<run>t<task>`: the verification tells Spark's owners from a loop's by it.
_NO_TASK = "driver"


def renew_offsets(
    settings: Settings,
    partitions: Iterable[Partition],
    reader: ConsumerClient,
    *,
    app: str,
    mine: OwnershipMode,
    had: Mapping[str, int],
    listener: Listener,
) -> None:
    """Commit these partitions' offsets again where they stand, as the shards that own them do; new ones at their beginning.

    Each shard's init comes first, and then its offsets are read: two drivers that renew at once, or one that is at work
    already, can't be taken back by it. A task could not do this for a partition without new input: it has no task.

    Raises:
        FencedError: another driver has opened the shard meanwhile.
        UnavailableError: the cluster did not answer in time.
    """
    group = reader.group_id
    owner = f"{secrets.token_hex(6)}t{_NO_TASK}"
    for shard, owned in _shards(app, group, partitions, mine).items():
        with ShardProducer(
            settings,
            shard,
            metadata=OffsetMetadata(mine, str(shard), owner),
            listener=listener,
            started_partitions=had,
        ) as producer:
            stored = producer.take_over(group, owned)
            due = due_for_renewal(
                {p: stored.get(p) for p in owned}, mine, app, after_s=settings.input.recommit_idle_after_s
            )
            if due:
                with producer.transaction() as transaction:
                    transaction.add_offsets(_where_they_stand(settings, due, stored), reader.group_metadata())


def _shards(
    app: str, group: str, partitions: Iterable[Partition], mine: OwnershipMode
) -> Mapping[BatchShard | PartitionShard, list[Partition]]:
    if mine is OwnershipMode.BATCH:
        return {BatchShard(app, group): list(partitions)}
    return {PartitionShard(app, group, partition): [partition] for partition in partitions}


def _where_they_stand(
    settings: Settings,
    partitions: Iterable[Partition],
    stored: Mapping[Partition, Committed],
) -> OffsetVector:
    owned = set(partitions)
    beginnings = offsets_at(settings, Mark.START, owned - stored.keys())
    return stored_positions({p: at for p, at in stored.items() if p in owned}).merged(beginnings)
