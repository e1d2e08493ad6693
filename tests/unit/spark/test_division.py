"""In place a task writes the rows of the partition that it reads, and entries of partitions that no task reads."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from eos.spark.stream.division import with_idle


@pytest.mark.parametrize(
    ("by_task", "shards", "written"),
    [
        ([0, 1, 2], 3, ((0,), (1,), (2,))),
        ([2, 0, 1], 3, ((2,), (0,), (1,))),
        ([4], 6, ((4, 0, 1, 2, 3, 5),)),
        ([3, 1], 5, ((3, 0, 4), (1, 2))),
        ([], 3, ()),
    ],
)
def test_each_shard_is_written_by_one_task_and_a_tasks_own_one_comes_first(
    by_task: list[int], shards: int, written: tuple[tuple[int, ...], ...]
) -> None:
    assert with_idle(by_task, shards) == written
