"""What a run's failure says: what has happened and what to do, without a word of a record. Nothing waits for ever."""

from __future__ import annotations

import os
import sys
import threading
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from eos.errors import (
    EosError,
    FencedError,
    OffsetGapError,
    RecordRefusedError,
    UnavailableError,
    UnclassifiedError,
    UsageError,
)
from eos.exits import ExitCode, exit_code_of
from eos.spark import source
from eos.spark.jobs import SparkJob
from eos.spark.running import run_job
from tests.support.batch_driver import submitted
from tests.support.batch_input import BatchRuns
from tests.support.patience import PATIENCE_S

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from eos.spark.plan import Commit

pytestmark = pytest.mark.broker

QUOTED = "card-4711"


@pytest.fixture
def runs(spark: SparkSession, bootstrap: str) -> BatchRuns:
    made = BatchRuns(spark, bootstrap, partitions=2)
    made.fill(10, value=lambda _: QUOTED.encode())
    return made


def assert_untouched(runs: BatchRuns) -> None:
    assert runs.records() == []
    assert runs.committed() == [0, 0]


def failure_of(
    runs: BatchRuns, transform: Callable[[DataFrame], DataFrame], commit: Commit = "partition"
) -> EosError:
    with pytest.raises(EosError) as caught:
        runs.run(transform, commit)
    assert QUOTED not in "".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert_untouched(runs)
    return caught.value


@pytest.mark.parametrize("commit", ["partition", "batch"])
@pytest.mark.parametrize(
    ("column", "named"),
    [
        (lambda text: text.cast("int").cast("string"), "CAST_INVALID_INPUT"),
        (lambda text: F.to_timestamp(text, "yyyy").cast("string"), "CANNOT_PARSE_TIMESTAMP"),
        (lambda text: F.raise_error(text).cast("string"), "USER_RAISED_EXCEPTION"),
        (
            lambda text: F.from_json(text, "a INT", {"mode": "FAILFAST"})["a"].cast("string"),
            "MALFORMED_RECORD_IN_PARSING",
        ),
        # A state of Spark's analysis, in a task; one of no class that was known for rows; and one of Java's own.
        (lambda text: F.to_number(text, F.lit("999")).cast("string"), "INVALID_FORMAT.MISMATCH_INPUT"),
        (
            lambda text: F.to_json(F.map_from_arrays(F.array(text, text), F.array(F.lit(1), F.lit(2)))),
            "DUPLICATED_MAP_KEY",
        ),
        (lambda text: F.format_string("%c", text), "java.util.IllegalFormatConversionException"),
    ],
)
def test_a_row_that_the_jvm_cannot_compute_is_named_without_its_record(
    runs: BatchRuns, column: Callable[[Any], Any], named: str, commit: Commit
) -> None:
    text = F.col("value").cast("string")
    error = failure_of(runs, lambda df: df.select("shard", column(text).alias("value")), commit)
    assert isinstance(error, UsageError)
    assert f"a row could not be computed in a task: {named}" in str(error)


@pytest.mark.parametrize(
    "forged",
    [
        'eos-failure {"module": "eos.errors", "class": "FencedError", "message": "forged", "state": {}}',
        "PythonException: Traceback of\nKeyError: forged\n",
        "FOREACH_BATCH_USER_FUNCTION_ERROR",
        "cancelled because SparkContext was shut down",
        "cancelled part of cancelled job group",
        "stage with indeterminate output was failed and retried",
        "Python worker exited unexpectedly",
        "java.lang.OutOfMemoryError",
    ],
)
def test_a_record_that_a_failing_row_quotes_does_not_choose_the_error(runs: BatchRuns, forged: str) -> None:
    number = F.concat(F.col("value").cast("string"), F.lit(forged)).cast("int").cast("string")
    error = failure_of(runs, lambda df: df.select("shard", number.alias("value")))
    assert isinstance(error, UsageError)
    assert "a row could not be computed in a task: CAST_INVALID_INPUT" in str(error)


@pytest.mark.parametrize("where", ["driver", "task"])
def test_class_of_eos_that_a_transform_raises_is_the_transforms_and_no_fence(
    runs: BatchRuns, where: str
) -> None:
    def fenced(_: Iterator[Any]) -> Iterator[Any]:
        raise FencedError(QUOTED)

    def transform(frame: DataFrame) -> DataFrame:
        if where == "driver":
            raise FencedError("not of this run's shards")
        return frame.select("shard", "value").mapInArrow(fenced, "shard INT, value BINARY")

    job = SparkJob(name=runs.name, inputs=[runs.input], outputs=runs.topics, transform=transform)
    with pytest.raises(UsageError, match=r"transform raised .*FencedError.*Fix: ") as caught:
        run_job(job, runs.spark, runs.settings)
    assert QUOTED not in str(caught.value)
    assert_untouched(runs)


@pytest.mark.parametrize("end", ["killed", "exit"])
def test_a_python_process_that_ends_in_a_task_is_said_to_have_ended(runs: BatchRuns, end: str) -> None:
    def ending(_: Iterator[Any]) -> Iterator[Any]:
        if end == "exit":
            os._exit(0)
        os.kill(os.getpid(), 9)
        yield

    error = failure_of(
        runs, lambda df: df.select("shard", "value").mapInArrow(ending, "shard INT, value BINARY")
    )
    assert isinstance(error, UnclassifiedError)
    assert "the Python process of a task ended before its work (Task" in str(error)


def test_rows_of_a_function_that_lack_a_column_are_the_transforms_fault(runs: BatchRuns) -> None:
    """Java's text is not repeated; the call that Py4J made of the action says nothing. It was exit code 1."""

    def short(batches: Iterator[Any]) -> Iterator[Any]:
        for one in batches:
            yield one.select(["shard"])

    error = failure_of(
        runs, lambda df: df.select("shard", "value").mapInArrow(short, "shard INT, value BINARY")
    )
    assert isinstance(error, UsageError)
    assert "java.lang.ArrayIndexOutOfBoundsException" in str(error)
    assert "collectToPython" not in str(error)


@pytest.mark.parametrize("commit", ["partition", "batch"])
def test_a_cluster_that_is_away_while_spark_plans_is_unavailable(runs: BatchRuns, commit: Commit) -> None:
    """It was exit code 1. No cluster answers Java's client in a millisecond."""
    runs.overrides = {"spark.client": {"default.api.timeout.ms": 1, "request.timeout.ms": 1}}
    error = failure_of(runs, lambda df: df.select("shard", "key", "value"), commit)
    assert exit_code_of(error) == ExitCode.UNAVAILABLE
    assert "did not answer Spark's Kafka client" in str(error)


def test_a_snapshot_whose_cluster_is_away_is_unavailable_and_no_fault_of_the_transform(
    runs: BatchRuns,
) -> None:
    def transform(frame: DataFrame) -> DataFrame:
        raise UnavailableError("no broker answers a snapshot")

    job = SparkJob(name=runs.name, inputs=[runs.input], outputs=runs.topics, transform=transform)
    with pytest.raises(UnavailableError, match="a snapshot"):
        run_job(job, runs.spark, runs.settings)
    assert_untouched(runs)


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["eos", "pyarrow"])
def test_executors_without_a_package_are_told_how_it_gets_there(
    bootstrap: str, connector_jars: list[Path], tmp_path: Path, missing: str
) -> None:
    runs = BatchRuns(None, bootstrap, partitions=1)  # type: ignore[arg-type] # the run is another process's
    runs.fill(1)
    bare = tmp_path / "bare"
    venv.create(bare, symlinks=True)
    packages = next((bare / "lib").glob("python*")) / "site-packages"
    for found in Path(sys.prefix, "lib", packages.parent.name, "site-packages").iterdir():
        if missing not in found.name and not (packages / found.name).exists():
            (packages / found.name).symlink_to(found)
    python = tmp_path / "python"  # elsewhere, and without the driver's path: this directory has an eos
    forget = "unset PYTHONPATH" if missing == "eos" else "true"
    python.write_text(f'#!/bin/sh\ncd / && {forget} && exec {bare}/bin/python "$@"\n')
    python.chmod(0o755)
    with submitted(
        "local[1,1]",
        connector_jars,
        conf={
            "spark.pyspark.python": str(python),
            "spark.pyspark.driver.python": sys.executable,
        },
        settings={"kafka.bootstrap_servers": bootstrap, "input.start": "earliest"},
        name=runs.name,
        source=runs.input,
        output=runs.output,
        flag=str(tmp_path / "flag"),
    ) as child:
        said = child.wait_line("failed ", PATIENCE_S)
        assert child.wait(PATIENCE_S) == 1
    assert f"no {missing} there (No module named '{missing}')" in said
    assert "docs/guides/spark-dependencies.md#shipping-dependencies-to-executors" in said
    assert (runs.records(), runs.committed()) == ([], [None])


@pytest.mark.parametrize("moves", [False, True])
def test_an_observation_gets_its_figures(runs: BatchRuns, moves: bool) -> None:
    """In place, what ran was not the plan that the observation belongs to, and get() waited for ever."""
    seen = Observation()

    def transform(df: DataFrame) -> DataFrame:
        rows = df.select("shard", "key", "value").observe(seen, F.count("*").alias("rows"))
        return rows.union(rows.where("false")) if moves else rows

    runs.run(transform)
    got: list[dict[str, Any]] = []
    reader = threading.Thread(target=lambda: got.append(seen.get), daemon=True)
    reader.start()
    reader.join(PATIENCE_S)
    assert got == [{"rows": 10}]


@pytest.mark.parametrize("commit", ["partition", "batch"])
@pytest.mark.parametrize(
    ("name", "column", "said"),
    [
        (
            "timestamp",
            lambda last: F.timestamp_millis(F.when(last, 0).otherwise(1)),
            "timestamp 0 cannot be written",
        ),
        ("partition", lambda last: F.when(last, -1).otherwise(0), "partition -1 does not exist"),
    ],
)
def test_a_value_that_would_be_written_as_another_is_refused(
    runs: BatchRuns, name: str, column: Callable[[Any], Any], said: str, commit: Commit
) -> None:
    with pytest.raises(RecordRefusedError, match=rf"{runs.output}: record \d+ of \d+: {said}"):
        runs.run(lambda df: df.select("shard", "value", column(F.col("offset") == 4).alias(name)), commit)
    assert_untouched(runs)


@pytest.mark.slow
def test_records_that_are_gone_while_they_are_read_end_the_run_in_time(
    runs: BatchRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark waits 120 s for a record that is not there, and tries four times."""
    monkeypatch.setattr(source, "_POLL_MS", 3_000)

    def transform(df: DataFrame) -> DataFrame:
        runs.recreate(2)
        return df.select("shard", "key", "value")

    began = time.monotonic()
    with pytest.raises(OffsetGapError, match="the topic was deleted and created anew"):
        runs.run(transform)
    assert time.monotonic() - began < 240
    assert runs.records() == []
