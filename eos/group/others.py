"""Others: offsets of a job's group that another program than eos has committed. What lies behind them may be processed by nobody."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from eos.base.commands import suggested
from eos.base.listing import counted
from eos.errors import ConfigError
from eos.group.metadata import OffsetMetadata
from eos.group.mirror import refuse_mirror
from eos.group.offset_history import Before, before
from eos.kafka.group_offsets import Committed
from eos.offsets import Partition, as_places
from eos.settings import Settings

_LOOK_BACK_S = 10.0  # in the log of a group's offsets, for the words of a refusal


def of_others(stored: Mapping[Partition, Committed]) -> dict[Partition, Committed]:
    """Those of these offsets that another program than eos has committed."""
    return {p: one for p, one in stored.items() if OffsetMetadata.parse(one.metadata) is None}


def refuse_others(settings: Settings, group: str, stored: Mapping[Partition, Committed]) -> None:
    """Refuse offsets that another program than eos has committed: it may have read input that no job has processed.

    A plain consumer that joins the group of a job is given partitions of it, commits what it has read, and leaves. A tool sets
    offsets of a group without members. Nothing tells either from the other program whose group a job takes over.

    What eos had committed before is looked for in the log of the group's offsets. A process knows its own commits alone, and another
    instance may have gone on from there.

    Raises:
        ConfigError: names the first such partition, what is known of it, and the ways out.
    """
    refuse_mirror(group, stored)
    if others := of_others(stored):
        raise _refusal(group, others, _looked_up(settings, group, others))


def refuse_copied(settings: Settings, group: str, copied: Mapping[Partition, Committed]) -> None:
    """Refuse to copy another program's offsets out of a group, unless settings adopt them: they would be eos's from then on.

    Also where eos does not seem to have committed in that group: its offsets may be gone from the log, or it cannot be read.

    Args:
        settings: ``ownership.adopt_offsets``.
        group: the one that is copied.
        copied: its offsets.

    Raises:
        ConfigError: as `refuse_others`.
    """
    refuse_mirror(group, copied)
    others = of_others(copied)
    if others and not settings.ownership.adopt_offsets:
        beside = {p: one.offset for p, one in copied.items() if p not in others}
        raise _refusal(group, others, _looked_up(settings, group, others), beside=beside)


def _looked_up(
    settings: Settings, group: str, others: Mapping[Partition, Committed]
) -> dict[Partition, Before]:
    return before(settings, group, others, timeout_s=min(_LOOK_BACK_S, settings.open_timeout_s))


def _refusal(
    group: str,
    others: Mapping[Partition, Committed],
    found: Mapping[Partition, Before],
    *,
    beside: Mapping[Partition, int] | None = None,
) -> ConfigError:
    """The error; ``beside``: offsets of eos's that have to be set too, in the group that they are copied to."""
    partition, one = min(others.items())
    told = found[partition]
    and_more = f", and of {counted(len(others) - 1, 'other partition')}" if len(others) > 1 else ""
    known = {p: at.own for p, at in sorted(found.items()) if at.own is not None}
    last = "Whether eos has committed there before, the log of the group's offsets does not show"
    if told.own is not None:
        last = f"The last one of eos's there is {told.own}{_when(told.own_at_ms)}"
    between = "what lies between may not be processed"
    if known == {p: at.offset for p, at in others.items()}:
        between = "but nothing lies between the two"
    places = as_places(dict.fromkeys(others, "N") | known | dict(beside or {}))
    unknown = "" if known.keys() >= others.keys() else "; N: behind the last record whose output is there"
    return ConfigError(
        f"{partition}: the group {group!r} has the offset {one.offset}, which eos has not committed{_when(told.other_at_ms)}{and_more}. "
        f"{last}. Another program was a member of the group, or has set it: {between}. Fix: stop every "
        f"instance, and go on at eos's own ({suggested('offsets set', '--to', places, job=True)}{unknown}); or, if the job is to go on at what is "
        "stored, as in the group of a program that it replaces, start once with ownership.adopt_offsets = true (--adopt-offsets)"
    )


def _when(at_ms: int | None) -> str:
    return "" if at_ms is None else f" ({datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ})"
