"""Admission: whether a process may commit for a group: no live member is in the way, no offsets of another mode.

Offsets of an owner that is no member of the group are accepted unchecked by Kafka, so whoever commits in such
a way looks first. It is a check and then an act; the stamps catch at the next start what came in between.
"""

from __future__ import annotations

from collections.abc import Mapping

from eos import retry
from eos.errors import ConfigError
from eos.kafka.admin import live_members
from eos.kafka.consumer import Committed
from eos.offsets import Partition
from eos.settings import Settings
from eos.stamps import OwnershipMode, Stamp

_SAID = {
    OwnershipMode.GROUP: "ownership.mode = 'group'",
    OwnershipMode.PARTITION: "ownership.mode = 'partition' (or a Spark run with commit = 'partition')",
    OwnershipMode.BATCH: "a Spark run with commit = 'batch'",
    OwnershipMode.SINK: "a streaming sink",
}


def in_other_mode(
    stored: Mapping[Partition, Committed | None], mine: OwnershipMode
) -> dict[Partition, OwnershipMode]:
    """The partitions whose offsets were committed in another mode of ownership, and in which."""
    stamps = {partition: Stamp.parse(one.metadata) for partition, one in stored.items() if one is not None}
    return {
        partition: stamp.mode
        for partition, stamp in stamps.items()
        if stamp is not None and stamp.mode not in (mine, OwnershipMode.START)
    }


def refuse_other_mode(
    settings: Settings, group: str, stored: Mapping[Partition, Committed], mine: OwnershipMode
) -> None:
    """Refuse a group whose offsets were committed in another mode of ownership, unless they are to be adopted.

    Raises:
        ConfigError: naming the first such partition.
    """
    if settings.ownership.adopt_offsets:
        return
    for partition, mode in in_other_mode(stored, mine).items():
        raise ConfigError(
            f"{partition}: the group {group!r} has an offset committed by {_SAID[mode]}, and this job runs "
            f"with '{mine}'. The two must never run side by side, because neither fences the other. "
            "Fix: use the old mode, or stop every old instance and start once with --adopt-offsets"
        )


def refuse_live_members(settings: Settings, group: str, mine: OwnershipMode) -> None:
    """Refuse a group that somebody is a member of now.

    Raises:
        ConfigError: naming the members.
        UnavailableError: the cluster did not answer in time.
    """
    config = settings.client_config()

    members = retry.ask(
        lambda timeout_s: live_members(config, group, timeout_s), within_s=settings.open_deadline_s
    )
    if members:
        raise ConfigError(
            f"group {group!r} has live members ({', '.join(members)}), and this job, which runs with '{mine}', "
            "would commit over their offsets unseen. Fix: stop them, or use a group of its own (EOS_GROUP)"
        )
