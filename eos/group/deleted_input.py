"""Deleted input: says which records are gone, where the reading client only says that its position is not in the log."""

from __future__ import annotations

from eos.base.commands import suggested
from eos.errors import EosError, OffsetGapError
from eos.group.committed import offsets_at
from eos.kafka.admin import Mark
from eos.offsets import OffsetVector, Partition
from eos.settings import Settings

_ASK_S = 5.0


def naming_what_is_gone(error: OffsetGapError, settings: Settings, positions: OffsetVector) -> OffsetGapError:
    """The error with the first offsets that are left, and the command to go on there; itself if they cannot be asked for.

    Args:
        error: of the reading client.
        settings: how to reach the cluster.
        positions: where the group goes on, per partition.
    """
    try:
        starts = offsets_at(settings, Mark.START, positions, timeout_s=_ASK_S)
    except EosError:
        return error
    gone = sorted(p for p, offset in positions.items() if starts.get(p, 0) > offset)
    if not gone:
        return error  # a log that was truncated below the position
    said = "; ".join(
        f"{p}: the group goes on at offset {positions[p]}, and the first that is left is {starts[p]}: up to "
        f"{starts[p] - positions[p]:,} records are gone (aborted ones and markers count)"
        for p in gone
    )
    return OffsetGapError(
        f"{said}. They were deleted (retention, DeleteRecords) before they were processed. Nothing is skipped silently. Fix: to go "
        "on without them, set the group's offsets while the job is stopped: "
        + suggested("offsets set", *_only(gone), "--to", "earliest", job=True),
        code=error.code,
    )


def _only(partitions: list[Partition]) -> list[str]:
    return [word for one in partitions for word in ("--only", f"{one.topic}:{one.number}")]
