"""The way into a group: it is refused if it is not the owner's, and is given its first offsets if it has none."""

from __future__ import annotations

from eos.core.surroundings import Entered, Seat
from eos.events import OffsetsAdopted, StartPolicyApplied
from eos.group.others import of_others, refuse_others
from eos.guards.expired import refuse_expired
from eos.guards.owners import refuse_foreign, refuse_members
from eos.guards.start_policy import CommitFirst, RefuseMissing, apply_start_policy
from eos.kafka.admin import Admin
from eos.kafka.consumer import ConsumerClient
from eos.offsets import OffsetVector


def enter(
    seat: Seat,
    reader: ConsumerClient,
    *,
    commit_first: CommitFirst | None = None,
    refuse_missing: RefuseMissing = refuse_expired,
) -> Entered:
    """Check a group before its input is read, and apply the start policy if it has no offsets.

    Args:
        seat: who comes.
        reader: a client of the group.
        commit_first: how the first offsets are committed; by default to the group.
        refuse_missing: as of `apply_start_policy`.

    Returns:
        All partitions of the topics, and the committed offsets.

    Raises:
        ConfigError: the group has members that would not be fenced, or offsets of another app, mode of ownership or program; a topic
            does not exist, or nothing says where to start.
        OffsetGapError, UnavailableError: as `apply_start_policy`.
    """
    settings = seat.settings
    if seat.given is not None:
        refuse_members(Admin.of(settings), seat.group, seat.mode, timeout_s=settings.open_timeout_s)

    def started(positions: OffsetVector) -> None:
        seat.listener(
            StartPolicyApplied(seat.shard, positions, settings.input.start, settings.source_of("input.start"))
        )

    def adopted(positions: OffsetVector) -> None:
        seat.listener(OffsetsAdopted(seat.shard, positions))

    partitions, stored = entered = apply_start_policy(
        settings,
        seat.topics,
        reader,
        app=seat.app or "consumer",
        mode=seat.mode,
        on_first_offsets=started,
        on_adopted=adopted,
        own=seat.given,
        store=seat.destination.store(reader),
        commit_first=commit_first,
        refuse_missing=refuse_missing,
    )
    own = {p: stored[p] for p in (partitions if seat.given is None else seat.given) if p in stored}
    refuse_foreign(settings, seat.group, own, seat.mode, seat.app)
    if of_others(own):
        # Those of others too: they can be set back at once. But where offsets are adopted, their owners may be about to do so.
        refuse_others(settings, seat.group, own if settings.ownership.adopt_offsets else stored)
    return entered
