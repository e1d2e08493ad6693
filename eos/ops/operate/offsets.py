"""The committed offsets of a job: shown, and moved to where an operator has chosen (`choosing`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from eos.base.listing import listed
from eos.errors import ConfigError, EosError
from eos.group.committed import offsets_at
from eos.group.metadata import OffsetMetadata
from eos.group.topics import TopicIds
from eos.guards.expired import ever_written
from eos.identity import Identity
from eos.kafka.admin import Mark
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition, as_places
from eos.ops.operate.choosing import all_partitions, stored_of
from eos.ops.operate.in_group import positions_of
from eos.ops.operate.positions import Change, Positions, Scope
from eos.ops.positions import kept_elsewhere
from eos.settings import Settings

_MAX_NAMED = 10

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
        """Offsets that are skipped (more than 0), or processed again (less); None: there was no committed offset.

        What lies beyond the end of the log was never there.
        """
        return None if self.committed is None else self.to - min(self.committed, self.end)


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


def show(settings: Settings, target: Identity) -> tuple[list[Standing], list[str]]:
    """Where the job stands, and what there is to say of its positions.

    Raises:
        ConfigError: an input does not exist, or access was refused.
        UnavailableError: the cluster or the database did not answer in time.
    """
    partitions = all_partitions(settings, target.group, target.inputs)
    ids = TopicIds(settings).of(target.inputs, timeout_s=settings.open_timeout_s)
    kept = kept_elsewhere(settings, target)
    stored = stored_of(settings, target.group, partitions) if kept is None else kept.stored(partitions)
    starts, ends = (offsets_at(settings, mark, partitions) for mark in (Mark.START, Mark.LAST_STABLE))
    said = {p: OffsetMetadata.parse(one.metadata) for p, one in stored.items()}
    of = {p: metadata.topic for p, metadata in said.items() if metadata is not None}
    found = [
        Standing(p, stored.get(p), starts[p], ends[p], of.get(p) or ids.get(p.topic, "")) for p in partitions
    ]
    return found, [] if kept is None else kept.remarks(stored)


def preview(settings: Settings, target: Identity, choose: Choose, *, source: str | None = None) -> Plan:
    """What `write` would do now; nothing is written.

    Raises:
        EosError: as ``choose`` and `write`; but an owner that is at work is only said.
    """
    _refuse_itself(target, source)
    offsets, positions = choose(), positions_of(settings, target)
    plan = _plan(settings, target, positions, offsets, positions.own(sorted(offsets)))
    refused, notes = positions.look(Scope(sorted(offsets), _every(settings, target), source))
    return replace(plan, refused=refused, notes=(*plan.notes, *notes))


def write(settings: Settings, target: Identity, choose: Choose, *, source: str | None = None) -> Plan:
    """Commit chosen offsets in the place of the job's owners; see `Positions.commit`.

    Args:
        settings: how to reach the cluster.
        target: the job.
        choose: the offsets. Called again behind the fences: only then no owner can move what they depend on.
        source: the group that they are copied from. Its owners are fenced, too, if they are the job's own.

    Raises:
        EosError: as `Positions.commit` and ``choose``; nothing was written then, if the message does not say otherwise.
    """
    _refuse_itself(target, source)
    partitions, positions = sorted(choose()), positions_of(settings, target)
    plans: list[Plan] = []

    def change(stored: Mapping[Partition, Committed]) -> Change:
        offsets = choose().only(partitions)
        plans.append(_plan(settings, target, positions, offsets, stored))
        return Change(offsets)

    fenced, notes = positions.commit(Scope(partitions, _every(settings, target), source), change)
    begins: list[str] = []
    try:
        begins = positions.verify_from()
    except EosError as error:  # the offsets are committed all the same
        notes = [*notes, f"where eos verify begins from then on could not be read: {error}"]
    plan = plans[-1]
    return replace(plan, notes=(*plan.notes, *notes), fenced=tuple(fenced), verify_from=tuple(begins))


# --- inside ----------------------------------------------------------------------------------------------


def _refuse_itself(target: Identity, source: str | None) -> None:
    if source == target.group:
        raise ConfigError(
            f"{source!r} is the group of {target.app!r} itself. Fix: --set group=NEW, the group to copy to"
        )


def _every(settings: Settings, target: Identity) -> list[Partition]:
    """The partitions of the job's input: where `eos verify` begins is read of all of them, so no owner may be at work in one."""
    return all_partitions(settings, target.group, target.inputs)


def _plan(
    settings: Settings,
    target: Identity,
    positions: Positions,
    offsets: OffsetVector,
    stored: Mapping[Partition, Committed],
) -> Plan:
    starts, ends = (offsets_at(settings, mark, offsets) for mark in (Mark.START, Mark.LAST_STABLE))
    found = {p: one.offset for p, one in stored.items()}
    moves = [Move(p, found.get(p), to, starts[p], ends[p]) for p, to in sorted(offsets.items())]
    differences = [one.difference for one in moves if one.difference is not None]
    notes = positions.consequences(
        again=-sum(one for one in differences if one < 0), skipped=sum(one for one in differences if one > 0)
    )
    return Plan(target.group, tuple(moves), notes=(*notes, *_left_out(settings, target, positions, offsets)))


def _left_out(
    settings: Settings, target: Identity, positions: Positions, offsets: OffsetVector
) -> Iterator[str]:
    """Of a topic of which some partitions get an offset, the others that have none."""
    topics = sorted({partition.topic for partition, _ in offsets.items()})
    others = [p for p in all_partitions(settings, target.group, topics) if p not in offsets]
    stored = positions.stored(others) if others else {}
    if without := ever_written(settings, [p for p in others if p not in stored]):
        places = as_places(dict.fromkeys(without, "OFFSET"))
        yield (
            f"{listed(without, _MAX_NAMED)}: no committed offset either. The job's next start refuses that, if nothing in this group "
            f"shows that the partition was added since. To set it too: --to {places}"
        )
