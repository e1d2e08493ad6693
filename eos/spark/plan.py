"""InputPlan: the input offset vector of one batch run: which records it reads and where its commit will stand."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from eos import retry
from eos.admission import refuse_members, refuse_other_mode
from eos.errors import OffsetGapError
from eos.events import InputPlanned, Listener, StartPolicyApplied, nobody
from eos.expiry import due_for_renewal, partitions_had
from eos.kafka.admin import Admin, Mark
from eos.kafka.consumer import Committed, ConsumerClient
from eos.offsets import OffsetVector, Partition
from eos.readers import fresh_reader
from eos.settings import Settings
from eos.shards import StartShard, shard_prefix
from eos.spark.renewal import renew_offsets
from eos.stamps import OwnershipMode
from eos.start import apply_start_policy, preview_start_policy

Commit = Literal["partition", "batch"]

# A transaction should use half of its time, so that a slow moment does not end it.
_ROOM = 0.5
# Offsets are committed again daily; those that a run moves on anyway need it only if several runs in a row could not.
_LEFT_TO_ITS_TASK_S = 3 * 86_400


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets [start, end) of one input partition; ``end`` is what will be committed.

    Control records and aborted records take offsets too, so ``end - start`` is no count of records.
    """

    partition: Partition
    start: int
    end: int


@dataclass(frozen=True)
class InputPlan:
    """What one run reads: a range per input partition that has something new.

    Immutable and picklable: the executors get it as it is.

    Args:
        group: the group whose committed offsets the ranges start at.
        partitions: every partition of the input topics, sorted; a partition's place in it is its *shard* number.
        ranges: of the partitions that have new offsets, sorted by partition.
    """

    group: str
    partitions: tuple[Partition, ...]
    ranges: tuple[OffsetRange, ...]

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
        return OffsetVector({one.partition: one.end for one in self.ranges})

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
        return InputPlan(self.group, self.partitions, tuple(r for r in self.ranges if r.partition in wanted))


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
    listener: Listener = nobody,
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
    admin = Admin(settings.client_config())
    refuse_members(admin, group, mode, within_s=settings.open_deadline_s)
    with fresh_reader(settings, group, stable=True) as reader:
        listed, stored = _committed(settings, topics, reader, app, listener, preview=preview)
        refuse_other_mode(settings, group, stored, mode)
        partitions = tuple(sorted(listed))
        # After the committed offsets: a log only grows, so what was committed is not beyond an end that is read later.
        committed = {p: one.offset for p, one in stored.items()}
        ranges = tuple(_ranges(settings, partitions, committed, admin))
        due = _due_for_renewal(settings, partitions, stored, ranges, mode)
        if due and not preview:
            had = partitions_had(stored)
            renew_offsets(settings, due, reader, app=app, mine=mode, had=had, listener=listener)
    plan = InputPlan(group, partitions, ranges)
    listener(InputPlanned(shard_prefix(app, group).rstrip("."), plan.starts, plan.ends, partitions))
    return plan


def _due_for_renewal(
    settings: Settings,
    partitions: Sequence[Partition],
    stored: Mapping[Partition, Committed],
    ranges: Sequence[OffsetRange],
    mode: OwnershipMode,
) -> list[Partition]:
    """An old offset is left to the task that reads on from it, unless that has failed for days."""
    read = {one.partition for one in ranges}
    everywhere = due_for_renewal({p: stored.get(p) for p in partitions}, mode, after_s=_LEFT_TO_ITS_TASK_S)
    idle = {p: stored.get(p) for p in partitions if p not in read}
    return sorted(everywhere | due_for_renewal(idle, mode, after_s=settings.input.recommit_idle_after_s))


def _committed(
    settings: Settings,
    topics: Sequence[str],
    reader: ConsumerClient,
    app: str,
    listener: Listener,
    *,
    preview: bool,
) -> tuple[list[Partition], dict[Partition, Committed]]:
    if preview:
        return preview_start_policy(settings, topics, reader)

    def started(positions: OffsetVector) -> None:
        shard = StartShard(app, reader.group_id).transactional_id
        listener(StartPolicyApplied(shard, positions, settings.input.start))

    return apply_start_policy(settings, topics, reader, app=app, tell=started)


def _ranges(
    settings: Settings, partitions: Sequence[Partition], committed: Mapping[Partition, int], admin: Admin
) -> Iterator[OffsetRange]:
    def at(mark: Mark, wanted: Sequence[Partition]) -> dict[Partition, int]:
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
        start = committed.get(partition, first[partition])
        if start < first[partition]:
            raise _gap(partition, start, f"the log begins at {first[partition]}", "retention, DeleteRecords")
        if partition in high and start > high[partition]:
            raise _gap(partition, start, f"the log ends at {high[partition]}", "the topic was created anew")
        end = stable[partition] if limit is None else min(stable[partition], start + limit)
        if start < end:
            yield OffsetRange(partition, start, end)


def _gap(partition: Partition, committed: int, log: str, cause: str) -> OffsetGapError:
    return OffsetGapError(
        f"{partition}: the committed offset is {committed}, and {log}: input is gone ({cause}). Nothing is skipped "
        "silently. Fix: decide where to go on, and set the group's offsets with kafka-consumer-groups.sh "
        "--reset-offsets while no run is at work"
    )
