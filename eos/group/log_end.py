"""Positions beyond the end of their logs. A run until it has caught up would end there as if all input were processed."""

from __future__ import annotations

import time
from collections.abc import Mapping

from eos.base.commands import suggested
from eos.base.deadline import Deadline
from eos.base.listing import listed
from eos.errors import OffsetGapError
from eos.group.committed import offsets_at
from eos.kafka.admin import Mark
from eos.offsets import Partition, as_places
from eos.settings import Settings

_BEHIND_S = 2.0  # for which a broker that was the leader a moment ago may tell an earlier end
_BEHIND_PAUSE_S = 0.2
_MAX_NAMED = 3


def refuse_beyond_the_end(
    settings: Settings, positions: Mapping[Partition, int], *, timeout_s: float
) -> None:
    """Compare positions with where their logs end now.

    Args:
        settings: how to reach the cluster.
        positions: the next offset to read, per partition; known before this is called, since a log only grows.
        timeout_s: for an answer.

    Raises:
        OffsetGapError: names those that are beyond the end.
        UnavailableError: no answer in time.
    """
    behind = Deadline(min(_BEHIND_S, timeout_s))
    while True:
        ends = offsets_at(settings, Mark.HIGH_WATERMARK, positions, timeout_s=timeout_s)
        beyond = [partition for partition, offset in sorted(positions.items()) if offset > ends[partition]]
        if not beyond:
            return
        if behind.passed:
            break
        time.sleep(_BEHIND_PAUSE_S)
    # Up to where a reader may begin: what an open transaction holds back was not readable when this was written.
    stable = offsets_at(settings, Mark.LAST_STABLE, beyond, timeout_s=timeout_s)
    said = (f"{p}: the group goes on at offset {positions[p]}, and the log ends at {ends[p]}" for p in beyond)
    places = as_places({p: stable[p] for p in beyond})
    raise OffsetGapError(
        f"{listed(said, _MAX_NAMED)}. It was truncated, or the offset is one of another log (set by a tool, or copied from another "
        "cluster). What is written up to there would never be processed. Fix: decide where to go on, and set the group's offsets while the "
        f"job is stopped; for what is written from now on: {suggested('offsets set', '--to', places, job=True)}"
    )
