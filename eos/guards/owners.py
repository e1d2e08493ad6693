"""Guards of a group: refuse a group with live members, or with offsets of another mode of ownership or app, or that were moved away.

Kafka accepts the offsets of an owner that is no member of the group unchecked, so such an owner checks first. Between the
check and its commits another owner may come; the offset metadata shows that at the next start.
"""

from __future__ import annotations

from collections.abc import Mapping

from eos import retry
from eos.base.commands import suggested
from eos.errors import ConfigError
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.kafka.admin import Admin
from eos.kafka.group_offsets import Committed
from eos.offsets import Partition, as_places
from eos.settings import Settings

_MODE_NAMES = {
    OwnershipMode.GROUP: "ownership.mode = 'group'",
    OwnershipMode.PARTITION: "ownership.mode = 'partition' (or a Spark run with commit = 'partition')",
    OwnershipMode.BATCH: "a Spark run with commit = 'batch'",
    OwnershipMode.SINK: "a streaming sink",
}


def refuse_foreign(
    settings: Settings,
    group: str,
    stored: Mapping[Partition, Committed],
    mine: OwnershipMode,
    app: str | None,
) -> None:
    """Refuse a group whose offsets another app or another mode of ownership committed, unless settings adopt them.

    Args:
        settings: ``ownership.adopt_offsets``.
        group: the group.
        stored: its offsets.
        mine: the mode of the caller.
        app: the caller's name; None: the app is not checked.

    Raises:
        ConfigError: names the first such partition.
    """
    if settings.ownership.adopt_offsets:
        return
    for partition, committed in stored.items():
        metadata = OffsetMetadata.parse(committed.metadata)
        if metadata is not None and not metadata.fits(mine):
            raise ConfigError(
                f"{partition}: the group {group!r} has an offset committed by {_MODE_NAMES[metadata.mode]}, and this job runs "
                f"with '{mine}'. The two must never run side by side, because neither fences the other. "
                "Fix: use the old mode, or stop every old instance and start once with ownership.adopt_offsets = true "
                "(--adopt-offsets)"
            )
        if metadata is not None and app is not None and metadata.app not in ("", app):
            raise ConfigError(
                f"{partition}: the group {group!r} has an offset committed by the job {metadata.app!r}, and this one is "
                f"{app!r}. Two jobs in one group do not fence each other, and each would take input from the other. Fix: a "
                "group of its own (group, EOS_GROUP); or, if the job was renamed, stop every instance of the old name and "
                "start once with ownership.adopt_offsets = true (--adopt-offsets)"
            )


def refuse_moved(group: str, stored: Mapping[Partition, Committed], app: str | None) -> None:
    """Refuse a group whose offsets an operator has copied to another one, where the same job goes on.

    Raises:
        ConfigError: names the first such partition, and the other group.
    """
    parsed = {partition: OffsetMetadata.parse(one.metadata) for partition, one in stored.items()}
    moved = {p: by.moved_to for p, by in parsed.items() if by is not None and by.app == app and by.moved_to}
    if not moved:
        return
    partition, there = min(moved.items())
    back = suggested("offsets copy", "--from-group", there, job=True)
    here = suggested("offsets set", "--to", as_places({p: stored[p].offset for p in moved}), job=True)
    raise ConfigError(
        f"{partition}: the offsets of the group {group!r} were copied to the group {there!r}, and this job goes on there: in both it would "
        "process the same input twice. Fix: use that group (group, EOS_GROUP). If it has no offsets, the copy did not end: repeat it. If the "
        f"job is to go on here, stop every instance there, and copy its offsets back ({back}); or, if it has written to other topics "
        f"there, set those that it has left here ({here})"
    )


def refuse_members(admin: Admin, group: str, mine: OwnershipMode, *, timeout_s: float) -> None:
    """Refuse a group that has members, or had some: for owners that are no members.

    Kafka deletes all offsets of a classic group ``offsets.retention.minutes`` after its last member has left, also offsets
    that were committed since (KIP-211; measured with Kafka 4.3). KIP-848 groups, and groups that never had members, keep each
    offset for that long after its commit.

    Raises:
        ConfigError: names the members, or says how to move to another group.
        UnavailableError: the cluster did not answer in ``timeout_s``.
    """
    members, is_classic = retry.ask(lambda slice_s: admin.groups.shape(group, slice_s), timeout_s=timeout_s)
    if is_classic and not members:
        raise ConfigError(
            f"group {group!r} had members, and this job, which runs with '{mine}', will not be one: Kafka would delete "
            "its offsets 7 days after the last member has left (offsets.retention.minutes), however often they are committed. "
            "Fix: copy the offsets to a new group (EOS_GROUP) while no instance runs: "
            + suggested("offsets copy", "--from-group", group, "--set", "group=NEW", job=True)
        )
    if members:
        raise ConfigError(
            f"group {group!r} has live members ({', '.join(members)}), and this job, which runs with '{mine}', "
            "would overwrite their offsets. Fix: stop them, or use a group of its own (EOS_GROUP)"
        )
