"""Status: how far a job is, who runs it, and what holds it up; asked of the cluster, without joining the group."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import chain

from eos.base.deadline import Deadline
from eos.errors import EosError
from eos.group.committed import committed_offsets, fresh_reader, offsets_at, partitions_of
from eos.group.metadata import OffsetMetadata
from eos.group.strangers import strangers
from eos.job import Declaration
from eos.kafka.admin import Admin, Mark
from eos.kafka.group_offsets import Committed
from eos.kafka.groups import Member
from eos.offsets import Partition
from eos.ops.check.held_back import ENDED, HeldBack, Suspects, ends_of, unknown
from eos.ops.check.reach import await_brokers
from eos.ops.check.transactions import TransactionDescription, TransactionsView
from eos.ops.positions import kept_elsewhere
from eos.retry import ask
from eos.settings import Settings

# A job whose input comes commits several times a second; a slow transform is named in its log after 10 s.
_LONG_AGO_S = 60.0
_ASK_S = 15.0
_INTERVALS = 3  # so long a transaction may be filled: see `eos.runner.pace`


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """How far an input partition is processed.

    Attributes:
        partition: which one.
        committed: the next offset to process; None if the group has none.
        metadata: what was stored with it; None if another program than eos has.
        lso: the last stable offset: up to there a job can read.
        end: the high watermark.
        held_back: whose open transaction lies between the two, in words; "" if there is none.
        member: who has it now, by the group's coordinator; None without a member.
        leader: the broker that leads it; None if none does.
        start: the first offset that the log still holds.
        filled_s: for how long a transaction of the job may be filled before it is committed.
    """

    partition: Partition
    committed: int | None
    metadata: OffsetMetadata | None
    lso: int
    end: int
    held_back: str
    member: str | None
    leader: str | None = None
    start: int = 0
    filled_s: float = 0.0

    @property
    def lag(self) -> int | None:
        """Offsets that a job could process (transaction markers count); None without a committed offset."""
        return None if self.committed is None else max(0, self.lso - max(self.committed, self.start))

    @property
    def gone(self) -> int:
        """Offsets that were deleted before they were processed, at most (markers count)."""
        return 0 if self.committed is None else max(0, self.start - self.committed)

    @property
    def beyond(self) -> int:
        """How far the offset is beyond the end of the log."""
        return 0 if self.committed is None else max(0, self.committed - self.end)

    @property
    def age_s(self) -> float | None:
        """Seconds since the offset was committed, by the clocks of its owner and of this process."""
        return None if self.metadata is None else max(0.0, time.time() - self.metadata.at_s)

    @property
    def waits(self) -> bool:
        """Whether there is input, and nothing of it was committed for so long that an owner hangs, or there is none."""
        return bool(self.lag) and self.age_s is not None and self.age_s > _LONG_AGO_S + self.filled_s


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What the cluster knows of a job.

    Attributes:
        group: its consumer group.
        members: of that group; none with ownership by partition, and of Spark.
        partitions: of its inputs.
        transactions: what the coordinators know of its transactional.ids; None if they could not be asked.
        unknown: why not, and what else could not be found out, in words.
        kept_in: what the positions are kept in, if they are no offsets of the group.
        remarks: what there is to say of these positions.
        strangers: members that are no instances of a job with these settings.
        outputs: what is held back of its outputs, other than by an open transaction of its own.
    """

    group: str
    members: tuple[Member, ...]
    partitions: tuple[PartitionStatus, ...]
    transactions: tuple[TransactionDescription, ...] | None
    unknown: tuple[str, ...] = ()
    kept_in: str = ""
    remarks: tuple[str, ...] = ()
    strangers: tuple[Member, ...] = ()
    outputs: tuple[HeldBack, ...] = ()


def status(job: Declaration, settings: Settings, *, timeout_s: float = 15.0) -> JobStatus:
    """What the cluster knows of a job, and the database that its positions are in. It only reads, and joins no group.

    Raises:
        UnavailableError: the cluster or the database did not answer in time.
        ConfigError: an input does not exist, or access was refused.
    """
    admin = Admin.of(settings)
    await_brokers(settings, timeout_s=timeout_s, admin=admin)
    deadline = Deadline(timeout_s)
    looked_at = job.identity(settings)
    group, kept = looked_at.group, kept_elsewhere(settings, looked_at)
    with fresh_reader(settings, group, stable=False) as reader:
        partitions = partitions_of(reader, looked_at.inputs, timeout_s=deadline.left_s)
        # First the ends: an LSO read afterwards is behind one only for what is open.
        ends, lsos, starts = (
            offsets_at(settings, mark, partitions, admin=admin, timeout_s=deadline.left_s)
            for mark in (Mark.HIGH_WATERMARK, Mark.LAST_STABLE, Mark.START)
        )
        leaders = ask(lambda s: admin.leaders(looked_at.inputs, s), timeout_s=deadline.left_s)
        members = ask(lambda s: admin.groups.members(group, s), timeout_s=deadline.left_s)
        if kept is None:
            stored = committed_offsets(reader, partitions, timeout_s=deadline.left_s)
        else:
            stored = kept.stored(partitions)
        passed = [partition for partition, one in stored.items() if one.offset > ends[partition]]
        ends = ends.merged(
            offsets_at(settings, Mark.HIGH_WATERMARK, passed, admin=admin, timeout_s=deadline.left_s)
        )
    transactions: tuple[TransactionDescription, ...] | None = None
    not_known: tuple[str, ...] = ()
    of_outputs: list[tuple[HeldBack, ...]] = []
    try:
        with TransactionsView(settings) as view:
            suspects = [Suspects(settings, view, lsos, ends, _ASK_S)]
            try:
                suspects.append(
                    Suspects(settings, view, *ends_of(settings, looked_at.outputs, _ASK_S), _ASK_S)
                )
            except EosError as error:
                not_known = (f"the outputs could not be asked for: {error}",)
            known = view.describe(view.transactional_ids())
            found, *of_outputs = (one.held_back_by(known.values()) for one in suspects)
        transactions = tuple(
            known[name] for name in sorted(known) if looked_at.ids and name.startswith(looked_at.ids)
        )
    except EosError as error:
        found = unknown(lsos, ends, error)
        not_known += (f"the transactions could not be asked for: {error}",)
    by = {one.partition: one.by for one in found if one.by != ENDED}
    own = {one.transactional_id for one in transactions or ()}
    readers = {p: member for member in members for p in member.partitions}

    def of(partition: Partition) -> PartitionStatus:
        offset = stored.get(partition)
        member = readers.get(partition)
        return PartitionStatus(
            partition,
            None if offset is None else offset.offset,
            _metadata(offset),
            lsos[partition],
            ends[partition],
            by.get(partition, ""),
            None if member is None else str(member),
            leaders.get(partition),
            starts[partition],
            _INTERVALS * settings.transaction.interval_s,
        )

    return JobStatus(
        group,
        tuple(members),
        tuple(map(of, sorted(partitions))),
        transactions,
        not_known,
        "" if kept is None else kept.kept_in,
        () if kept is None else tuple(kept.remarks(stored)),
        tuple(strangers(settings, group, members, owned_by_members=looked_at.mode == "group")),
        tuple(one for one in chain.from_iterable(of_outputs) if one.hangs or not own.issuperset(one.ids)),
    )


def _metadata(offset: Committed | None) -> OffsetMetadata | None:
    return None if offset is None else OffsetMetadata.parse(offset.metadata)
