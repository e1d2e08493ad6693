"""A batch's record of what is done: the committed offsets of the input that the rows are made of.

A task reads them under its own fence: at the start of its range it works; at the end the work is done already and it
skips; anything else is a conflict.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eos.commands import suggested
from eos.errors import TransactionExpiredError, UsageError
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition
from eos.settings import Settings
from eos.shards import BatchShard, PartitionShard
from eos.spark.done import ConflictError, ShardDone
from eos.spark.input_logs import InputLogs
from eos.spark.plan import Commit, InputPlan, OffsetRange, ends_of

WHOLE_INPUT = 0  # the shard number of every row with commit="batch"
# A transaction should use half of its time, so that a slow moment does not end it.
_ROOM = 0.5


@dataclass(frozen=True, slots=True)
class DoneRanges:
    """The ranges of a run's shards.

    Args:
        settings: how to reach the cluster.
        app: the first part of the transactional.ids.
        group: whose offsets are committed.
        unit: what one transaction covers.
        ranges: by shard number, the input that the shard's rows are made of.
        started: per topic, how many partitions it has: the plan saw to it that each has an offset.
        run: a token that no other run has; letters and digits.
    """

    settings: Settings
    app: str
    group: str
    unit: Commit
    ranges: Mapping[int, Sequence[OffsetRange]]
    started: Mapping[str, int]
    run: str

    @classmethod
    def of(cls, settings: Settings, plan: InputPlan) -> DoneRanges:
        """The record of a run of this plan."""
        ranges = {WHOLE_INPUT: plan.ranges}
        if plan.commit == "partition":
            ranges = {plan.shard_of(one.partition): (one,) for one in plan}
        started = Counter(partition.topic for partition in plan.partitions)
        return cls(settings, plan.app, plan.group, plan.commit, ranges, started, secrets.token_hex(6))

    def __contains__(self, number: object) -> bool:
        return number in self.ranges

    def shard(self, number: int) -> BatchShard | PartitionShard:
        """Who commits."""
        if self.unit == "batch":
            return BatchShard(self.app, self.group)
        return PartitionShard(self.app, self.group, self.ranges[number][0].partition)

    def offsets(self, number: int) -> OffsetVector:
        """What is committed when the shard is done."""
        return ends_of(self.ranges[number])

    def in_task(self, number: int, task: int) -> _DoneShard:
        """The record of one shard for the task that writes it."""
        return _DoneShard(self, number, task)


class _DoneShard(ShardDone):
    for_good = (TransactionExpiredError,)  # the next run takes less, if it is configured so

    def __init__(self, done: DoneRanges, number: int, task: int) -> None:
        self._settings = done.settings
        self._run = done.run
        self._starts = {one.partition: one.start for one in done.ranges[number]}
        self._ends = done.offsets(number)
        self.shard = done.shard(number)
        self.group = done.group
        self.partitions = self._ends
        self.metadata = OffsetMetadata(OwnershipMode(done.unit), str(self.shard), f"{done.run}t{task}")
        self.started = done.started

    def to_commit(self) -> OffsetVector:
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

    Args:
        lengths: offsets in each range of the transaction that expired.
        written: records it had written when it was cut short; None if it had written all of its rows. How many were
            still to come is not known: reckoned with one record per offset. Where a transform drops records that is too
            careful; where it makes several of one, it may take another step.
        seconds: how long it was open.
        timeout_s: how long a transaction may live.
    """
    done = 1.0 if written is None else min(1.0, written / sum(lengths))
    return max(1, int(max(lengths) * done * min(1.0, timeout_s / seconds) * _ROOM))


def _set(partition: Partition, offset: int) -> str:
    return suggested("offsets set", "--to", f"{partition.topic}:{partition.number}@{offset}", job=True)
