"""Several who want the same shard: twins, tasks, drivers. One commits, the others skip or say what happened."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa

from eos.base.deadline import Deadline
from eos.core.producer import ShardProducer
from eos.errors import FencedError, TransactionExpiredError, UsageError
from eos.offsets import Partition
from eos.shards import PartitionShard
from eos.spark.batch.batch import ExactlyOnceBatch
from eos.spark.batch.planning import plan_input
from eos.spark.batch.range_record import RangeRecord
from eos.spark.plan import InputPlan, OffsetRange
from eos.spark.write.output import OutputColumns
from eos.spark.write.writer import ShardState, ShardWriter
from tests.support import observer
from tests.support.batch_input import BatchRuns, values
from tests.support.patience import PATIENCE_S

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.broker

RUN, OTHER_RUN = "a1a1a1a1a1a1", "b2b2b2b2b2b2"


@pytest.fixture
def runs(spark: SparkSession, bootstrap: str) -> BatchRuns:
    made = BatchRuns(spark, bootstrap, partitions=4)
    made.fill(400)
    return made


@pytest.fixture
def alone(bootstrap: str) -> BatchRuns:
    """Ten records, planned, and no Spark: the writers are called by the test."""
    made = BatchRuns(None, bootstrap, partitions=1)  # type: ignore[arg-type] # not used
    made.fill(10)
    plan_input(made.settings, [made.input], app=made.name, commit="partition")
    return made


def copied(df: DataFrame) -> DataFrame:
    return df.select("shard", "key", "value")


def writer(runs: BatchRuns, run: str = RUN, task: int = 0, **overrides: Any) -> ShardWriter:
    runs.overrides = {name.replace("__", "."): value for name, value in overrides.items()}
    partition = Partition(runs.input, 0)
    plan = InputPlan(runs.name, (partition,), (OffsetRange(partition, 0, 10),), runs.name, "partition")
    done = RangeRecord(runs.settings, plan, run)
    return ShardWriter(runs.settings, done.in_task(0, task), OutputColumns((runs.output,), ("value",)))


def rows(*written: bytes) -> Iterator[pa.RecordBatch]:
    for value in written:
        yield pa.RecordBatch.from_pydict({"value": [value]})


def test_two_drivers_at_once_write_every_shard_once(runs: BatchRuns) -> None:
    """Both have planned the same ranges before either begins."""
    batches = [
        ExactlyOnceBatch(runs.spark, runs.settings, name=runs.name, inputs=[runs.input], outputs=runs.topics)
        for _ in range(2)
    ]
    plans = [batch.plan() for batch in batches]
    together = threading.Barrier(2)

    def run(number: int) -> Any:
        together.wait(PATIENCE_S)
        return batches[number].run(copied, plan=plans[number])

    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(run, range(2)))
    for shards in zip(*(result.shards for result in results), strict=True):
        assert sorted(str(shard.state) for shard in shards) == ["committed", "skipped"]
    assert runs.assert_exactly_once(lambda r: [(runs.output, r.key, r.value)]).processed == 400


def test_a_driver_with_an_old_plan_of_other_ranges_is_told_so(runs: BatchRuns) -> None:
    old = ExactlyOnceBatch(
        runs.spark, runs.settings, name=runs.name, inputs=[runs.input], outputs=runs.topics
    )
    plan = old.plan()
    runs.overrides = {"spark.max_records_per_partition": 30}
    runs.run(copied)
    with pytest.raises(FencedError, match=r"stands at offset 30, and this run's range is \[0, 100\)"):
        old.run(copied, plan=plan)
    assert runs.assert_exactly_once(lambda r: [(runs.output, r.key, r.value)]).processed == 120


def test_a_fenced_task_waits_for_its_twin_and_skips(alone: BatchRuns) -> None:
    def overtaken() -> Iterator[pa.RecordBatch]:
        yield from rows(b"mine")
        assert writer(alone).write(rows(b"the twin's")).state is ShardState.COMMITTED
        yield from rows(b"mine too")

    assert writer(alone).write(overtaken()).state is ShardState.SKIPPED
    assert (values(alone.records()), alone.committed()) == ([b"the twin's"], [10])


def test_a_task_that_comes_after_its_twin_skips(alone: BatchRuns) -> None:
    writer(alone).write(rows(b"first"))
    assert writer(alone).write(rows(b"second")).state is ShardState.SKIPPED
    assert writer(alone, OTHER_RUN, 5).write(rows(b"third")).state is ShardState.SKIPPED
    assert values(alone.records()) == [b"first"]


def test_a_fenced_task_whose_twin_does_not_commit_fails_so_that_it_is_tried_again(alone: BatchRuns) -> None:
    mine = writer(alone, spark__twin_wait_ms=500)
    shard = PartitionShard(alone.name, alone.name, Partition(alone.input, 0))

    def overtaken() -> Iterator[pa.RecordBatch]:
        yield from rows(b"mine")
        ShardProducer(alone.settings, shard).open()

    with pytest.raises(FencedError, match=r"has not committed in 0\.5 s"):
        mine.write(overtaken())
    assert writer(alone).write(rows(b"at last")).state is ShardState.COMMITTED
    assert values(alone.records()) == [b"at last"]


def test_a_shard_that_was_split_over_two_tasks_of_a_run_fails_loudly(alone: BatchRuns) -> None:
    """The second would find the offsets at the end, skip, and its rows would be lost."""
    writer(alone, RUN, 0).write(rows(b"one half"))
    with pytest.raises(UsageError, match="two tasks of one run"):
        writer(alone, RUN, 1).write(rows(b"the other"))


def test_a_transaction_that_takes_too_long_says_by_how_much_to_split(alone: BatchRuns) -> None:
    def slow() -> Iterator[pa.RecordBatch]:
        yield from rows(b"early")
        # A marker of its abort is behind the record.
        assert Deadline(PATIENCE_S).wait_for(lambda: observer.lso(alone.bootstrap, alone.output)[0] > 0)
        yield from rows(b"late")

    with pytest.raises(TransactionExpiredError, match=r"may live 6 s .*max_records_per_partition = [1-5] or"):
        writer(alone, transaction__timeout_ms=6_000).write(slow())
    assert alone.records() == []
    assert writer(alone).write(rows(b"in time")).state is ShardState.COMMITTED
    assert (values(alone.records()), alone.committed()) == ([b"in time"], [10])
