"""Whatever a transform does with the rows, each shard's output and its offsets are one transaction.

The rule: every row of a shard reaches one task, and a shard without output commits its offsets all the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from eos.events import TransactionCommitted
from eos.spark.write.writer import ShardState
from tests.support import observer
from tests.support.batch_input import BatchRuns, values
from tests.support.observer import PlainRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from eos.spark.plan import Commit
    from tests.support.exactly_once import Output, SeenRecord

pytestmark = pytest.mark.broker

RECORDS, PARTITIONS = 300, 3


@pytest.fixture
def runs(spark: SparkSession, bootstrap: str) -> BatchRuns:
    made = BatchRuns(spark, bootstrap, PARTITIONS)
    made.fill(RECORDS)
    return made


def copied(df: DataFrame) -> DataFrame:
    return df.select("shard", "key", "value")


def letters(df: DataFrame) -> DataFrame:
    return df.select("shard", "key", F.explode(F.split(F.col("value").cast("string"), "")).alias("value"))


def twice(df: DataFrame) -> DataFrame:
    return copied(df).union(df.select("shard", "key", F.concat(F.lit("again-"), F.col("value"))))


def with_itself(df: DataFrame) -> DataFrame:
    other = df.select("shard", "offset", F.col("value").alias("found"))
    return df.join(other, ["shard", "offset"]).select("shard", "key", F.col("found").alias("value"))


def test_a_row_wise_transform_writes_each_partition_in_its_order(runs: BatchRuns) -> None:
    result = runs.run(copied)
    compared = runs.assert_exactly_once(lambda r: [(runs.output, r.key, r.value)])
    assert (compared.processed, result.records_out) == (RECORDS, RECORDS)
    assert [shard.state for shard in result.shards] == [ShardState.COMMITTED] * PARTITIONS
    told = [event for event in runs.told if isinstance(event, TransactionCommitted)]
    assert [event.records_out for event in told] == [100, 100, 100]
    assert len({event.shard for event in told}) == PARTITIONS


def test_a_run_without_new_input_ends_at_once(runs: BatchRuns) -> None:
    runs.run(copied)
    again = runs.run(copied)
    assert (again.shards, len(again.plan)) == ((), 0)
    runs.fill(30)
    assert runs.run(copied).records_out == 30
    assert runs.assert_exactly_once(lambda r: [(runs.output, r.key, r.value)]).processed == RECORDS + 30


def _letters_of(output: str) -> Callable[[SeenRecord], list[Output]]:
    return lambda r: [(output, r.key, bytes([letter])) for letter in r.value or b""]


def _twice(output: str) -> Callable[[SeenRecord], list[Output]]:
    return lambda r: [(output, r.key, r.value), (output, r.key, b"again-" + (r.value or b""))]


def test_exploded_rows_stay_with_their_shard(runs: BatchRuns) -> None:
    runs.run(letters)
    assert runs.assert_exactly_once(_letters_of(runs.output)).processed == RECORDS


@pytest.mark.parametrize("transform", [twice, with_itself, lambda df: twice(df).coalesce(1)])
def test_rows_that_were_moved_are_gathered_per_shard(
    runs: BatchRuns, transform: Callable[[DataFrame], DataFrame]
) -> None:
    """A union puts a shard into two tasks, a join anywhere, coalesce(1) all shards into one task."""
    result = runs.run(transform)
    assert [shard.state for shard in result.shards] == [ShardState.COMMITTED] * PARTITIONS
    found = [(r.key, r.value) for r in runs.records()]
    wanted = [(b"k%d" % i, b"v%d" % i) for i in range(RECORDS)]
    if transform is not with_itself:
        wanted += [(key, b"again-" + value) for key, value in wanted]
    assert sorted(found) == sorted(wanted)
    assert runs.committed() == [100] * PARTITIONS


def test_the_parts_of_a_union_come_one_after_the_other_each_in_input_order(runs: BatchRuns) -> None:
    runs.run(lambda df: twice(df).withColumn("partition", F.col("shard")))
    for number in range(PARTITIONS):
        mine = [b"v%d" % i for i in range(number, RECORDS, PARTITIONS)]
        found = [r.value for r in runs.records() if r.partition == number]
        assert found == mine + [b"again-" + value for value in mine]


def test_an_aggregate_per_shard_is_one_record_per_shard(runs: BatchRuns) -> None:
    runs.run(lambda df: df.groupBy("shard").agg(F.count("*").cast("string").alias("value")))
    assert values(runs.records()) == [b"100"] * PARTITIONS
    assert runs.committed() == [100] * PARTITIONS


@pytest.mark.parametrize("condition", ["offset < 0", "1 = 0"])
@pytest.mark.parametrize("commit", ["partition", "batch"])
def test_a_run_without_output_commits_its_offsets(runs: BatchRuns, condition: str, commit: Commit) -> None:
    """Also where the optimizer sees that nothing comes out, and there is no task left to commit."""
    result = runs.run(lambda df: copied(df.where(condition)), commit)
    assert {shard.state for shard in result.shards} == {ShardState.EMPTY}
    assert runs.records() == []
    assert runs.committed() == [100] * PARTITIONS


def test_a_partition_whose_rows_are_all_filtered_commits_its_offsets(runs: BatchRuns) -> None:
    result = runs.run(lambda df: twice(df).where("shard <> 1"))
    assert [shard.state for shard in result.shards] == [
        ShardState.COMMITTED,
        ShardState.EMPTY,
        ShardState.COMMITTED,
    ]
    assert runs.committed() == [100] * PARTITIONS


def test_one_batch_is_one_transaction_for_all_of_the_input(runs: BatchRuns) -> None:
    def totals(df: DataFrame) -> DataFrame:
        return (
            df.groupBy(F.substring(F.col("value").cast("string"), 2, 1).alias("digit"))
            .agg(F.count("*").alias("count"))
            .select(F.col("digit").alias("key"), F.to_json(F.struct("digit", "count")).alias("value"))
        )

    result = runs.run(totals, "batch")
    assert len(result.shards) == 1
    found = [json.loads(record.value or b"") for record in runs.records()]
    assert sum(one["count"] for one in found) == RECORDS
    assert {one["digit"] for one in found} == set("0123456789")
    assert runs.committed() == [100] * PARTITIONS
    assert len([e for e in runs.told if isinstance(e, TransactionCommitted)]) == 1


def test_everything_that_a_record_may_be_arrives(spark: SparkSession, bootstrap: str) -> None:
    """Tombstones, null keys, headers with and without values, several topics, partitions and timestamps."""
    runs = BatchRuns(spark, bootstrap, partitions=2, outputs=2)
    first, second = runs.topics
    sent = [
        PlainRecord(b"a", b"k", 0, (("one", b"1"), ("none", None))),
        PlainRecord(None, b"gone", 0),
        PlainRecord(b"", None, 1),
        PlainRecord(b"\xff\x00", b"\xfe", 1, (("one", b""),)),
    ]
    seen = observer.produce_plain(bootstrap, runs.input, sent)
    runs.run(
        lambda df: df.select(
            "shard",
            "key",
            "value",
            "headers",
            "timestamp",
            "partition",
            F.when(F.col("partition") == 0, first).otherwise(second).alias("topic"),
        )
    )
    given = [(r.partition, r.key, r.value, r.headers) for r in seen]
    found = runs.records()
    assert sorted(map(str, given)) == sorted(str((r.partition, r.key, r.value, r.headers)) for r in found)
    assert {(r.topic, r.partition) for r in found} == {(first, 0), (second, 1)}
    stored = observer.read_committed(bootstrap, runs.input)
    assert sorted(r.timestamp_ms or 0 for r in found) == sorted(r.timestamp_ms or 0 for r in stored)


def test_several_input_topics_are_read_by_one_run(spark: SparkSession, bootstrap: str) -> None:
    runs = BatchRuns(spark, bootstrap, partitions=2)
    runs.fill(40)
    other = observer.unique("other")
    observer.create_topics(bootstrap, {other: 3})
    observer.produce_plain(bootstrap, other, [PlainRecord(b"o%d" % i, None, i % 3) for i in range(30)])
    result = runs.run(copied, inputs=[runs.input, other])
    assert len(result.shards) == 5
    assert values(runs.records()) == sorted([b"v%d" % i for i in range(40)] + [b"o%d" % i for i in range(30)])
    found = observer.committed_offsets(bootstrap, runs.name, [(other, p) for p in range(3)])
    assert [offset for offset, _ in found.values()] == [10, 10, 10]
