"""A batch's shard is written once: what is stored under the task's own fence says whether it is still to be done."""

from __future__ import annotations

import pytest

from eos.errors import UsageError
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.kafka.group_offsets import Committed
from eos.offsets import Partition
from eos.spark.done import ConflictError, ShardDone
from eos.spark.done_ranges import DoneRanges
from eos.spark.plan import OffsetRange
from tests.support.settings import settings_of

P0, P1 = Partition("in", 0), Partition("in", 1)


def in_task(task: int = 0) -> ShardDone:
    """The record of the shard of partition 0, whose range in this run is [0, 10)."""
    ranges = {0: (OffsetRange(P0, 0, 10),), 1: (OffsetRange(P1, 5, 6),)}
    return DoneRanges(settings_of("nowhere:1"), "app", "g", "partition", ranges, {"in": 2}, "aaaa").in_task(
        0, task
    )


def stored(offset: int, owner: str = "bbbbt0") -> dict[Partition, Committed]:
    metadata = OffsetMetadata(OwnershipMode.PARTITION, str(P0), owner, app="app")
    return {P0: Committed(offset, str(metadata))}


def test_shard_that_stands_at_its_start_is_to_be_done_and_one_at_its_end_is_done() -> None:
    task = in_task()
    assert not task.is_done(stored(0))
    assert task.is_done(stored(10))


@pytest.mark.parametrize("offset", [3, 11])
def test_shard_that_stands_elsewhere_is_a_conflict(offset: int) -> None:
    with pytest.raises(ConflictError, match="another run has committed in between"):
        in_task().is_done(stored(offset))


@pytest.mark.parametrize(
    "by",
    [
        OffsetMetadata(OwnershipMode.PARTITION, str(P0), app="another"),
        OffsetMetadata(OwnershipMode.GROUP, "#0", app="app"),
    ],
)
def test_offset_that_another_job_or_mode_has_committed_since_the_plan_is_a_conflict(
    by: OffsetMetadata,
) -> None:
    with pytest.raises(ConflictError, match="after this run was planned"):
        in_task().is_done({P0: Committed(0, str(by))})


def test_offset_of_another_tool_is_a_conflict() -> None:
    with pytest.raises(ConflictError, match="another tool"):
        in_task().is_done({P0: Committed(0, "")})


def test_shard_whose_rows_came_in_two_tasks_of_one_run_is_refused() -> None:
    with pytest.raises(UsageError, match="two tasks of one run"):
        in_task(task=1).is_done(stored(10, owner="aaaat0"))
    assert in_task(task=0).is_done(stored(10, owner="aaaat0"))
