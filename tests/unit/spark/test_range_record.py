"""A batch's shard is written once: what is stored under the task's own fence says whether it is still to be done."""

from __future__ import annotations

import pytest

from eos.errors import ConfigError, UsageError
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.kafka.group_offsets import Committed
from eos.offsets import Partition
from eos.spark.batch.range_record import RangeRecord
from eos.spark.plan import WHOLE_INPUT, Commit, InputPlan, OffsetRange
from eos.spark.write.commit_record import ConflictError, ShardRecord
from tests.support.settings import settings_of

P0, P1 = Partition("in", 0), Partition("in", 1)


def in_task(task: int = 0) -> ShardRecord:
    """The record of the shard of partition 0, whose range in this run is [0, 10)."""
    return record("partition").in_task(0, task)


def record(commit: Commit) -> RangeRecord:
    plan = InputPlan("g", (P0, P1), (OffsetRange(P0, 0, 10), OffsetRange(P1, 5, 6)), "app", commit)
    return RangeRecord(settings_of("nowhere:1"), plan, "aaaa")


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


@pytest.mark.parametrize(("first", "second"), [(0, 6), (10, 5), (0, 7)])
def test_shard_of_several_partitions_is_neither_begun_nor_done_where_they_disagree(
    first: int, second: int
) -> None:
    task = record("batch").in_task(WHOLE_INPUT, 0)
    metadata = str(OffsetMetadata(OwnershipMode.BATCH, "#batch", "bbbbt0", app="app"))
    assert not task.is_done({P0: Committed(0, metadata), P1: Committed(5, metadata)})
    assert task.is_done({P0: Committed(10, metadata), P1: Committed(6, metadata)})
    with pytest.raises(ConflictError, match="another run has committed in between"):
        task.is_done({P0: Committed(first, metadata), P1: Committed(second, metadata)})


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


def test_offset_that_was_moved_to_another_group_since_the_plan_is_refused_though_it_is_the_same() -> None:
    moved = OffsetMetadata(OwnershipMode.PARTITION, str(P0), app="app").moved("other")
    with pytest.raises(ConfigError, match="copied to the group 'other'"):
        in_task().is_done({P0: Committed(0, str(moved))})


def test_offset_of_another_tool_is_a_conflict() -> None:
    with pytest.raises(ConflictError, match="another tool"):
        in_task().is_done({P0: Committed(0, "")})


def test_shard_whose_rows_came_in_two_tasks_of_one_run_is_refused() -> None:
    with pytest.raises(UsageError, match="two tasks of one run"):
        in_task(task=1).is_done(stored(10, owner="aaaat0"))
    assert in_task(task=0).is_done(stored(10, owner="aaaat0"))
