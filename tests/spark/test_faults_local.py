"""Accidents of a batch on this machine: expiry, zombies, input that is not there yet or no longer, many partitions.

Every outcome is the outside observer's: read_committed records and committed offsets, per input partition.
"""

from __future__ import annotations

import contextlib
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from eos.base.deadline import Deadline
from eos.errors import OffsetGapError, TransactionExpiredError
from eos.events import ProducerOpened
from eos.spark.batch.batch import BatchResult
from eos.spark.write.writer import ShardState
from tests.support import observer
from tests.support.batch_driver import kill_driver, submitted
from tests.support.batch_input import BatchRuns
from tests.support.observer import PlainRecord
from tests.support.patience import PATIENCE_S
from tests.support.spark_faults import LONG_TRANSACTIONS, SMALL_BATCHES, Copy, copied, make_sleepy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.usefixtures("small_batches")]

MASTER = "local[2,4]"
ROWS_PER_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
RECORDS = 200  # of each partition, where it does not matter


def filled(spark: SparkSession, bootstrap: str, partitions: int) -> BatchRuns:
    runs = BatchRuns(spark, bootstrap, partitions, overrides=dict(LONG_TRANSACTIONS))
    runs.fill(partitions * RECORDS)
    return runs


def seen_exactly_once(runs: BatchRuns) -> observer.Comparison:
    return runs.assert_exactly_once(lambda record: copied(runs.output, record))


def expect_exactly_once(runs: BatchRuns, records: int) -> None:
    outcome = seen_exactly_once(runs)
    assert outcome.processed == outcome.produced == records


def is_open(runs: BatchRuns) -> bool:
    """Whether the output holds records of a transaction that has not ended."""
    high = {p: end for p, (_, end) in observer.watermarks(runs.bootstrap, runs.output).items()}
    return high != observer.lso(runs.bootstrap, runs.output)


# --- a transaction that outlives its timeout ---------------------------------------------------------------


@pytest.mark.slow
def test_batch_that_outlives_the_transactions_timeout_says_by_how_much_to_split_and_then_passes(
    spark: SparkSession, bootstrap: str
) -> None:
    """60 records of 200 ms each, in transactions of at most 8 s: room for what a busy machine adds."""
    runs = BatchRuns(spark, bootstrap, 1, overrides={"transaction.timeout_ms": 8000})
    runs.fill(60)
    spark.conf.set(ROWS_PER_BATCH, "1")  # a slow row keeps the writer waiting inside its transaction
    slow = Copy(slow_s=0.2)
    with pytest.raises(TransactionExpiredError) as expired:
        runs.run(slow)
    said = str(expired.value)
    assert re.search(r"open for \d+ s and may live 8 s \(transaction\.timeout_ms\); \d+ records", said)
    assert "it was of up to 60 offsets" in said
    assert runs.records() == []
    assert runs.committed() == [0]

    limit = re.search(r"spark\.max_records_per_partition = (\d+) or less", said)
    assert limit is not None
    runs.overrides["spark.max_records_per_partition"] = int(limit[1])
    longest = 0.0
    for _ in range(60 // int(limit[1]) + 1):
        longest = max([longest, *(one.seconds for one in runs.run(slow).shards)])
    assert longest > int(limit[1]) / 2 * slow.slow_s  # these transactions were slow, too
    assert runs.committed() == [60]
    expect_exactly_once(runs, 60)


# --- zombies -----------------------------------------------------------------------------------------------


def test_task_that_stood_still_while_another_run_committed_is_fenced_and_skips(
    spark: SparkSession, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP of a Python worker in its transaction, a second run, SIGCONT: the first run ends, nothing twice."""
    runs = filled(spark, bootstrap, 2)
    flag = tmp_path / "flag"
    results: list[BatchResult] = []
    first = threading.Thread(target=lambda: results.append(runs.run(Copy())), daemon=True)
    try:
        with monkeypatch.context() as patch:
            make_sleepy(patch, flag, shard=0)
            first.start()
            zombie = asleep(runs, flag, [0, RECORDS])
        zombie.suspend()
        second = runs.run(Copy())
        assert [(one.partition.number, one.start) for one in second.plan] == [(0, 0)]
        assert second.count(ShardState.COMMITTED) == 1
        expect_exactly_once(runs, 2 * RECORDS)  # while the zombie stands still
    finally:
        flag.with_name("flag.go").touch()
        resume(flag)
        first.join(PATIENCE_S)
    assert not first.is_alive()
    assert [one.state for one in results[0].shards] == [ShardState.SKIPPED, ShardState.COMMITTED]
    expect_exactly_once(runs, 2 * RECORDS)


@pytest.mark.slow
def test_zombie_of_a_killed_run_that_wakes_up_with_all_its_rows_cannot_commit(
    spark: SparkSession, bootstrap: str, connector_jars: list[Path], tmp_path: Path
) -> None:
    """Driver and Java are dead; the Python worker lives on, with the rest of its shard in its socket."""
    runs = filled(spark, bootstrap, 2)
    flag = tmp_path / "flag"
    with submitted(
        MASTER,
        connector_jars,
        conf=SMALL_BATCHES,
        settings={"kafka.bootstrap_servers": bootstrap, "input.start": "earliest"} | LONG_TRANSACTIONS,
        name=runs.name,
        source=runs.input,
        output=runs.output,
        flag=str(flag),
        sleepy=1,
    ) as child:
        zombie = asleep(runs, flag, [RECORDS, 0])
        kill_driver(child)
    try:
        assert zombie.is_running()
        second = runs.run(Copy())
        assert [(one.partition.number, one.start) for one in second.plan] == [(1, 0)]
        assert second.count(ShardState.COMMITTED) == 1
        expect_exactly_once(runs, 2 * RECORDS)
        flag.with_name("flag.go").touch()
        until(flag.with_name("flag.outcome").exists)
        zombie.wait(PATIENCE_S)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            zombie.kill()
    # It had everything that a commit needs, tried, was fenced, and found its work done.
    assert flag.with_name("flag.outcome").read_text() == ShardState.SKIPPED
    assert not is_open(runs)
    expect_exactly_once(runs, 2 * RECORDS)


def asleep(runs: BatchRuns, flag: Path, committed: list[int]) -> psutil.Process:
    """The worker that sleeps in its open transaction, when the offsets of the others are committed."""
    told = flag.with_name("flag.asleep")
    until(lambda: told.exists() and is_open(runs) and [one or 0 for one in runs.committed()] == committed)
    return psutil.Process(int(told.read_text()))


def resume(flag: Path) -> None:
    """SIGCONT to the worker that told its id, if it lives."""
    with contextlib.suppress(FileNotFoundError, psutil.NoSuchProcess):
        psutil.Process(int(flag.with_name("flag.asleep").read_text())).send_signal(signal.SIGCONT)


# --- input that is not there yet, or no longer -------------------------------------------------------------


@pytest.mark.parametrize("commits", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_range_ends_before_a_foreign_open_transaction_and_the_next_run_reads_the_rest(
    spark: SparkSession, bootstrap: str, commits: bool
) -> None:
    runs = filled(spark, bootstrap, 2)
    foreign = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": observer.unique("foreign"), "log_level": 0}
    )
    foreign.init_transactions(PATIENCE_S)
    foreign.begin_transaction()
    for i in range(5):
        foreign.produce(runs.input, b"foreign%d" % i, b"f", 0)
    assert foreign.flush(PATIENCE_S) == 0
    behind = [PlainRecord(b"behind%d" % i, b"b", 0) for i in range(5)]
    observer.produce_plain(bootstrap, runs.input, behind)
    assert observer.watermarks(bootstrap, runs.input)[0] == (0, RECORDS + 10)

    first = runs.run(Copy())
    assert [one.end for one in first.plan] == [RECORDS, RECORDS]
    assert runs.committed() == [RECORDS, RECORDS]
    assert len(runs.records()) == 2 * RECORDS
    assert runs.run(Copy()).shards == ()  # as long as it is open

    (foreign.commit_transaction if commits else foreign.abort_transaction)(PATIENCE_S)
    until(lambda: observer.lso(bootstrap, runs.input)[0] == RECORDS + 11)  # with its marker
    rest = runs.run(Copy())
    assert [(one.start, one.end) for one in rest.plan] == [(RECORDS, RECORDS + 11)]
    expect_exactly_once(runs, 2 * RECORDS + (10 if commits else 5))


def test_input_deleted_before_it_is_read_is_a_gap_and_nothing_of_it_is_committed(
    spark: SparkSession, bootstrap: str
) -> None:
    # Spark stops the other partition's task, perhaps inside its transaction, which then ends with its timeout.
    runs = BatchRuns(spark, bootstrap, 2, overrides={"transaction.timeout_ms": 15_000})
    runs.fill(2 * RECORDS)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def too_late(df: DataFrame) -> DataFrame:
        """Called when the run has seen that its input is there."""
        for deleted in admin.delete_records([TopicPartition(runs.input, 0, 50)]).values():
            deleted.result(PATIENCE_S)
        return Copy()(df)

    with pytest.raises(OffsetGapError, match=r"the committed offset is 0, and the log begins at 50"):
        runs.run(too_late)

    def seen_at_rest() -> bool:
        """The other task may outlive the run for a while, and commit between two looks, or within one; each other look must be exact."""
        committed = runs.committed()
        assert committed[0] == 0
        assert committed[1] in {0, RECORDS}  # the other partition is a transaction of its own
        try:
            outcome = seen_exactly_once(runs)
        except AssertionError:
            if runs.committed() == committed:
                raise
            return False  # it committed within the look, which reads outputs before offsets
        return outcome.processed == outcome.produced == committed[1]

    assert Deadline(PATIENCE_S).wait_for(seen_at_rest)
    with pytest.raises(OffsetGapError, match=r"the committed offset is 0, and the log begins at 50"):
        runs.run(Copy())


# --- many partitions ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_five_hundred_partitions_of_two_hundred_records_each_come_to_an_end(
    spark: SparkSession, bootstrap: str
) -> None:
    """60 s on two idle cores."""
    partitions = 500
    runs = BatchRuns(spark, bootstrap, partitions, outputs=0)
    runs.topics.append(observer.unique("out"))
    observer.create_topics(bootstrap, {runs.output: 4})
    runs.fill(partitions * RECORDS)
    for name in SMALL_BATCHES:
        spark.conf.unset(name)
    result = runs.run(Copy())
    opened = sum(one.seconds for one in runs.told if isinstance(one, ProducerOpened)) / partitions
    written = sum(one.seconds for one in result.shards) / partitions
    print(f"opening {1000 * opened:.0f} ms, writing {1000 * written:.0f} ms per partition")  # noqa: T201
    print(f"{partitions} partitions of {RECORDS} records in {result.seconds:.1f} s")  # noqa: T201
    assert result.count(ShardState.COMMITTED) == partitions
    expect_exactly_once(runs, partitions * RECORDS)


def until(condition: Callable[[], bool]) -> None:
    """Wait for it, with a deadline."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
