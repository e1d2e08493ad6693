"""The committed offsets of a job: shown, and moved to where an operator has chosen (`choosing`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from eos import retry
from eos.check.transactions import TransactionsView
from eos.errors import ConfigError, EosError
from eos.group.committed import offsets_at
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.group.topic_ids import TopicIds, stored_topic_ids
from eos.kafka.admin import Admin, Mark
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition
from eos.operate.choosing import all_partitions, stored_of
from eos.operate.commit import Change, commit_in_place, stored_offsets, why_refused
from eos.operate.owners import Owners
from eos.operate.target import Target
from eos.settings import Settings

Choose = Callable[[], OffsetVector]


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a group stands in an input partition.

    Attributes:
        partition: which one.
        stored: what is committed; None: nothing.
        start, end: where the log begins, and its last stable offset.
        topic_id: the topic that the offset counts in.
    """

    partition: Partition
    stored: Committed | None
    start: int
    end: int
    topic_id: str

    @property
    def metadata(self) -> OffsetMetadata | None:
        """Who has committed it; None: another program than eos."""
        return None if self.stored is None else OffsetMetadata.parse(self.stored.metadata)


@dataclass(frozen=True, slots=True)
class Move:
    """What becomes of one committed offset."""

    partition: Partition
    committed: int | None
    to: int
    start: int
    end: int

    @property
    def difference(self) -> int | None:
        """Offsets that are skipped (more than 0), or processed again (less); None: there was no committed offset."""
        return None if self.committed is None else self.to - self.committed


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of a group's offsets.

    Attributes:
        group: whose.
        moves: by partition.
        refused: why it cannot be done now; "" if it can.
        notes: what else follows, in words.
        fenced: the transactional.ids that were fenced; none before anything is written.
        verify_from: options of `eos verify` from then on.
    """

    group: str
    moves: tuple[Move, ...]
    refused: str = ""
    notes: tuple[str, ...] = ()
    fenced: tuple[str, ...] = ()
    verify_from: tuple[str, ...] = ()


def show(settings: Settings, target: Target) -> list[Standing]:
    """Where the job's group stands.

    Raises:
        ConfigError: an input does not exist, or access was refused.
        UnavailableError: the cluster did not answer in time.
    """
    partitions = all_partitions(settings, target.group, target.inputs)
    ids = TopicIds(settings).of(target.inputs, timeout_s=settings.open_timeout_s)
    stored = stored_of(settings, target.group, partitions)
    starts, ends = (offsets_at(settings, mark, partitions) for mark in (Mark.START, Mark.LAST_STABLE))
    of = dict(stored_topic_ids(stored))
    return [
        Standing(p, stored.get(p), starts[p], ends[p], of.get(p.topic) or ids.get(p.topic, ""))
        for p in partitions
    ]


def preview(settings: Settings, target: Target, choose: Choose, *, source: str | None = None) -> Plan:
    """What `write` would do now; nothing is written.

    Raises:
        EosError: as ``choose`` and `write`; but an owner that is at work is only said.
    """
    offsets = choose()
    plan = _plan(settings, target, offsets, stored_offsets(settings, target, sorted(offsets)))
    with TransactionsView(settings) as view:
        refused = why_refused(settings, view, target, sorted(offsets))
        others, notes = _owners_of(settings, view, target, source, sorted(offsets)) if source else ([], [])
        try:
            for owners in others:
                owners.refuse_live()
        except ConfigError as error:
            refused = refused or str(error)
    return replace(plan, refused=refused, notes=(*plan.notes, *notes))


def write(settings: Settings, target: Target, choose: Choose, *, source: str | None = None) -> Plan:
    """Commit chosen offsets in the place of the job's owners; see `commit_in_place`.

    Args:
        settings: how to reach the cluster.
        target: the job.
        choose: the offsets. Called again behind the fences: only then no owner can move what they depend on.
        source: the group that they are copied from. Its owners are fenced, too, if they are the job's own.

    Raises:
        EosError: as `commit_in_place` and ``choose``; nothing was written then, if the message does not say otherwise.
    """
    partitions = sorted(choose())
    plans: list[Plan] = []

    def change(stored: Mapping[Partition, Committed]) -> Change:
        offsets = choose().only(partitions)
        plans.append(_plan(settings, target, offsets, stored))
        return Change(offsets)

    with TransactionsView(settings) as view:
        others, notes = _owners_of(settings, view, target, source, partitions) if source else ([], [])
        stored_offsets(settings, target, partitions)  # refuses those of another job
        fenced = commit_in_place(settings, view, target, partitions, change, others=others)
    begins: tuple[str, ...] = ()
    try:
        begins = verify_from(settings, target)
    except EosError as error:  # the offsets are committed all the same
        notes.append(f"where eos verify begins from then on could not be read: {error}")
    plan = plans[-1]
    return replace(plan, notes=(*plan.notes, *notes), fenced=tuple(fenced), verify_from=begins)


def verify_from(settings: Settings, target: Target) -> tuple[str, ...]:
    """The options of `eos verify` that begin where group and output stand now.

    Raises:
        UnavailableError: the cluster did not answer in time.
    """
    inputs = {one.partition: one.stored.offset for one in show(settings, target) if one.stored is not None}
    outputs = offsets_at(
        settings, Mark.HIGH_WATERMARK, all_partitions(settings, target.group, target.outputs)
    )
    named = (("--input-from", inputs), ("--output-from", outputs))
    return tuple(
        word
        for option, offsets in named
        for p, offset in sorted(offsets.items())
        if offset
        for word in (option, f"{p.topic}:{p.number}={offset}")
    )


# --- inside ----------------------------------------------------------------------------------------------


def _plan(
    settings: Settings, target: Target, offsets: OffsetVector, stored: Mapping[Partition, Committed]
) -> Plan:
    starts, ends = (offsets_at(settings, mark, offsets) for mark in (Mark.START, Mark.LAST_STABLE))
    found = {p: one.offset for p, one in stored.items()}
    moves = [Move(p, found.get(p), to, starts[p], ends[p]) for p, to in sorted(offsets.items())]
    return Plan(target.group, tuple(moves), notes=tuple(_consequences(moves)))


def _consequences(moves: Iterable[Move]) -> Iterable[str]:
    differences = [one.difference for one in moves if one.difference is not None]
    if again := -sum(one for one in differences if one < 0):
        yield (
            f"{again:,} offsets are gone back: their records are processed again, and what they make is written a second time, "
            "beside what is there"
        )
    if skipped := sum(one for one in differences if one > 0):
        yield f"{skipped:,} offsets are skipped: the job does not process their records (what a run made of them before stays)"
    if again or skipped:
        yield (
            "the committed offsets no longer stand for the whole output: from then on eos verify needs --input-from and "
            "--output-from"
        )


def _owners_of(
    settings: Settings, view: TransactionsView, target: Target, source: str, partitions: Sequence[Partition]
) -> tuple[list[Owners], list[str]]:
    """The owners of the source that would go on with the same work, and what there is to say of others."""
    if source == target.group:
        raise ConfigError(
            f"{source!r} is the group of {target.app!r} itself. Fix: --set group=NEW, the group to copy to"
        )
    stored = stored_of(settings, source, partitions)
    of = [one for at in stored.values() if (one := OffsetMetadata.parse(at.metadata)) is not None]
    apps = {one.app or target.app for one in of}
    if target.app in apps:
        modes = {one.mode for one in of}
        mode = OwnershipMode.GROUP if OwnershipMode.GROUP in modes else min(modes)
        mode = OwnershipMode.GROUP if mode is OwnershipMode.START else mode
        return [Owners(settings, view, app=target.app, group=source, mode=mode, partitions=partitions)], [
            f"the group {source!r} is not to be used by {target.app!r} any more: two groups process the same input twice"
        ]
    admin = Admin.of(settings)
    members = retry.ask(lambda s: admin.groups.members(source, s), timeout_s=settings.open_timeout_s)
    whose = f"job {', '.join(sorted(apps))}" if apps else "another program"
    alive = f" It has {len(members)} live members, and goes on." if members else ""
    return [], [f"the group {source!r} is of {whose}, which is not fenced.{alive}"]
