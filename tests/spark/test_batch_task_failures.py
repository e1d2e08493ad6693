"""A task that fails before, in or after its commit is tried again, and its records are there once.

The end of what Spark hands to a Python function proves nothing: a failed operator below and a killed task end it
in order. That is what the end marks are for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from eos.errors import EosError
from eos.spark.write.writer import ShardState
from tests.support.batch_faults import DyingWriting, late_first_try, raises_after, stalls_after
from tests.support.batch_input import BatchRuns
from tests.support.patience import PATIENCE_S

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from eos.spark.plan import Commit
    from tests.support.exactly_once import Output, SeenRecord

pytestmark = pytest.mark.broker

# Enough of it that what a failing operator has made reaches the writer before the failure does.
RECORDS, BYTES, ROWS_PER_BATCH = 2_000, 1_000, 50
ROWS_CONF = "spark.sql.execution.arrow.maxRecordsPerBatch"


@pytest.fixture
def runs(spark: SparkSession, bootstrap: str) -> Iterator[BatchRuns]:
    made = BatchRuns(spark, bootstrap, partitions=2)
    made.fill(RECORDS, value=lambda i: b"%d" % i + b"." * BYTES)
    before = spark.conf.get(ROWS_CONF)
    spark.conf.set(ROWS_CONF, str(ROWS_PER_BATCH))
    yield made
    spark.conf.set(ROWS_CONF, str(before))


def through(function: Any) -> Any:
    """A row-wise transform with a Python function in it."""

    def transform(df: DataFrame) -> DataFrame:
        return df.select("shard", "key", "value").mapInArrow(function, "shard INT, key BINARY, value BINARY")

    return transform


def copied(df: DataFrame) -> DataFrame:
    return df.select("shard", "key", "value")


def expected(output: str, record: SeenRecord) -> list[Output]:
    return [(output, record.key, record.value)]


def assert_all_once(runs: BatchRuns) -> None:
    assert runs.assert_exactly_once(partial(expected, runs.output)).processed == RECORDS


def test_canary_a_failed_operator_looks_like_the_end_of_the_input(
    spark: SparkSession, runs: BatchRuns, tmp_path: Path
) -> None:
    """Why there are end marks. If this fails, Spark has begun to tell the two apart."""
    seen = tmp_path / "seen"

    def last(batches: Iterator[Any]) -> Iterator[Any]:
        rows = sum(batch.num_rows for batch in batches)
        seen.write_text(str(rows))  # reached without an exception
        yield from ()

    frame = spark.range(0, 400_000, 1, 1).mapInArrow(_raising_in_the_end, "id LONG")
    with pytest.raises(Exception, match="too late"):
        frame.mapInArrow(last, "id LONG").collect()
    deadline = time.monotonic() + PATIENCE_S
    while not seen.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert 0 < int(seen.read_text()) < 400_000


def _raising_in_the_end(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        if batch.column(0)[0].as_py() > 300_000:
            raise RuntimeError("too late")
        yield batch


def test_an_operator_that_fails_below_the_writer_leaves_nothing_and_is_tried_again(runs: BatchRuns) -> None:
    result = runs.run(through(raises_after(batches=15)))
    assert {shard.state for shard in result.shards} == {ShardState.COMMITTED}
    assert_all_once(runs)


def test_a_retry_that_the_late_init_of_the_first_try_has_fenced_does_not_wait_for_it(
    runs: BatchRuns, tmp_path: Path
) -> None:
    """Otherwise a failed task now and then cost as long as a transaction may live: a minute."""
    runs.overrides["spark.twin_wait_ms"] = 120_000  # far more than the run takes on a busy machine
    began = time.monotonic()
    result = runs.run(through(late_first_try(runs.settings, runs.name, runs.input, tmp_path)))
    assert time.monotonic() - began < runs.settings.twin_wait_s / 2
    assert {shard.state for shard in result.shards} == {ShardState.COMMITTED}
    assert (tmp_path / "2").exists(), "the second try was not fenced"
    assert_all_once(runs)


@pytest.mark.parametrize("interrupt", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_killed_task_does_not_commit_what_it_has(
    runs: BatchRuns, tmp_path: Path, *, interrupt: bool
) -> None:
    """Spark ends the input of a killed task in order, marker of the stream's end included."""
    flag = tmp_path / "stalled"
    failed: list[EosError] = []

    def run() -> None:
        runs.spark.sparkContext.setJobGroup("doomed", "to be cancelled", interrupt)
        try:
            runs.run(through(stalls_after(15, flag)))
        except EosError as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    deadline = time.monotonic() + PATIENCE_S
    while not flag.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    runs.spark.sparkContext.cancelJobGroup("doomed")
    thread.join(PATIENCE_S)
    flag.with_name("stalled.go").touch()
    assert len(failed) == 1
    time.sleep(3.0)  # the function below the writer wakes, and whoever would commit has the time
    assert_invariant_with_nothing_torn(runs)
    runs.run(copied)
    assert_all_once(runs)


def assert_invariant_with_nothing_torn(runs: BatchRuns) -> None:
    """The other partition's task may have committed before the end; what was killed has not."""
    runs.assert_exactly_once(partial(expected, runs.output))
    assert None not in runs.committed()
    assert runs.committed() != [RECORDS // 2] * 2


@pytest.mark.parametrize("commit", ["partition", "batch"])
@pytest.mark.parametrize("when", ["before", "after", ""])
def test_a_worker_killed_around_its_commit_is_replaced_and_the_records_are_there_once(
    runs: BatchRuns, monkeypatch: pytest.MonkeyPatch, when: str, commit: Commit
) -> None:
    """Before EndTxn, after it, and after the task has done all its work: its twin commits, or skips."""
    monkeypatch.setattr("eos.spark.batch.batch.Writing", partial(DyingWriting, when=when))
    result = runs.run(copied, commit)
    done = ShardState.COMMITTED if when == "before" else ShardState.SKIPPED
    assert {shard.state for shard in result.shards} == {done}
    assert_all_once(runs)
