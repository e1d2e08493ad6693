"""A run reads exactly the committed records of its ranges: gaps are no records, an open transaction ends the range."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from eos.errors import ConfigError, OffsetGapError
from eos.spark.batch.batch import ExactlyOnceBatch
from eos.spark.source import read_snapshot
from tests.support.batch_input import BatchRuns, values
from tests.support.observer import unique
from tests.support.patience import PATIENCE_S

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.broker


@pytest.fixture
def runs(spark: SparkSession, bootstrap: str) -> BatchRuns:
    return BatchRuns(spark, bootstrap, partitions=1)


def copied(df: DataFrame) -> DataFrame:
    return df.select("shard", "key", "value")


@contextmanager
def transactions(runs: BatchRuns) -> Iterator[Producer]:
    producer = Producer(
        {"bootstrap.servers": runs.bootstrap, "transactional.id": unique("upstream"), "log_level": 0}
    )
    producer.init_transactions(30)
    yield producer


def produced(producer: Producer, runs: BatchRuns, *records: bytes) -> None:
    producer.begin_transaction()
    for value in records:
        producer.produce(runs.input, value, partition=0)
    producer.flush(10)


def test_aborted_records_and_markers_are_gaps_and_no_records(runs: BatchRuns) -> None:
    """The range ends behind a marker, so its last offset is none of a record."""
    with transactions(runs) as producer:
        for n in range(6):
            produced(producer, runs, b"%d-a" % n, b"%d-b" % n)
            (producer.abort_transaction if n % 2 else producer.commit_transaction)(10)
    result = runs.run(copied)
    assert values(runs.records()) == [b"0-a", b"0-b", b"2-a", b"2-b", b"4-a", b"4-b"]
    assert runs.committed() == [18]  # twelve records and six markers
    assert result.records_out == 6
    assert runs.assert_exactly_once(lambda r: [(runs.output, r.key, r.value)]).processed == 6


def test_a_range_of_nothing_but_aborted_records_commits_its_end(runs: BatchRuns) -> None:
    with transactions(runs) as producer:
        produced(producer, runs, b"a", b"b")
        producer.abort_transaction(10)
    runs.run(copied)
    assert (runs.records(), runs.committed()) == ([], [3])


def test_a_run_ends_before_an_open_transaction_and_the_next_one_takes_it(runs: BatchRuns) -> None:
    with transactions(runs) as upstream, transactions(runs) as other:
        produced(upstream, runs, b"before")
        upstream.commit_transaction(10)
        produced(upstream, runs, b"open")
        produced(other, runs, b"behind")  # committed, but behind the LSO
        other.commit_transaction(10)
        runs.run(copied)
        assert (values(runs.records()), runs.committed()) == ([b"before"], [2])
        upstream.commit_transaction(10)
    runs.run(copied)
    assert values(runs.records()) == [b"before", b"behind", b"open"]
    assert runs.assert_exactly_once(lambda r: [(runs.output, r.key, r.value)]).processed == 3


def test_input_that_is_deleted_after_the_plan_is_a_gap_and_never_skipped(runs: BatchRuns) -> None:
    runs.fill(20)
    batch = ExactlyOnceBatch(
        runs.spark, runs.settings, name=runs.name, inputs=[runs.input], outputs=runs.topics
    )
    plan = batch.plan()
    admin = AdminClient({"bootstrap.servers": runs.bootstrap})
    for done in admin.delete_records([TopicPartition(runs.input, 0, 5)]).values():
        done.result(PATIENCE_S)
    with pytest.raises(OffsetGapError, match="the committed offset is 0, and the log begins at 5"):
        batch.run(copied, plan=plan)
    assert (runs.records(), runs.committed()) == ([], [0])


def test_the_limit_of_a_partition_divides_the_input_into_runs(spark: SparkSession, bootstrap: str) -> None:
    runs = BatchRuns(spark, bootstrap, partitions=2, overrides={"spark.max_records_per_partition": 40})
    runs.fill(160)
    assert [runs.run(copied).records_out for _ in range(3)] == [80, 80, 0]
    assert runs.assert_exactly_once(lambda r: [(runs.output, r.key, r.value)]).processed == 160


def test_a_snapshot_is_all_that_is_committed_and_moves_no_offsets(runs: BatchRuns) -> None:
    assert read_snapshot(runs.spark, runs.settings, runs.input).count() == 0
    with transactions(runs) as producer:
        produced(producer, runs, b"gone")
        producer.abort_transaction(10)
        produced(producer, runs, b"a", b"b")
        producer.commit_transaction(10)
    found = read_snapshot(runs.spark, runs.settings, runs.input)
    assert sorted(bytes(row.value) for row in found.collect()) == [b"a", b"b"]
    assert runs.committed() == [None]
    with pytest.raises(ConfigError, match="does not exist"):
        read_snapshot(runs.spark, runs.settings, unique("nowhere"))
