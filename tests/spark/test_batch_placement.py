"""Whether rows stay in the task that reads them, and what takes them out of it: said before a run, and of it afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from eos.errors import UsageError
from eos.spark.analysis.placement import Placement
from eos.spark.batch.batch import ExactlyOnceBatch
from eos.spark.jobs import SparkJob
from eos.spark.running import explain, summary
from tests.support.batch_input import BatchRuns, values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.broker

Transform = Callable[["DataFrame"], "DataFrame"]


@pytest.fixture
def runs(spark: SparkSession, bootstrap: str) -> BatchRuns:
    return BatchRuns(spark, bootstrap, partitions=3)


def batch_of(runs: BatchRuns) -> ExactlyOnceBatch:
    return ExactlyOnceBatch(
        runs.spark, runs.settings, name=runs.name, inputs=[runs.input], outputs=runs.topics
    )


def copied(df: DataFrame) -> DataFrame:
    return df.select("shard", "key", "value")


def joined(df: DataFrame) -> DataFrame:
    table = df.sparkSession.range(3).select(F.col("id").cast("int").alias("partition"))
    return df.join(F.broadcast(table), "partition").select("shard", "key", "value")


@pytest.mark.parametrize(
    ("transform", "placement"),
    [
        (copied, Placement(True, 3)),
        (lambda df: copied(df.where(F.length("value") > 0)), Placement(True, 3)),
        (lambda df: copied(df).mapInArrow(lambda rows: rows, "shard INT, key BINARY, value BINARY"), Placement(True, 3)),
        (lambda df: copied(df).unionByName(copied(df.where("offset < 0"))), Placement(False, 2, "Union")),
        (
            lambda df: df.groupBy("shard", "key", "value").agg(F.count("*")),
            Placement(False, 2, "HashAggregate"),
        ),
        (joined, Placement(False, 2, "BroadcastHashJoin")),
        (lambda df: copied(df).repartition(5, "key"), Placement(False, 2, "Exchange")),
        (lambda df: copied(df).coalesce(1), Placement(False, 2, "Coalesce")),
    ],
)  # fmt: skip
def test_a_plan_and_its_run_name_the_operator_that_moves_rows(
    runs: BatchRuns, transform: Transform, placement: Placement
) -> None:
    runs.fill(30)
    assert batch_of(runs).explain(transform) == placement
    assert (runs.records(), runs.committed()) == ([], [None] * 3)  # nothing is committed, not even a start
    result = runs.run(transform)
    assert result.placement == placement
    assert values(runs.records()) == sorted(
        b"v%d" % i for i in range(30)
    )  # in an order of Spark's own behind a shuffle
    assert runs.committed() == [10] * 3


def test_all_of_a_batch_goes_to_one_task(runs: BatchRuns) -> None:
    runs.fill(30)
    placement = Placement(False, 1, "commit='batch'")
    assert batch_of(runs).explain(copied, commit="batch") == placement
    result = runs.run(copied, "batch")
    assert result.placement == placement
    assert "; shuffled to 1 task by commit='batch'; " in summary(result)


def test_it_is_said_without_new_input_too(runs: BatchRuns) -> None:
    runs.fill(30)
    runs.run(copied)
    assert runs.run(copied).placement is None
    assert str(batch_of(runs).explain(copied)) == "in place, 3 tasks"


def test_a_job_is_explained_with_what_its_transform_may_not_do(runs: BatchRuns) -> None:
    runs.fill(30)

    def job(transform: Transform) -> SparkJob:
        return SparkJob(name=runs.name, inputs=[runs.input], outputs=runs.topics, transform=transform)

    assert explain(job(copied), runs.spark, runs.settings).in_place
    with pytest.raises(UsageError, match="dropped the column 'shard'"):
        explain(job(lambda df: df.select("value")), runs.spark, runs.settings)
