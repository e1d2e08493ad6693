"""Renewal: offsets that no task of a run will commit are committed again where they stand, by the driver."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping

from eos.events import Listener
from eos.group.committed import offsets_at
from eos.group.expiry import due_for_renewal
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.kafka.admin import Mark
from eos.kafka.consumer import ConsumerClient
from eos.kafka.group_offsets import Committed, stored_positions
from eos.offsets import OffsetVector, Partition
from eos.settings import Settings
from eos.shards import BatchShard, PartitionShard
from eos.spark.shard_offsets import commit_offsets

# As of a task's offsets, `<run>t<task>`: the verification tells Spark's owners from a loop's by it.
_NO_TASK = "driver"


def renew_offsets(
    settings: Settings,
    partitions: Iterable[Partition],
    reader: ConsumerClient,
    *,
    app: str,
    mine: OwnershipMode,
    started: Mapping[str, int],
    listener: Listener,
) -> None:
    """Commit these partitions' offsets again where they stand, as the shards that own them do; new ones at their beginning.

    A task could not do this for a partition without new input: it has no task.

    Raises:
        FencedError: another driver has opened the shard meanwhile.
        UnavailableError: the cluster did not answer in time.
    """
    group = reader.group_id
    owner = f"{secrets.token_hex(6)}t{_NO_TASK}"
    shards: dict[BatchShard | PartitionShard, list[Partition]]
    if mine is OwnershipMode.BATCH:
        shards = {BatchShard(app, group): list(partitions)}
    else:
        shards = {PartitionShard(app, group, partition): [partition] for partition in partitions}

    def where_they_stand(stored: Mapping[Partition, Committed], owned: Iterable[Partition]) -> OffsetVector:
        due = due_for_renewal(
            {p: stored.get(p) for p in owned}, mine, app, after_s=settings.input.recommit_idle_after_s
        )
        # Without epochs: those are the leaders' present ones, and not of a record before the offset.
        beginnings = dict(offsets_at(settings, Mark.START, due - stored.keys()))
        return stored_positions({p: at for p, at in stored.items() if p in due}).merged(beginnings)

    for shard, owned in shards.items():
        commit_offsets(
            settings,
            shard,
            group,
            owned,
            lambda stored, owned=owned: where_they_stand(stored, owned),  # type: ignore[misc] # mypy knows no defaults of lambdas
            metadata=OffsetMetadata(mine, str(shard), owner),
            started=started,
            listener=listener,
        )
