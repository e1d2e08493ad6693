"""Admission: whether a process may commit for a group: no live member is in the way, no offsets of another mode.

Offsets of an owner that is no member of the group are accepted unchecked by Kafka, so whoever commits in such
a way looks first. It is a check and then an act; the stamps catch at the next start what came in between.
"""

from __future__ import annotations

from collections.abc import Mapping

from eos import retry
from eos.errors import ConfigError
from eos.kafka.admin import Admin
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


def refuse_other_mode(
    settings: Settings, group: str, stored: Mapping[Partition, Committed], mine: OwnershipMode
) -> None:
    """Refuse a group whose offsets were committed in another mode of ownership, unless they are to be adopted.

    Raises:
        ConfigError: naming the first such partition.
    """
    if settings.ownership.adopt_offsets:
        return
    for partition, committed in stored.items():
        stamp = Stamp.parse(committed.metadata)
        if stamp is not None and not stamp.fits(mine):
            raise ConfigError(
                f"{partition}: the group {group!r} has an offset committed by {_SAID[stamp.mode]}, and this job runs "
                f"with '{mine}'. The two must never run side by side, because neither fences the other. "
                "Fix: use the old mode, or stop every old instance and start once with --adopt-offsets"
            )


def refuse_members(admin: Admin, group: str, mine: OwnershipMode, *, within_s: float) -> None:
    """Refuse a group that somebody is a member of now, or was: for owners that are no members.

    Kafka forgets all offsets of a group ``offsets.retention.minutes`` after its last member has left, also those that were
    committed since (KIP-211; measured with Kafka 4.3). KIP-848's groups, and those that never had members, keep each
    offset for that long after its commit.

    Raises:
        ConfigError: naming the members, or how to go on in a group of its own.
        UnavailableError: the cluster did not answer in ``within_s``.
    """
    members, is_classic = retry.ask(lambda timeout_s: admin.group_shape(group, timeout_s), within_s=within_s)
    if is_classic and not members:
        raise ConfigError(
            f"group {group!r} had members, and this job, which runs with '{mine}', will be none: Kafka would forget its "
            "offsets 7 days after the last member has left (offsets.retention.minutes), however often they are committed. "
            "Fix: copy the offsets to a new group (EOS_GROUP) while no instance runs, and compare what the second command "
            "prints with offsets.csv, because it moves an offset whose input was deleted without a word: "
            f"kafka-consumer-groups.sh --group {group} --all-topics --reset-offsets --to-current --dry-run --export "
            "> offsets.csv, then --group NEW --reset-offsets --from-file offsets.csv --execute"
        )
    if members:
        raise ConfigError(
            f"group {group!r} has live members ({', '.join(members)}), and this job, which runs with '{mine}', "
            "would commit over their offsets unseen. Fix: stop them, or use a group of its own (EOS_GROUP)"
        )
