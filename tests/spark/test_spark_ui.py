"""What Spark's UI says of a run: whose job it is and which step, without taking away the name that a caller gave it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from eos.spark.write import executor_check
from tests.support.batch_input import BatchRuns
from tests.support.stream_copy import SHARDS, Copy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from eos.settings import Settings

pytestmark = pytest.mark.broker


@pytest.fixture
def jobs(spark: SparkSession) -> Callable[[str], list[tuple[str, str]]]:
    """(group, description) of every job of a name, in their order."""

    def shown(name: str) -> list[tuple[str, str]]:
        context: Any = spark.sparkContext
        found = context._jsc.sc().statusStore().jobsList(None)
        listed = [found.apply(place) for place in range(found.size())]
        named = [(one.jobId(), one.jobGroup(), one.description()) for one in listed]
        return [
            (group.get() if group.isDefined() else "", description.get())
            for _, group, description in sorted(named, key=lambda one: one[0])
            if description.isDefined() and name in description.get()
        ]

    return shown


@pytest.fixture
def context(spark: SparkSession) -> Iterator[Any]:
    context = spark.sparkContext
    yield context
    for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
        context.setLocalProperty(name, None)  # type: ignore[arg-type] # None takes it away


def copied(df: DataFrame) -> DataFrame:
    return df.select("shard", "key", "value")


def test_each_step_of_a_batch_is_named(
    spark: SparkSession,
    bootstrap: str,
    jobs: Callable[[str], list[tuple[str, str]]],
    monkeypatch: pytest.MonkeyPatch,
    context: Any,
) -> None:
    monkeypatch.setattr(executor_check, "_fit", [])
    runs = BatchRuns(spark, bootstrap, partitions=2)
    for _ in range(2):
        runs.fill(10)
        runs.run(copied)
    name = runs.name
    assert jobs(name) == [
        (f"eos {name}", f"eos {name}: look what an executor has"),
        (f"eos run 1 of {name}", f"eos run 1 of {name}: write 2 partitions, in place, 2 tasks"),
        (f"eos run 2 of {name}", f"eos run 2 of {name}: write 2 partitions, in place, 2 tasks"),
    ]
    assert context.getLocalProperty("spark.jobGroup.id") is None
    assert context.getLocalProperty("spark.job.description") is None


def test_the_sql_tab_counts_records_and_transactions(spark: SparkSession, bootstrap: str) -> None:
    runs = BatchRuns(spark, bootstrap, partitions=2)
    runs.fill(10)
    runs.run(copied)
    store: Any = spark._jsparkSession.sharedState().statusStore()
    listed = store.executionsList()
    found = [listed.apply(place) for place in range(listed.size())]
    [run] = [one for one in found if f"run 1 of {runs.name}: write" in one.description()]
    shown = store.executionMetrics(run.executionId())
    nodes = store.planGraph(run.executionId()).allNodes()
    rows = {}
    for node in map(nodes.apply, range(nodes.size())):
        for metric in map(node.metrics().apply, range(node.metrics().size())):
            if metric.name() == "number of output rows":
                rows[node.name()] = shown.get(metric.accumulatorId()).get()
    assert rows == {"MapInArrow": "2", "Scan ExistingRDD": str(10 + 2 * 2)}


def test_the_group_of_a_caller_stays_and_its_description_comes_back(
    spark: SparkSession, bootstrap: str, jobs: Callable[[str], list[tuple[str, str]]], context: Any
) -> None:
    """Whoever has set it may cancel by it."""
    runs = BatchRuns(spark, bootstrap, partitions=2)
    runs.fill(10)
    context.setJobGroup("mine", "my notebook")
    runs.run(copied)
    assert {group for group, _ in jobs(runs.name)} == {"mine"}
    assert context.getLocalProperty("spark.jobGroup.id") == "mine"
    assert context.getLocalProperty("spark.job.description") == "my notebook"


def test_a_query_says_how_far_it_is_and_keeps_the_group_that_stops_it(
    spark: SparkSession,
    settled: Callable[..., Settings],
    bootstrap: str,
    tmp_path: Path,
    jobs: Callable[[str], list[tuple[str, str]]],
) -> None:
    copy = Copy(spark, settled(), bootstrap, tmp_path)
    copy.load(30)
    sink = copy.sink()
    before = sink.lastProgress
    copy.run(sink)
    progress = sink.lastProgress
    assert before is None
    assert progress is not None
    assert (progress["name"], progress["batchId"]) == (copy.name, 0)
    written = progress["sink"]["transactions"]
    assert progress["sink"]["numOutputRows"] == 30
    assert (sum(written.values()), written["skipped"]) == (SHARDS, 0)
    [source] = progress["sources"]
    assert source["description"] == f"Kafka[{copy.source}]"
    assert sum(source["endOffset"][copy.source].values()) == 30
    assert set(progress["durationMs"]) == {"ledger", "input", "write", "triggerExecution"}
    shown = jobs(f"batch 0 of {copy.name}: write {SHARDS} shards, in place, {SHARDS} tasks")
    assert {group for group, _ in shown} == {progress["runId"]}
    copy.expect_exactly_once()
