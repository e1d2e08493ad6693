"""A batch's record of what is done: the committed offsets of the input that the rows are made of.

A task reads them under its own fence: at the start of its range it works; at the end the work is done already and it
skips; anything else is a conflict.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from eos.base.commands import suggested
from eos.errors import TransactionExpiredError, UsageError
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.guards.owners import refuse_moved
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition, as_places
from eos.settings import Settings
from eos.shards import BatchShard, PartitionShard
from eos.spark.plan import InputPlan, ends_of
from eos.spark.source import InputLogs
from eos.spark.write.commit_record import ConflictError, ShardRecord

# A transaction should use half of its time, so that a slow moment does not end it.
_ROOM = 0.5


@dataclass(frozen=True, slots=True)
class RangeRecord:
    """The commit record of a run: the ranges of its shards.

    Args:
        settings: how to reach the cluster.
        plan: of the run.
        run: a token that no other run has; letters and digits.
    """

    settings: Settings
    plan: InputPlan
    run: str = field(default_factory=lambda: secrets.token_hex(6))

    def __contains__(self, number: object) -> bool:
        return number in self.plan.by_shard

    def in_task(self, number: int, task: int) -> _ShardRange:
        """The record of one shard, in the task that writes it."""
        return _ShardRange(self, number, task)


class _ShardRange(ShardRecord):
    for_good = (TransactionExpiredError,)  # the next run takes less, if it is configured so

    def __init__(self, record: RangeRecord, number: int, task: int) -> None:
        plan, ranges = record.plan, record.plan.by_shard[number]
        self._settings = record.settings
        self._run = record.run
        self._starts = {one.partition: one.start for one in ranges}
        self._ends = ends_of(ranges)
        self.shard: BatchShard | PartitionShard = BatchShard(plan.app, plan.group)
        if plan.commit == "partition":
            self.shard = PartitionShard(plan.app, plan.group, ranges[0].partition)
        self.group = plan.group
        self.partitions = self._ends
        self.metadata = OffsetMetadata(OwnershipMode(plan.commit), str(self.shard), f"{self._run}t{task}")
        # The plan saw to it that each partition of the topics has an offset.
        self.started = Counter(partition.topic for partition in plan.partitions)

    @property
    def offsets(self) -> OffsetVector:
        return self._ends

    def is_done(self, stored: Mapping[Partition, Committed]) -> bool:
        if gone := sorted(self._ends.keys() - stored.keys()):
            # The driver has committed one for each partition before the run, also for those that are new to their topic.
            # Kafka forgets it with the topic.
            topics = {partition.topic for partition in gone}
            InputLogs(self._settings).refuse_recreated((t, self._ends.topic_ids.get(t, "")) for t in topics)
            raise ConflictError(
                f"{gone[0]}: the group {self.group!r} has no offset there any more; it had {self._starts[gone[0]]} when this "
                "run was planned. The group was deleted since. Nothing of this shard was written here. Fix: set its offsets, "
                f"here to {self._starts[gone[0]]} ({_set(gone[0], self._starts[gone[0]])}) and in each other partition to "
                "where its output ends, then run again without a plan of before. With --start earliest all output would be "
                "written again"
            )
        self._refuse_foreign(stored)
        found = {p: stored[p].offset for p in self._ends}
        if found == self._starts:
            return False
        if found != dict(self._ends):
            odd = next(p for p in found if found[p] != self._starts[p])
            raise ConflictError(
                f"{odd}: the group {self.group!r} stands at offset {found[odd]}, and this run's range is "
                f"[{self._starts[odd]}, {self._ends[odd]}): another run has committed in between. What it committed "
                "stands, nothing of this shard was written here. Fix: one run at a time; run again to go on"
            )
        self._refuse_split(stored)
        return True

    def _refuse_foreign(self, stored: Mapping[Partition, Committed]) -> None:
        """Under this task's own fence: the plan left only offsets of this app and mode, and others do not fence us."""
        refuse_moved(self.group, stored, self.shard.app)  # as copied, at the same offsets
        mine = self.metadata.mode
        for partition, committed in stored.items():
            metadata = OffsetMetadata.parse(committed.metadata)
            if metadata is None or not metadata.fits(mine) or metadata.app != self.shard.app:
                by = (
                    "another tool"
                    if metadata is None
                    else f"job {metadata.app!r} with ownership {str(metadata.mode)!r}"
                )
                raise ConflictError(
                    f"{partition}: after this run was planned, {by} has committed offset {committed.offset} in the group "
                    f"{self.group!r}; this run is of job {self.shard.app!r} with ownership {str(mine)!r}. What "
                    "was committed there stands, nothing of this shard was written here. Fix: one job per group, and one "
                    "commit unit; run again when the other one has ended"
                )

    def _refuse_split(self, stored: Mapping[Partition, Committed]) -> None:
        mine = self.metadata.owner
        for partition, committed in stored.items():
            metadata = OffsetMetadata.parse(committed.metadata)
            if metadata is not None and metadata.owner != mine and metadata.owner.startswith(f"{self._run}t"):
                raise UsageError(
                    f"{partition}: two tasks of one run ({metadata.owner} and {mine}) had rows of this "
                    "shard, and the first has committed its part with the offsets. The output of the range is not "
                    "complete. Fix: carry the column 'shard' through unchanged, and report how this came about"
                )

    def smaller(self, *, written: int | None, seconds: float) -> str:
        lengths = [end - self._starts[p] for p, end in self._ends.items()]
        timeout_s = self._settings.transaction.timeout_s
        limit = limit_that_fits(lengths, written=written, seconds=seconds, timeout_s=timeout_s)
        return f"spark.max_records_per_partition = {limit} or less (it was of up to {max(lengths)} offsets)"


def limit_that_fits(lengths: Sequence[int], *, written: int | None, seconds: float, timeout_s: float) -> int:
    """How many offsets per partition a transaction has time for, after one that expired; at least 1.

    ``lengths`` are the offsets in each range of it. ``written``: records it had written when it was cut short; None if it had
    written all of its rows. How many were still to come is not known: reckoned with one record per offset. Where a transform drops
    records that is too careful; where it makes several of one, it may take another step. ``seconds``: how long it was open.
    """
    done = 1.0 if written is None else min(1.0, written / sum(lengths))
    return max(1, int(max(lengths) * done * min(1.0, timeout_s / seconds) * _ROOM))


def _set(partition: Partition, offset: int) -> str:
    return suggested("offsets set", "--to", as_places({partition: offset}), job=True)
