"""A stream of batches without a checkpoint: its place is the group's offsets, and it is stopped in order."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from eos.errors import ConfigError
from eos.spark.batch.batch import BatchResult, ExactlyOnceBatch
from eos.spark.jobs import SparkJob
from eos.spark.running import run_until_caught_up
from tests.support.batch_input import BatchRuns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.broker


def copied(df: DataFrame) -> DataFrame:
    return df.select("shard", "key", "value")


def batch_of(runs: BatchRuns) -> ExactlyOnceBatch:
    return ExactlyOnceBatch(
        runs.spark, runs.settings, name=runs.name, inputs=[runs.input], outputs=runs.topics
    )


def test_what_comes_in_between_is_written_once_until_sigterm(spark: SparkSession, bootstrap: str) -> None:
    runs = BatchRuns(spark, bootstrap, partitions=2, overrides={"spark.max_records_per_partition": 10})
    runs.fill(30)
    written: list[int] = []

    def look(result: BatchResult) -> None:
        written.append(result.records_out)
        if len(written) == 2:
            runs.fill(4)
        if result.placement is None:  # nothing was new
            signal.raise_signal(signal.SIGTERM)

    batch_of(runs).run_every(0.01, copied, on_result=look)
    assert written == [20, 10, 4, 0]
    assert runs.assert_exactly_once(lambda r: [(runs.output, r.key, r.value)]).processed == 34


def _again(runs: BatchRuns) -> Iterator[BatchResult]:
    batch = batch_of(runs)
    while True:
        yield batch.run(copied)


def _until_caught_up(runs: BatchRuns) -> Iterator[BatchResult]:
    job = SparkJob(name=runs.name, inputs=[runs.input], outputs=runs.topics, transform=copied)
    return run_until_caught_up(job, runs.spark, runs.settings)


@pytest.mark.parametrize("results", [_again, _until_caught_up])
def test_a_group_that_is_deleted_between_two_runs_is_not_started_anew(
    spark: SparkSession, bootstrap: str, results: Callable[[BatchRuns], Iterator[BatchResult]]
) -> None:
    """The start policy was for the first run: another one of --start earliest would write all of it again."""
    runs = BatchRuns(spark, bootstrap, partitions=2, overrides={"spark.max_records_per_partition": 3})
    runs.fill(10)
    given = results(runs)
    next(given)
    runs.forget_group()
    with pytest.raises(ConfigError, match="--start earliest"):
        next(given)
    assert len(runs.records()) == 6


def test_a_group_that_is_deleted_meanwhile_is_not_started_anew(spark: SparkSession, bootstrap: str) -> None:
    runs = BatchRuns(spark, bootstrap, partitions=2)
    runs.fill(10)
    with pytest.raises(ConfigError, match="--start earliest"):
        batch_of(runs).run_every(0.01, copied, on_result=lambda _: runs.forget_group())
    assert len(runs.records()) == 10
