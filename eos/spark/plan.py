"""InputPlan: the input offset vector of one batch run: which records it reads and where its commit will stand."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from eos import retry
from eos.errors import OffsetGapError, UsageError
from eos.events import InputPlanned, Listener, StartPolicyApplied, ignore_event
from eos.group.committed import fresh_reader, refuse_truncated
from eos.group.expiry import count_started, due_for_renewal
from eos.group.guards import refuse_foreign, refuse_members
from eos.group.metadata import OwnershipMode
from eos.group.topic_ids import TopicIds
from eos.kafka.admin import Admin, Mark
from eos.kafka.config import client_config
from eos.kafka.consumer import Committed, ConsumerClient, stored_positions
from eos.offsets import OffsetVector, Partition
from eos.session.start_policy import apply_start_policy, preview_start_policy
from eos.settings import Settings
from eos.shards import StartShard, shard_prefix
from eos.spark.renewal import renew_offsets

Commit = Literal["partition", "batch"]

# A transaction should use half of its time, so that a slow moment does not end it.
_ROOM = 0.5
DELETED = "retention, DeleteRecords"
SHORTER = "the topic was created anew, or its log was truncated"
# Offsets are committed again daily; those that a run moves on anyway need it only if several runs in a row could not.
_LEFT_TO_ITS_TASK_S = 3 * 86_400


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets [start, end) of one input partition; ``end`` is what will be committed.

    Control records and aborted records take offsets too, so ``end - start`` is no count of records. What names the log is
    committed with ``end``: the leader's epoch when the log was seen to hold it, and the topic's id. Two ranges are equal
    if their offsets are.
    """

    partition: Partition
    start: int
    end: int
    epoch: int | None = field(default=None, compare=False)
    topic_id: str = field(default="", compare=False)


@dataclass(frozen=True)
class InputPlan:
    """What one run reads: a range per input partition that has something new.

    Immutable and picklable: the executors get it as it is.

    Args:
        group: the group whose committed offsets the ranges start at.
        partitions: every partition of the input topics, sorted; a partition's place in it is its *shard* number.
        ranges: of the partitions that have new offsets, sorted by partition.
        app: the name of the batch that it was made for.
        commit: the unit of a transaction that it was made for.
    """

    group: str
    partitions: tuple[Partition, ...]
    ranges: tuple[OffsetRange, ...]
    app: str
    commit: Commit

    def __iter__(self) -> Iterator[OffsetRange]:
        return iter(self.ranges)

    def __len__(self) -> int:
        return len(self.ranges)

    @cached_property
    def _shards(self) -> dict[Partition, int]:
        return {partition: number for number, partition in enumerate(self.partitions)}

    @cached_property
    def _by_shard(self) -> dict[int, OffsetRange]:
        return {self._shards[one.partition]: one for one in self.ranges}

    def shard_of(self, partition: Partition) -> int:
        """The shard number of a partition: the value of the column ``shard``."""
        return self._shards[partition]

    def range_of(self, shard: int) -> OffsetRange | None:
        """The range of a shard number; None if it has none in this run."""
        return self._by_shard.get(shard)

    @property
    def starts(self) -> OffsetVector:
        """Where the run begins, for the partitions that it reads."""
        return OffsetVector({one.partition: one.start for one in self.ranges})

    @property
    def ends(self) -> OffsetVector:
        """What the group will have committed after the run, for the partitions that it reads."""
        return ends_of(self.ranges)

    @property
    def identity(self) -> str:
        """Twelve characters that are the same for the same ranges, and for no others: a name for the run's input."""
        text = " ".join(f"{one.partition}:{one.start}-{one.end}" for one in self.ranges)
        return hashlib.sha256(f"{self.group} {text}".encode()).hexdigest()[:12]

    def table(self) -> list[tuple[str, ...]]:
        """Rows of text for a person, the first one the head: the ranges, and what they come to.

        Offsets count control records and aborted records too.
        """
        rows = [(str(one.partition), str(one.start), str(one.end), str(one.end - one.start)) for one in self]
        total = sum(one.end - one.start for one in self)
        unchanged = len(self.partitions) - len(self.ranges)
        return [
            ("partition", "start", "end", "offsets"),
            *rows,
            (f"{len(self)} of {len(self.partitions)}, {unchanged} with nothing new", "", "", str(total)),
        ]

    def only(self, partitions: Iterable[Partition]) -> InputPlan:
        """The plan of these partitions alone; shard numbers stay."""
        wanted = set(partitions)
        return replace(self, ranges=tuple(r for r in self.ranges if r.partition in wanted))

    def refuse_other(self, app: str, group: str, inputs: Iterable[str], commit: Commit) -> None:
        """Refuse a run that the plan was not made for: it was checked against that one's offsets alone.

        Raises:
            UsageError: says what differs.
        """
        made_for = {
            "name": self.app,
            "group": self.group,
            "commit": self.commit,
            "inputs": sorted({partition.topic for partition in self.partitions}),
        }
        wanted = {"name": app, "group": group, "commit": commit, "inputs": sorted(set(inputs))}
        for what, mine in made_for.items():
            if mine != wanted[what]:
                raise UsageError(
                    f"the plan was made for {what} = {mine!r}, and this run has {what} = {wanted[what]!r}: whether another run "
                    f"is at work on those offsets was not asked. Fix: plan=batch.plan({commit!r}) of the batch that runs"
                )


def ends_of(ranges: Iterable[OffsetRange]) -> OffsetVector:
    """What will be committed for these ranges."""
    ranges = tuple(ranges)
    return OffsetVector(
        {one.partition: one.end for one in ranges},
        {one.partition: one.epoch for one in ranges if one.epoch is not None},
        {one.partition.topic: one.topic_id for one in ranges if one.topic_id},
    )


def gap(partition: Partition, committed: int | None, log: str, cause: str) -> OffsetGapError:
    """The error for input that was to be read and is not in the log."""
    begun = "it is new to the group" if committed is None else f"the committed offset is {committed}"
    return OffsetGapError(
        f"{partition}: {begun}, and {log}: input is gone ({cause}). Nothing is skipped "
        "silently. Fix: decide where to go on, and set the group's offsets with kafka-consumer-groups.sh "
        "--reset-offsets while no run is at work"
    )


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


def plan_input(
    settings: Settings,
    topics: Sequence[str],
    *,
    app: str,
    commit: Commit,
    listener: Listener = ignore_event,
    preview: bool = False,
) -> InputPlan:
    """What a run of ``app`` reads now: per partition from the committed offset to the last stable offset.

    A topic without any committed offset gets its first ones as ``input.start`` says, committed before
    anything is read. A partition that is new to a topic begins at its beginning. The end is limited by
    ``spark.max_records_per_partition``.

    Waits until no transaction is pending on the group's offsets: what a killed run left open ends with
    its transaction.timeout.ms at the latest.

    Args:
        settings: how to reach the cluster, the group, the start policy, the limit.
        topics: the input topics.
        app: the run's name: the first part of every transactional.id, and the group if none is set.
        commit: the unit that commits; offsets of the other one are refused unless ownership.adopt_offsets.
        listener: told the plan, and a start policy that was applied.
        preview: commit no start policy; the plan is what it would have been.

    Raises:
        ConfigError: a topic is missing, nothing says where to start, the group has live members, or its
            offsets were committed in another mode of ownership.
        OffsetGapError: input was deleted before it was processed, or the topic is not the one it was.
        UnavailableError: the cluster did not answer in time.
    """
    group = settings.group_for(app)
    mode = OwnershipMode(commit)
    admin = Admin(client_config(settings))
    refuse_members(admin, group, mode, within_s=settings.open_deadline_s)
    with fresh_reader(settings, group, stable=True) as reader:
        # First: offsets and ends that are read later count in this topic, or the commit is refused.
        topic_ids = _topic_ids(settings, topics)
        listed, stored = _committed(settings, topics, reader, listener, app=app, mode=mode, preview=preview)
        refuse_foreign(settings, group, stored, mode, app)
        partitions = tuple(sorted(listed))
        positions = stored_positions(stored)
        # After the committed offsets: a log only grows, so what was committed is not beyond an end that is read later.
        ranges = tuple(_ranges(settings, partitions, positions, topic_ids, admin))
        refuse_truncated(settings, group, positions, timeout_s=settings.open_deadline_s)
        due = _due_for_renewal(settings, partitions, stored, ranges, mode, app=app)
        if due and not preview:
            had = count_started(stored)
            renew_offsets(settings, due, reader, app=app, mine=mode, had=had, listener=listener)
    plan = InputPlan(group, partitions, ranges, app, commit)
    listener(InputPlanned(shard_prefix(app, group).rstrip("."), plan.starts, plan.ends, partitions))
    return plan


def _topic_ids(settings: Settings, topics: Sequence[str]) -> dict[str, str]:
    ids = TopicIds(settings)
    return retry.ask(lambda timeout_s: ids.now(topics, timeout_s), within_s=settings.open_deadline_s)


def _due_for_renewal(
    settings: Settings,
    partitions: Sequence[Partition],
    stored: Mapping[Partition, Committed],
    ranges: Sequence[OffsetRange],
    mode: OwnershipMode,
    *,
    app: str,
) -> list[Partition]:
    """An old offset is left to the task that reads on from it, unless that has failed for days."""
    read = {one.partition for one in ranges}
    everywhere = due_for_renewal(
        {p: stored.get(p) for p in partitions}, mode, app, after_s=_LEFT_TO_ITS_TASK_S
    )
    idle = {p: stored.get(p) for p in partitions if p not in read}
    return sorted(everywhere | due_for_renewal(idle, mode, app, after_s=settings.input.recommit_idle_after_s))


def _committed(
    settings: Settings,
    topics: Sequence[str],
    reader: ConsumerClient,
    listener: Listener,
    *,
    app: str,
    mode: OwnershipMode,
    preview: bool,
) -> tuple[list[Partition], dict[Partition, Committed]]:
    if preview:
        return preview_start_policy(settings, topics, reader)

    def started(positions: OffsetVector) -> None:
        shard = StartShard(app, reader.group_id).transactional_id
        listener(StartPolicyApplied(shard, positions, settings.input.start))

    return apply_start_policy(settings, topics, reader, app=app, mode=mode, on_first_offsets=started)


def _ranges(
    settings: Settings,
    partitions: Sequence[Partition],
    committed: OffsetVector,
    topic_ids: Mapping[str, str],
    admin: Admin,
) -> Iterator[OffsetRange]:
    def at(mark: Mark, wanted: Sequence[Partition]) -> OffsetVector:
        return retry.ask(
            lambda timeout_s: admin.offsets_at(mark, wanted, timeout_s), within_s=settings.open_deadline_s
        )

    stable = at(Mark.LAST_STABLE, partitions)
    first = at(Mark.START, partitions)
    # Behind an open transaction; only somebody who does not read read_committed commits there.
    beyond = [p for p, offset in committed.items() if p in stable and offset > stable[p]]
    high = at(Mark.HIGH_WATERMARK, beyond)
    limit = settings.spark.max_records_per_partition
    for partition in partitions:
        start = committed.get(partition, 0)  # a partition that is new to its topic has none
        if start < first[partition]:
            raise gap(partition, committed.get(partition), f"the log begins at {first[partition]}", DELETED)
        if partition in high and start > high[partition]:
            raise gap(partition, start, f"the log ends at {high[partition]}", SHORTER)
        end = stable[partition] if limit is None else min(stable[partition], start + limit)
        if start < end:
            topic_id = topic_ids.get(partition.topic, "")
            yield OffsetRange(partition, start, end, stable.epoch_of(partition), topic_id)
