"""Strangers: members of a job's group that are none of its instances, such as a console consumer that was started with its group.

They are given partitions, which the job then does not process; and the offsets that they commit are refused (`eos.group.others`).
"""

from __future__ import annotations

from collections.abc import Iterable

from eos.kafka.config import member_ids
from eos.kafka.groups import Member
from eos.settings import Settings


def strangers(
    settings: Settings, group: str, members: Iterable[Member], *, owned_by_members: bool
) -> list[Member]:
    """Those of the members that are no instances of a job with these settings.

    An instance is known by its group.instance.id, or by its client.id: "eos", or what the settings say.

    Args:
        settings: of the job.
        group: the group.
        members: of the group.
        owned_by_members: whether the job's instances are members; with ownership by partition, and on Spark, none is.
    """
    client_id, instance_id = member_ids(settings, group)
    return [
        one
        for one in members
        if not owned_by_members or not (one.client_id == client_id or instance_id.fullmatch(one.instance_id))
    ]
