"""A stream of batches without a checkpoint: its place is the group's offsets, and it is stopped in order."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from eos.errors import ConfigError
from eos.spark.batch import BatchResult, ExactlyOnceBatch
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


def test_a_group_that_is_deleted_meanwhile_is_not_started_anew(spark: SparkSession, bootstrap: str) -> None:
    """The start policy was for the first run: another one of --start earliest would write all of it again."""
    from confluent_kafka.admin import AdminClient

    runs = BatchRuns(spark, bootstrap, partitions=2)
    runs.fill(10)

    def forget(_: BatchResult) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        for deleted in admin.delete_consumer_groups([runs.name]).values():
            deleted.result(10)

    with pytest.raises(ConfigError, match="--start earliest"):
        batch_of(runs).run_every(0.01, copied, on_result=forget)
    assert len(runs.records()) == 10
