"""Accidents of a batch on a standalone cluster: executors, workers and drivers are killed, tasks get copies.

The driver is a process of its own, started by spark-submit. Every outcome is the outside observer's.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from eos.local import LocalSpark, spark_launch
from tests.support import observer
from tests.support.batch_driver import kill_driver, submitted
from tests.support.observer import PlainRecord
from tests.support.patience import PATIENCE_S
from tests.support.processes import Child
from tests.support.spark_faults import LONG_TRANSACTIONS, SMALL_BATCHES, copied

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

_PARTITIONS = 4
_RECORDS = 300  # of each partition
_AFTER = 200  # of them, a task stalls
_BODY = b"." * 1000  # so that buffers on the way pass on what comes before the stall
_WAIT_S = 240.0  # most of it is the start of JVMs on a loaded machine
# One core each: an executor that is late, or gone, would leave the others' tasks behind one that stalls. Behind the last one is none.
_LAST = _PARTITIONS - 1


@pytest.fixture(scope="module")
def whole_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSpark]:
    """Two workers on hosts of different names: Spark copies a slow task to another host only."""
    start_worker = spark_launch.SparkLaunch.start_worker

    def on_a_host_of_its_own(self: spark_launch.SparkLaunch, number: int, memory_mb: int) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(spark_launch, "HOST", "127.0.0.1" if number == 1 else "localhost")
            return start_worker(self, number, memory_mb)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spark_launch.SparkLaunch, "start_worker", on_a_host_of_its_own)
        with LocalSpark(tmp_path_factory.mktemp("spark")) as cluster:
            yield cluster


@pytest.fixture
def cluster(whole_cluster: LocalSpark) -> LocalSpark:
    """With both workers, whatever the test before did to them."""
    return whole_cluster.start()


class Run:
    """A copy of a topic by runs on the cluster, and how it comes out."""

    def __init__(self, bootstrap: str, cluster: LocalSpark, jars: list[Path], directory: Path) -> None:
        self.bootstrap, self.cluster, self.jars = bootstrap, cluster, jars
        self.name = observer.unique("copy")
        self.source, self.output = observer.unique("in"), observer.unique("out")
        self.flag = directory / "flag"
        self.partitions = _PARTITIONS

    def load(self, partitions: int = _PARTITIONS, records: int = _RECORDS, body: bytes = _BODY) -> None:
        self.partitions = partitions
        observer.create_topics(self.bootstrap, {self.source: partitions, self.output: 2})
        rows = (
            PlainRecord(b"%d-%d" % (p, i) + body, b"k%d" % (i % 7), p)
            for i in range(records)
            for p in range(partitions)
        )
        observer.produce_plain(self.bootstrap, self.source, rows, timeout_s=PATIENCE_S)

    def driver(
        self, conf: dict[str, str] | None = None, settings: dict[str, Any] | None = None, **arguments: Any
    ) -> AbstractContextManager[Child]:
        """`spark-submit` of a run on the cluster."""
        always = {"kafka.bootstrap_servers": self.bootstrap, "input.start": "earliest"}
        return submitted(
            self.cluster.master_url,
            self.jars,
            conf=SMALL_BATCHES | (conf or {}),
            settings=always | LONG_TRANSACTIONS | (settings or {}),
            name=self.name,
            source=self.source,
            output=self.output,
            flag=str(self.flag),
            **arguments,
        )

    def committed(self) -> list[int]:
        partitions = [(self.source, p) for p in range(self.partitions)]
        found = observer.committed_offsets(self.bootstrap, self.name, partitions)
        return [found[one][0] or 0 for one in partitions]

    def is_open(self) -> bool:
        """Whether the output holds records of a transaction that has not ended."""
        high = {p: end for p, (_, end) in observer.watermarks(self.bootstrap, self.output).items()}
        return high != observer.lso(self.bootstrap, self.output)

    def wait_for_the_others(self, child: Child, stalled: int) -> int:
        """Wait until that shard's first try stalls in its open transaction, and all others are committed.

        Returns the process id of the stalled task.
        """
        told = Path(f"{self.flag}.{stalled}.0")
        others = [0 if p == stalled else _RECORDS for p in range(_PARTITIONS)]
        deadline = time.monotonic() + _WAIT_S
        while not (told.exists() and self.committed() == others and self.is_open()):
            assert child.alive
            assert time.monotonic() < deadline, (told.exists(), self.committed(), self.is_open())
            time.sleep(0.1)
        return int(told.read_text())

    def executor_of(self, pid: int) -> int:
        """The executor that a task's Python process belongs to."""
        above: set[int] = {parent.pid for parent in psutil.Process(pid).parents()}
        (executor,) = set(self.cluster.executors()) & above
        return executor

    def expect_exactly_once(self, records: int) -> None:
        outcome = observer.assert_exactly_once(
            self.bootstrap,
            self.name,
            [self.source],
            [self.output],
            lambda record: copied(self.output, record),
            timeout_s=240,
        )
        assert outcome.processed == outcome.produced == records


@pytest.fixture
def run(bootstrap: str, cluster: LocalSpark, connector_jars: list[Path], tmp_path: Path) -> Run:
    return Run(bootstrap, cluster, connector_jars, tmp_path)


def test_executor_killed_with_its_transaction_open_is_replaced_and_the_run_is_exact(run: Run) -> None:
    run.load()
    with run.driver(stalls=[(_LAST, ["go"])], after=_AFTER) as child:
        task = run.wait_for_the_others(child, stalled=_LAST)
        run.cluster.kill_executor(run.executor_of(task))
        shown = child.wait_line("^(done|failed)", PATIENCE_S)
        assert child.wait(PATIENCE_S) == 0
    assert shown == "done committed=4"
    assert not run.is_open()
    run.expect_exactly_once(_PARTITIONS * _RECORDS)


@pytest.mark.slow
def test_driver_killed_between_partition_commits_and_the_next_run_does_only_the_rest(run: Run) -> None:
    run.load()
    with run.driver(stalls=[(_LAST, ["go"])], after=_AFTER) as child:
        run.wait_for_the_others(child, stalled=_LAST)
        kill_driver(child)
    before = observer.read_committed(run.bootstrap, run.output, settled=False)
    assert run.committed() == [_RECORDS] * 3 + [0]
    with run.driver() as child:
        assert child.wait(PATIENCE_S) == 0
        assert [line for line in child.lines if line.startswith(("ranges", "done"))] == [
            "ranges 1",
            "done committed=1",
        ]
    run.expect_exactly_once(_PARTITIONS * _RECORDS)
    # What was committed before stands as it was.
    after = observer.read_committed(run.bootstrap, run.output)
    assert {(one.partition, one.offset) for one in before} < {(one.partition, one.offset) for one in after}


@pytest.mark.slow
def test_worker_killed_with_its_executor_and_the_other_worker_ends_the_run(run: Run) -> None:
    run.load()
    with run.driver(stalls=[(_LAST, ["go"])], after=_AFTER) as child:
        executor = run.executor_of(run.wait_for_the_others(child, stalled=_LAST))
        (worker,) = {parent.pid for parent in psutil.Process(executor).parents()} & set(run.cluster.workers)
        run.cluster.kill_worker(worker)
        shown = child.wait_line("^(done|failed)", PATIENCE_S)
        assert child.wait(PATIENCE_S) == 0
    assert shown == "done committed=4"
    assert len(run.cluster.workers) == 1
    run.expect_exactly_once(_PARTITIONS * _RECORDS)


@pytest.mark.slow
def test_slow_task_is_fenced_by_its_speculative_copy_and_waits_for_it(run: Run) -> None:
    """The slow one goes on when the copy is in its transaction, which is then slow in turn: nobody fights back."""
    run.load()
    speculation = {
        # A copy needs the other host, so the run waits for both executors.
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{_WAIT_S:.0f}s",
        "spark.speculation": "true",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "1s",
    }
    with run.driver(speculation, stalls=[(1, ["1.1", 4.0])], after=_AFTER) as child:
        shown = child.wait_line("^(done|failed)", PATIENCE_S)
        assert child.wait(PATIENCE_S) == 0
    tries = sorted(path.name for path in run.flag.parent.glob("flag.1.*"))
    assert tries == ["flag.1.0", "flag.1.1"]  # one copy, and no third try
    # Whichever of the two Spark hears of first: the copy has committed, or the slow one has seen that.
    states = {state: int(count) for state, count in (one.split("=") for one in shown.split()[1:])}
    assert set(states) <= {"committed", "skipped"}
    assert sum(states.values()) == _PARTITIONS
    run.expect_exactly_once(_PARTITIONS * _RECORDS)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_million_records_with_executors_killed_at_random_are_exact(run: Run) -> None:
    partitions, records = 8, 125_000
    seed = int(os.environ.get("TEST_SEED", "20260801"))
    print(f"TEST_SEED={seed}")  # noqa: T201 - to have the same again
    chance = random.Random(seed)
    run.load(partitions, records, body=b"")
    conf = {
        "spark.task.maxFailures": "100",  # every kill counts as one
        "spark.sql.execution.arrow.maxRecordsPerBatch": "5000",
        "spark.sql.execution.pandas.udf.buffer.size": "65536",
    }
    kills, runs, deadline = 0, 0, time.monotonic() + 600
    with run.driver(conf, settings={"spark.max_records_per_partition": 25_000}, until_done=True) as child:
        child.wait_line("^ranges", _WAIT_S)
        while child.alive:
            assert time.monotonic() < deadline, f"{kills} kills"
            time.sleep(chance.uniform(2.0, 5.0))
            # Spark gives an application up after ten lost executors without one task done in between.
            if kills < 8 and (alive := run.cluster.executors()):
                run.cluster.kill_executor(chance.choice(alive))
                kills += 1
        assert child.wait(PATIENCE_S) == 0, child.lines
        runs = len([line for line in child.lines if line.startswith("done")])
    print(f"{kills} kills, {runs} runs")  # noqa: T201
    assert kills >= 2
    assert run.committed() == [records] * partitions
    run.expect_exactly_once(partitions * records)
