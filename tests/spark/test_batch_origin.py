"""A run writes rows of its own input, and with commit="partition" no row of several input partitions.

Both show in the plan of the transformed DataFrame, before anything is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from eos.errors import UsageError
from eos.offsets import Partition
from eos.spark.analysis.lineage import as_input, require_own_input
from eos.spark.analysis.partition_local import require_partition_local
from eos.spark.plan import InputPlan, OffsetRange
from eos.spark.source import read_input
from tests.support.batch_input import BatchRuns, values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from eos.spark.plan import Commit

pytestmark = pytest.mark.broker

Transform = Callable[["DataFrame"], "DataFrame"]
COLUMNS = ("shard", "key", "value")


@pytest.fixture
def runs(spark: SparkSession, bootstrap: str) -> BatchRuns:
    made = BatchRuns(spark, bootstrap, partitions=2)
    made.fill(40)
    return made


@pytest.fixture
def source(spark: SparkSession, bootstrap: str) -> DataFrame:
    """An input of one topic that nobody reads."""
    runs = BatchRuns(spark, bootstrap, partitions=2)
    ranges = tuple(OffsetRange(Partition(runs.input, number), 0, 5) for number in range(2))
    partitions = tuple(one.partition for one in ranges)
    plan = InputPlan(runs.name, partitions, ranges, runs.name, "partition")
    return as_input(read_input(spark, runs.settings, plan))


def lookup(df: DataFrame) -> DataFrame:
    return df.sparkSession.createDataFrame([(0, "a")], "number INT, name STRING")


def queried(text: str) -> Transform:
    def transform(df: DataFrame) -> DataFrame:
        df.createOrReplaceTempView("records")
        return df.sparkSession.sql(text)

    return transform


def with_itself(df: DataFrame, *on: str) -> DataFrame:
    return df.join(df.select(*on, F.col("value").alias("other")), list(on))


# --- of another run ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", ["partition", "batch"])
def test_a_frame_that_was_kept_from_an_earlier_run_is_refused(runs: BatchRuns, commit: Commit) -> None:
    """Its 40 records would be there twice, and the 40 new ones, whose offsets are committed, not at all."""
    kept: list[DataFrame] = []

    def first(df: DataFrame) -> DataFrame:
        kept.append(df)
        return df.select(*COLUMNS)

    runs.run(first, commit)
    runs.fill(40, value=lambda i: b"new%d" % i)
    for again in (
        lambda _: kept[0].select(*COLUMNS),
        lambda df: df.select(*COLUMNS).union(kept[0].select(*COLUMNS)),
        lambda _: kept[0].select(*COLUMNS).cache(),
        lambda df: df.join(kept[0].select("key"), "key", "left_semi").select(*COLUMNS),
    ):
        with pytest.raises(UsageError, match="reads the input of another run"):
            runs.run(again, commit)
    assert runs.committed() == [20, 20]
    runs.run(lambda df: df.select(*COLUMNS), commit)
    compared = runs.assert_exactly_once(lambda r: [(runs.output, r.key, r.value)])
    assert compared.processed == 80


def test_a_view_of_an_earlier_run_is_refused(runs: BatchRuns) -> None:
    runs.run(queried("SELECT shard, key, value FROM records"))
    runs.fill(10)
    with pytest.raises(UsageError, match="reads the input of another run"):
        runs.run(lambda df: df.sparkSession.sql("SELECT shard, key, value FROM records"))
    assert runs.committed() == [20, 20]


@pytest.mark.parametrize(
    "transform",
    [
        lambda df: lookup(df).select(F.col("number").alias("shard"), F.col("name").alias("value")),
        lambda df: df.select(*COLUMNS).localCheckpoint(),
        lambda df: df.sparkSession.createDataFrame(
            df.select("shard", "value").rdd, "shard INT, value BINARY"
        ),
    ],
)
def test_a_frame_that_does_not_show_this_runs_input_is_refused(runs: BatchRuns, transform: Transform) -> None:
    with pytest.raises(UsageError, match=r"does not read this run's input.*checkpoint\(\)"):
        runs.run(transform)
    assert (runs.records(), runs.committed()) == ([], [0, 0])


def test_a_cached_input_and_a_static_table_are_no_other_run(runs: BatchRuns) -> None:
    def transform(df: DataFrame) -> DataFrame:
        kept = df.cache()
        return kept.join(F.broadcast(lookup(df)), kept.shard == F.col("number"), "left").select(*COLUMNS)

    runs.run(transform)
    runs.spark.catalog.clearCache()
    assert runs.assert_exactly_once(lambda r: [(runs.output, r.key, r.value)]).processed == 40


# --- of several shards -------------------------------------------------------------------------------------


def numbered(*by: str) -> Transform:
    return lambda df: df.withColumn("n", F.row_number().over(Window.partitionBy(*by).orderBy("offset")))


def test_a_window_over_all_shards_is_refused_unless_they_are_one_transaction(runs: BatchRuns) -> None:
    """Where one shard is committed and another is not, the next run would number the rest anew."""

    def transform(df: DataFrame) -> DataFrame:
        window = Window.orderBy("offset", "partition")
        return df.select("shard", F.row_number().over(window).cast("string").alias("value"))

    with pytest.raises(UsageError, match=r"a window.*Window\.partitionBy\('shard', …\).*commit='batch'"):
        runs.run(transform)
    assert (runs.records(), runs.committed()) == ([], [0, 0])
    runs.overrides = {"ownership.adopt_offsets": True}  # the first offsets are of the unit that was refused
    runs.run(transform, "batch")
    assert values(runs.records()) == sorted(b"%d" % n for n in range(1, 41))


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (lambda df: df.agg(F.min("shard").alias("shard")), "an aggregate"),
        (lambda df: df.groupBy("key").agg(F.min("shard").alias("shard")), "an aggregate"),
        (lambda df: df.rollup("shard", "key").count(), "an aggregate"),
        (numbered("key"), "a window"),
        (lambda df: df.dropDuplicates(["key"]), "dropDuplicates"),
        (lambda df: df.orderBy("key").limit(3), "limit"),
        (lambda df: df.offset(3), "offset"),
        (lambda df: with_itself(df, "key"), "a join"),
        (lambda df: df.select(*COLUMNS).subtract(df.select(F.lit(0), "key", "value")), "except"),
        (lambda df: df.groupBy("key").applyInPandas(lambda rows: rows, df.schema), "applyInPandas"),
        (
            lambda df: (
                df.groupBy("key")
                .cogroup(lookup(df).groupBy("name"))
                .applyInPandas(lambda rows, _: rows, df.schema)
            ),
            "cogroup",
        ),
        (queried("SELECT * FROM records WHERE value > (SELECT max(value) FROM records)"), "a subquery"),
        (
            queried(
                "WITH a AS (SELECT * FROM records) SELECT * FROM a WHERE value > (SELECT max(value) FROM a)"
            ),
            "a subquery",
        ),
        (
            queried(
                "WITH a AS (SELECT * FROM records), b AS (SELECT key AS k FROM a) "
                "SELECT * FROM records WHERE key IN (SELECT k FROM b)"
            ),
            "a subquery",
        ),
        (
            queried(
                "SELECT * FROM (WITH a AS (SELECT * FROM records) SELECT * FROM a WHERE EXISTS (SELECT 1 FROM a))"
            ),
            "a subquery",
        ),
        (
            queried("WITH a AS (SELECT * FROM records) SELECT a.* FROM a JOIN a AS b ON a.key = b.key"),
            "a join",
        ),
        (
            lambda df: (
                lookup(df).join(df, df.shard == F.col("number"), "left").groupBy("shard").agg(F.count("*"))
            ),
            "an aggregate",
        ),
    ],
)
def test_rows_of_several_shards_are_refused(source: DataFrame, transform: Transform, said: str) -> None:
    with pytest.raises(UsageError, match=rf"rows of records of several input partitions \([^)]*{said}"):
        require_partition_local(transform(source), source, topics=1)


@pytest.mark.parametrize(
    "transform",
    [
        lambda df: df.withColumn("shard", F.lit(0)),
        lambda df: df.withColumn("shard", F.expr("1 - shard")),
        lambda df: df.select("shard", "key").union(df.select(F.lit(0), "key")),
        lambda df: df.select("shard", "key").union(lookup(df).select("number", F.col("name").cast("binary"))),
        lambda df: (
            lookup(df)
            .join(df, df.shard == F.col("number"), "left")
            .withColumn("shard", F.coalesce("shard", F.lit(0)))
        ),
    ],
)
def test_a_shard_that_is_not_the_inputs_is_refused(source: DataFrame, transform: Transform) -> None:
    with pytest.raises(UsageError, match="must carry the column 'shard' through unchanged"):
        require_partition_local(transform(source), source, topics=1)


@pytest.mark.parametrize(
    "transform",
    [
        lambda df: df.where("offset % 2 = 0").select("shard", F.explode(F.array("key", "value"))),
        lambda df: df.repartition(3).orderBy("key").sample(0.5, seed=1).hint("rebalance"),
        lambda df: df.union(df).unionByName(df),
        lambda df: df.select("shard", F.length("value").alias("n")).fillna(0),
        queried("SELECT shard, t.col FROM records, LATERAL explode(array(key, value)) t"),
        queried("FROM records |> WHERE offset > 1 |> SELECT shard, value"),
        lambda df: df.withWatermark("timestamp", "1 hour").dropDuplicatesWithinWatermark(["shard", "key"]),
        lambda df: df.mapInArrow(lambda batches: batches, df.schema),
        lambda df: df.select(*COLUMNS).unpivot(["shard"], ["key", "value"], "name", "value"),
        lambda df: df.groupBy("shard", "key").count().groupBy("shard").agg(F.max("count")),
        lambda df: df.groupBy("topic", "partition").agg(F.first("shard").alias("shard")),
        lambda df: df.groupBy(F.col("shard").cast("string").alias("s")).agg(F.max("shard").alias("shard")),
        lambda df: df.groupBy("shard").pivot("key", ["a", "b"]).count(),
        lambda df: df.groupBy("shard").applyInPandas(lambda rows: rows, df.schema),
        numbered("shard", "key"),
        lambda df: df.dropDuplicates(["shard", "key"]).distinct(),
        lambda df: df.select(*COLUMNS).exceptAll(df.select(*COLUMNS).where("offset = 1")),
        lambda df: with_itself(df, "shard", "key"),
        lambda df: with_itself(df, "partition", "topic", "key").withColumn("shard", F.col("shard")),
        lambda df: df.join(df.select("shard", "offset", F.lit(1)), ["shard", "offset"], "full"),
        lambda df: df.join(lookup(df), F.col("number") == df["offset"], "left"),
        lambda df: lookup(df).join(df, df.shard == F.col("number"), "left").where("shard IS NOT NULL"),
        queried("WITH a AS (SELECT * FROM records) SELECT a.* FROM a JOIN a AS b ON a.shard = b.shard"),
        queried("SELECT * FROM records WHERE offset > (SELECT 1)"),
        queried("WITH a AS (SELECT 1 AS n) SELECT * FROM records WHERE offset > (SELECT n FROM a)"),
    ],
)
def test_rows_of_one_shard_are_accepted(source: DataFrame, transform: Transform) -> None:
    require_own_input(transform(source), source)
    require_partition_local(transform(source), source, topics=1)


def test_of_several_topics_a_partitions_number_alone_is_no_shard(source: DataFrame) -> None:
    def transform(df: DataFrame) -> DataFrame:
        return df.groupBy("partition").agg(F.first("shard").alias("shard"))

    require_partition_local(transform(source), source, topics=1)
    with pytest.raises(UsageError, match="an aggregate"):
        require_partition_local(transform(source), source, topics=2)
