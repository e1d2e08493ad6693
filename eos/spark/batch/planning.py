"""Planning: what a batch run reads, and whether it is still there when the run begins."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence

from eos.base.commands import suggested
from eos.errors import OffsetGapError
from eos.events import Listener, OffsetsAdopted, StartPolicyApplied, ignore_event
from eos.group.committed import fresh_reader, offsets_at
from eos.group.expiry import count_started, due_for_renewal, grown
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.group.others import refuse_others
from eos.guards.owners import refuse_foreign, refuse_members, refuse_moved
from eos.guards.start_policy import apply_start_policy, preview_start_policy
from eos.guards.takeover import lost_offsets
from eos.guards.truncated import refuse_truncated
from eos.kafka.admin import Mark
from eos.kafka.group_offsets import Committed, stored_positions
from eos.offsets import OffsetVector, Partition
from eos.settings import Settings
from eos.shards import BatchShard, PartitionShard, StartShard, shard_prefix
from eos.spark.events import InputPlanned
from eos.spark.plan import Commit, InputPlan, OffsetRange
from eos.spark.source import InputLogs
from eos.spark.write.commit_record import commit_offsets

_DELETED = "retention, DeleteRecords"
_SHORTER = "the topic was created anew, or its log was truncated"
# Offsets are committed again daily; those that a run moves on anyway need it only if several runs in a row could not.
_LEFT_TO_ITS_TASK_S = 3 * 86_400
# As of a task's offsets, `<run>t<task>`: the verification tells Spark's owners from a loop's by it.
_NO_TASK = "driver"


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
        listener: called with the plan, and with a start policy that was applied.
        preview: commit no start policy; the plan is what it would have been.

    Raises:
        ConfigError: a topic is missing, nothing says where to start, the group has live members, or its
            offsets were committed in another mode of ownership.
        OffsetGapError: input was deleted before it was processed, or the topic is not the one it was.
        UnavailableError: the cluster did not answer in time.
    """
    group = settings.group_for(app)
    mode = OwnershipMode(commit)
    logs = InputLogs(settings)

    shard = StartShard(app, group).transactional_id

    def started(positions: OffsetVector) -> None:
        listener(
            StartPolicyApplied(shard, positions, settings.input.start, settings.source_of("input.start"))
        )

    refuse_members(logs.admin, group, mode, timeout_s=settings.open_timeout_s)
    with fresh_reader(settings, group, stable=True) as reader:
        # First: offsets and ends that are read later count in this topic, or the commit is refused.
        topic_ids = logs.ids_now(topics)
        if preview:
            listed, stored = preview_start_policy(settings, topics, reader)
        else:
            listed, stored = apply_start_policy(
                settings,
                topics,
                reader,
                app=app,
                mode=mode,
                on_first_offsets=started,
                on_adopted=lambda found: listener(OffsetsAdopted(shard, found)),
            )
        refuse_moved(group, stored, app)
        refuse_foreign(settings, group, stored, mode, app)
        if not (preview and settings.ownership.adopt_offsets):
            refuse_others(settings, group, stored)
        partitions = tuple(sorted(listed))
        positions = stored_positions(stored)
        # After the committed offsets: a log only grows, so what was committed is not beyond an end that is read later.
        limit = settings.spark.max_records_per_partition
        ranges = tuple(_ranges(partitions, positions, topic_ids, logs, limit))
        refuse_truncated(settings, group, positions, timeout_s=settings.open_timeout_s)
        due = _due_for_renewal(settings, partitions, stored, ranges, mode, app=app)
        if due and not preview:
            _renew_offsets(settings, group, due, app=app, mine=mode, present=stored, listener=listener)
    plan = InputPlan(group, partitions, ranges, app, commit)
    listener(InputPlanned(shard_prefix(app, group).rstrip("."), plan.starts, plan.ends, partitions))
    return plan


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


def _renew_offsets(
    settings: Settings,
    group: str,
    partitions: Sequence[Partition],
    *,
    app: str,
    mine: OwnershipMode,
    present: Mapping[Partition, Committed],
    listener: Listener,
) -> None:
    """Commit these partitions' offsets again where they stand, as the shards that own them do; new ones at their beginning.

    A task could not do this for a partition without new input: it has no task. ``present``: what the group has stored.
    """
    started = count_started(present)
    owner = f"{secrets.token_hex(6)}t{_NO_TASK}"
    shards: dict[BatchShard | PartitionShard, Sequence[Partition]]
    if mine is OwnershipMode.BATCH:
        shards = {BatchShard(app, group): partitions}
    else:
        shards = {PartitionShard(app, group, partition): [partition] for partition in partitions}

    def where_they_stand(stored: Mapping[Partition, Committed], owned: Iterable[Partition]) -> OffsetVector:
        refuse_others(settings, group, stored)  # committed since the plan looked
        if lost := [p for p in owned if p in present and p not in stored]:
            raise lost_offsets(lost[0], group)
        due = due_for_renewal(
            {p: stored.get(p) for p in owned}, mine, app, after_s=settings.input.recommit_idle_after_s
        )
        # Without epochs: those are the leaders' present ones, and not of a record before the offset.
        beginnings = dict(offsets_at(settings, Mark.START, due - stored.keys()))
        return stored_positions({p: at for p, at in stored.items() if p in due}).merged(beginnings)

    having = set(present)  # once these are committed
    for shard, owned in shards.items():
        having.update(owned)
        commit_offsets(
            settings,
            shard,
            group,
            owned,
            lambda stored, owned=owned: where_they_stand(stored, owned),  # type: ignore[misc] # mypy knows no defaults of lambdas
            metadata=OffsetMetadata(mine, str(shard), owner),
            started=grown(started, having),
            listener=listener,
        )


def _ranges(
    partitions: Sequence[Partition],
    committed: OffsetVector,
    topic_ids: Mapping[str, str],
    logs: InputLogs,
    limit: int | None,
) -> Iterator[OffsetRange]:
    stable = logs.at(Mark.LAST_STABLE, partitions)
    first = logs.at(Mark.START, partitions)
    # Behind an open transaction: only a reader that is not read_committed commits there.
    beyond = [p for p, offset in committed.items() if p in stable and offset > stable[p]]
    high = logs.at(Mark.HIGH_WATERMARK, beyond)
    for partition in partitions:
        start = committed.get(partition, 0)  # a partition that is new to its topic has none
        if start < first[partition]:
            raise _gap(partition, committed.get(partition), f"the log begins at {first[partition]}", _DELETED)
        if partition in high and start > high[partition]:
            raise _gap(partition, start, f"the log ends at {high[partition]}", _SHORTER)
        end = stable[partition] if limit is None else min(stable[partition], start + limit)
        if start < end:
            topic_id = topic_ids.get(partition.topic, "")
            yield OffsetRange(partition, start, end, stable.epoch_of(partition), topic_id)


def refuse_gone(settings: Settings, plan: InputPlan) -> None:
    """Refuse a plan whose records are not all in the log any more, or whose topics are others by now.

    Spark would wait for records beyond the end of a log for minutes, task by task and try by try.

    Raises:
        OffsetGapError: naming the first such partition or topic.
        ConfigError: a topic does not exist any more.
    """
    logs = InputLogs(settings)
    logs.refuse_recreated({(one.partition.topic, one.topic_id) for one in plan})
    partitions = [one.partition for one in plan]
    begins, high = logs.at(Mark.START, partitions), logs.at(Mark.HIGH_WATERMARK, partitions)
    for one in plan:
        if one.start < begins[one.partition]:
            raise _gap(one.partition, one.start, f"the log begins at {begins[one.partition]}", _DELETED)
        if one.end > high[one.partition]:
            ends = f"the log, which ended at {one.end} or later when the run was planned, ends at {high[one.partition]}"
            raise _gap(one.partition, one.start, ends, _SHORTER)


def _gap(partition: Partition, committed: int | None, log: str, cause: str) -> OffsetGapError:
    """The error for input that was to be read and is not in the log."""
    begun = "it is new to the group" if committed is None else f"the committed offset is {committed}"
    return OffsetGapError(
        f"{partition}: {begun}, and {log}: input is gone ({cause}). Nothing is skipped "
        "silently. Fix: decide where to go on, and set the group's offsets while no run is at work: "
        + suggested("offsets set", "--to", "WHERE", job=True)
    )
