"""Adoption: offsets that were committed in another mode of ownership become a batch's own, once, where they stand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from eos.admission import in_other_mode
from eos.events import Listener
from eos.kafka.consumer import ConsumerClient
from eos.offsets import OffsetVector, Partition
from eos.producer import TransactionalProducer
from eos.settings import Settings
from eos.shards import BatchShard, PartitionShard
from eos.stamps import OwnershipMode, Stamp


def adopt_offsets(
    settings: Settings,
    partitions: Iterable[Partition],
    reader: ConsumerClient,
    *,
    app: str,
    mine: OwnershipMode,
    listener: Listener,
) -> None:
    """Commit these partitions' offsets again where they stand, as the shards that will own them do.

    Each shard's init comes first, and then its offsets are read: two drivers that adopt at once, or one that is at work
    already, can't be taken back by it. A task could not do this for a partition without new input: it has no task.

    Raises:
        FencedError: another driver has opened the shard meanwhile.
        UnavailableError: the cluster did not answer in time.
    """
    group = reader.group_id
    for shard, owned in _shards(app, group, partitions, mine).items():
        with TransactionalProducer(
            settings, shard, stamp=Stamp(mine, str(shard)), listener=listener
        ) as producer:
            stored = producer.take_over(group, owned)
            offsets = OffsetVector({p: stored[p].offset for p in in_other_mode(stored, mine)})
            if offsets:
                with producer.transaction() as transaction:
                    transaction.add_offsets(offsets, reader.group_metadata())


def _shards(
    app: str, group: str, partitions: Iterable[Partition], mine: OwnershipMode
) -> Mapping[BatchShard | PartitionShard, list[Partition]]:
    if mine is OwnershipMode.BATCH:
        return {BatchShard(app, group): list(partitions)}
    return {PartitionShard(app, group, partition): [partition] for partition in partitions}
