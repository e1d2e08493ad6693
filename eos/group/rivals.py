"""Rivals: the members of a group, named after a fence, because one of them may be the other owner."""

from __future__ import annotations

from eos.errors import EosError
from eos.kafka.admin import Admin
from eos.settings import Settings

_ASK_S = 5.0


def named_rivals(settings: Settings, group: str, *, own: str) -> str:
    """One sentence; "" if the group has no members (with ownership by partition it has none), or does not answer in time.

    Args:
        settings: how to reach the cluster.
        group: the group.
        own: whose members are to be expected among them.
    """
    try:
        members = Admin.of(settings).groups.members(group, _ASK_S)
    except EosError:
        return ""  # what was fenced is said without it
    if not members:
        return ""
    return (
        f"members of the group {group!r}, of which one may be the other owner ({own} stay for "
        f"ownership.session_timeout_ms): {', '.join(map(str, members))}"
    )
