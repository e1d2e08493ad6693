"""What a run cannot write is said by name and with a way out, and nothing of the shard is committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from eos.errors import RecordRefusedError, UsageError
from tests.support.batch_input import BatchRuns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from eos.spark.plan import Commit

pytestmark = pytest.mark.broker


@pytest.fixture
def runs(spark: SparkSession, bootstrap: str) -> BatchRuns:
    made = BatchRuns(spark, bootstrap, partitions=2)
    made.fill(20)
    return made


def assert_untouched(runs: BatchRuns) -> None:
    assert runs.records() == []
    assert runs.committed() == [0, 0]  # where the start policy put them


def with_itself(column: str) -> Callable[[DataFrame], DataFrame]:
    def transform(df: DataFrame) -> DataFrame:
        left, right = df.alias("l"), df.alias("r")
        joined = left.join(right, [F.col(f"l.{name}") == F.col(f"r.{name}") for name in ("shard", "key")])
        return joined.select("l.shard", "l.key", "l.value", f"r.{column}")

    return transform


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (lambda df: df.select("value"), r"dropped the column 'shard'.*df\.select\('shard'"),
        (lambda df: df.select("shard"), r"no 'value'.*to_json"),
        (lambda df: df.select("shard", F.lit(1).alias("value")), "'value' is INT; an output needs BINARY"),
        (lambda df: df.select("shard", "value", F.lit("1").alias("partition")), "needs INT"),
        (lambda df: df.select("shard", "value", F.lit(1).alias("topic")), "needs STRING"),
        (lambda df: df.select("shard", "value", F.array(F.lit("h")).alias("headers")), "needs ARRAY<STRUCT"),
        (lambda df: df.select(F.lit("0").alias("shard"), "value"), "'shard' is STRING"),
        (with_itself("value"), r"2 of the columns \(shard, key, value, value\) have the name 'value'.*drop"),
        (with_itself("key"), "have the name 'key'"),
        (with_itself("shard"), "have the name 'shard'"),
        (lambda df: df.select("shard", "value", F.lit("x").alias("Value")), "have the name 'value'"),
        (lambda df: df.select("shard", "value", F.col("key").alias("KEY")), "'KEY' would be left out"),
        (lambda df: df.select(F.col("shard").alias("Shard"), "value"), "'Shard' would be left out"),
        (lambda df: df.count(), "returned int, not a DataFrame"),
    ],
)
def test_columns_that_cannot_be_written_are_refused_on_the_driver(
    runs: BatchRuns, transform: Callable[[DataFrame], DataFrame], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        runs.run(transform)
    assert_untouched(runs)


def test_several_outputs_need_a_topic_column(spark: SparkSession, bootstrap: str) -> None:
    runs = BatchRuns(spark, bootstrap, partitions=1, outputs=2)
    runs.fill(1)
    with pytest.raises(UsageError, match="no column 'topic'"):
        runs.run(lambda df: df.select("shard", "value"))


@pytest.mark.parametrize("commit", ["partition", "batch"])
def test_rows_for_a_topic_that_is_not_declared_are_not_committed(runs: BatchRuns, commit: Commit) -> None:
    with pytest.raises(UsageError, match="'elsewhere', which is not declared"):
        runs.run(lambda df: df.select("shard", "value", F.lit("elsewhere").alias("topic")), commit)
    assert_untouched(runs)


def renumbered(shard: Callable[[int, bytes], int | None]) -> Callable[[DataFrame], DataFrame]:
    """A Python function computes the shard, which no plan shows."""

    def passed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            numbers = [shard(row["shard"], row["key"]) for row in batch.to_pylist()]
            yield batch.set_column(0, "shard", pa.array(numbers, pa.int32()))

    def transform(df: DataFrame) -> DataFrame:
        return df.select("shard", "key", "value").mapInArrow(passed, "shard INT, key BINARY, value BINARY")

    return transform


@pytest.mark.parametrize(
    ("shard", "said"),
    [
        (lambda *_: None, "'shard' is NULL"),
        (lambda *_: 7, "shard 7 came to"),
        (lambda number, _: 1 - number, "must carry the column 'shard' through unchanged"),
    ],
)
def test_a_shard_column_that_was_changed_is_refused(
    runs: BatchRuns, shard: Callable[[int, bytes], int | None], said: str
) -> None:
    """Else the rows of one input partition would be committed with the offsets of another."""
    with pytest.raises(UsageError, match=said):
        runs.run(renumbered(shard))
    assert_untouched(runs)


@pytest.mark.parametrize(("shard", "said"), [(7, "shard 7"), (None, "shard NULL")])
def test_a_row_of_no_shard_is_refused_before_any_shard_is_committed(
    runs: BatchRuns, shard: int | None, said: str
) -> None:
    """Behind a shuffle its shard cannot be told any more, and would commit its offsets without the row."""
    one_lost = renumbered(lambda number, key: shard if key == b"k7" else number)

    def outer(df: DataFrame) -> DataFrame:
        return one_lost(df.groupBy("shard", "key").agg(F.first("value").alias("value")))

    with pytest.raises(UsageError, match=f"{said}, which this run does not read"):
        runs.run(outer)
    assert_untouched(runs)


def test_a_transform_that_raises_is_named_without_its_text(runs: BatchRuns) -> None:
    def poisoned(value):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - PySpark warns at bytes as an annotation
        raise LookupError(f"card number in {value!r}")

    udf = F.udf(poisoned, "string")
    with pytest.raises(UsageError, match="raised LookupError") as caught:
        runs.run(lambda df: df.select("shard", udf("value").alias("value")))
    assert "card number" not in str(caught.value)
    assert_untouched(runs)


def test_a_record_that_the_broker_refuses_ends_the_run_at_once(runs: BatchRuns) -> None:
    """Another try would be refused as well: Spark is not left to try it four times."""
    with pytest.raises(RecordRefusedError):
        runs.run(lambda df: df.select("shard", F.expr("repeat('x', 2000000)").alias("value")))
    assert_untouched(runs)
