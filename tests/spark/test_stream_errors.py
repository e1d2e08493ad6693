"""What a failed query says: of the transform's errors no record, of a cluster that is away 5, of a stop a line."""

from __future__ import annotations

import shutil
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from eos.base.deadline import Deadline
from eos.errors import ConfigError, EosError, FencedError, UnavailableError, UnclassifiedError, UsageError
from eos.events import Event, TransactionCommitted
from eos.exits import ExitCode, exit_code_of
from eos.spark.jobs import StreamJob
from eos.spark.running import start_stream
from eos.spark.session.checkpoint import Checkpoint
from eos.spark.source import read_stream
from eos.spark.stream.query import StreamRun
from tests.spark.conftest import Settled
from tests.support.observer import PlainRecord, produce_plain, read_committed
from tests.support.patience import PATIENCE_S
from tests.support.sink_faults import Accident, with_accident
from tests.support.stream_copy import SHARDS, Copy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.broker

QUOTED = "card-4711"
# No cluster answers Java's client in a millisecond.
AWAY = {"default.api.timeout.ms": 1, "request.timeout.ms": 1}


@pytest.fixture
def copy(spark: SparkSession, settled: Settled, bootstrap: str, tmp_path: Path) -> Copy:
    made = Copy(spark, settled(), bootstrap, tmp_path)
    produce_plain(bootstrap, made.source, [PlainRecord(QUOTED.encode(), b"k")] * 5)
    return made


def failure_of(copy: Copy, transform: Callable[[DataFrame], DataFrame]) -> EosError:
    job = StreamJob(name=copy.name, inputs=[copy.source], outputs=[copy.output], transform=transform)
    with pytest.raises(EosError) as caught:
        start_stream(
            job, copy.spark, copy.settings, checkpoint=str(copy.checkpoint), available_now=True
        ).wait()
    assert QUOTED not in "".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert read_committed(copy.bootstrap, copy.output) == []
    return caught.value


def test_a_row_that_cannot_be_computed_is_named_without_its_record(copy: Copy) -> None:
    text = F.col("value").cast("string")
    error = failure_of(
        copy, lambda df: df.select("key", F.to_number(text, F.lit("999")).cast("string").alias("value"))
    )
    assert exit_code_of(error) == ExitCode.CONFIGURATION
    assert "a row could not be computed in a task: INVALID_FORMAT.MISMATCH_INPUT" in str(error)


def test_a_query_that_spark_refuses_at_its_start_is_the_transforms_fault(copy: Copy) -> None:
    """It was an exception of Spark's, with a traceback, and exit code 1."""
    error = failure_of(copy, lambda df: df.groupBy("key").agg(F.count("*").cast("string").alias("value")))
    assert isinstance(error, UsageError)
    assert "Spark refuses what the transform asks for" in str(error)


def test_a_column_that_does_not_exist_is_the_transforms_fault_and_its_line_is_named(copy: Copy) -> None:
    error = failure_of(copy, lambda df: df.select("nosuch"))
    assert isinstance(error, UsageError)
    assert "UNRESOLVED_COLUMN" in str(error)
    assert f"its transform at {__file__}:" in str(error)


def test_an_exception_of_a_foreach_batch_function_is_named_without_its_text(copy: Copy) -> None:
    def raising(frame: DataFrame, batch: int) -> None:
        raise ValueError(f"{frame.first()}, {batch}")

    records = read_stream(copy.spark, copy.settings, [copy.source], checkpoint=str(copy.checkpoint))
    query = (
        records.writeStream.foreachBatch(raising)
        .option("checkpointLocation", str(copy.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(UsageError, match="the function for foreachBatch raised ValueError") as caught:
        StreamRun(query, copy.sink()).wait()
    assert QUOTED not in str(caught.value)


def test_a_cluster_that_is_away_at_the_first_plan_is_unavailable(copy: Copy, settled: Settled) -> None:
    copy.settings = settled(**{"spark.client": AWAY})
    error = failure_of(copy, lambda df: df.select("key", "value"))
    assert isinstance(error, UnavailableError)
    assert "did not answer Spark's Kafka client" in str(error)


def test_a_query_that_is_stopped_inside_of_its_sink_ends_in_order_and_in_short(
    copy: Copy, tmp_path: Path
) -> None:
    """Spark looked through the Java traceback of the cancelled job by a regular expression, which overflowed the stack."""
    flag = tmp_path / "flag"
    sink = with_accident(copy.sink(), Accident.PAUSED, *range(SHARDS), flag=str(flag))
    said: list[str] = []

    def writing(frame: DataFrame, batch: int) -> None:
        try:
            sink(frame.select("key", "value"), batch)
        except EosError:
            said.append(traceback.format_exc())
            raise

    records = read_stream(copy.spark, copy.settings, [copy.source], checkpoint=str(copy.checkpoint))
    query = (
        records.writeStream.foreachBatch(writing).option("checkpointLocation", str(copy.checkpoint)).start()
    )
    deadline = time.monotonic() + PATIENCE_S
    while not list(tmp_path.glob("flag.*")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    stopping = threading.Thread(target=query.stop, daemon=True)
    stopping.start()
    stopping.join(PATIENCE_S)
    Path(f"{flag}.go").touch()
    assert not stopping.is_alive()
    assert query.exception() is None
    assert len(said) == 1
    assert len(said[0]) < 3000
    assert type(sink.failure) is UnclassifiedError
    assert "was stopped" in str(sink.failure)


def test_a_query_that_is_stopped_while_its_sink_reads_the_checkpoint_ends_in_order(
    copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told that the checkpoint cannot be reached: Java closes a file under a thread that is interrupted."""
    sink, text = copy.sink(), Checkpoint.text
    begun, stopping = threading.Event(), threading.Event()

    def read(checkpoint: Checkpoint, name: str) -> str | None:
        jvm = copy.spark._jvm
        assert jvm is not None
        begun.set()
        assert stopping.wait(PATIENCE_S)
        jvm.java.lang.Thread.currentThread().interrupt()  # as a stop does, here for certain before the read
        return text(checkpoint, name)

    monkeypatch.setattr(Checkpoint, "text", read)
    records = read_stream(copy.spark, copy.settings, [copy.source], checkpoint=str(copy.checkpoint))
    query = (
        records.select("key", "value")
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(copy.checkpoint))
        .start()
    )
    assert begun.wait(PATIENCE_S)
    stop = threading.Thread(target=query.stop, daemon=True)
    stop.start()
    assert Deadline(PATIENCE_S).wait_for(lambda: not query.isActive)
    stopping.set()
    stop.join(PATIENCE_S)
    assert not stop.is_alive()
    assert query.exception() is None
    assert type(sink.failure) is UnclassifiedError
    assert "was stopped" in str(sink.failure)


@pytest.mark.parametrize("log", ["commits/0", "offsets/1"])
def test_a_checkpoint_that_another_driver_writes_too_is_another_owners(copy: Copy, log: str) -> None:
    """It was an error without a meaning, exit code 1, after which a supervisor starts the second driver again and again."""

    def another(event: Event) -> None:
        """The other driver is ahead: it has counted this batch as done, or planned the next one."""
        if isinstance(event, TransactionCommitted):
            file = copy.checkpoint / log
            file.parent.mkdir(exist_ok=True)
            file.write_text('v1\n{"nextBatchWatermarkMs":0}')

    copy.load(50)
    job = StreamJob(
        name=copy.name,
        inputs=[copy.source],
        outputs=[copy.output],
        transform=lambda df: df.select("key", "value", "headers", "timestamp"),
    )
    with pytest.raises(FencedError, match="another driver works with the query's checkpoint") as caught:
        start_stream(
            job,
            copy.spark,
            copy.settings,
            checkpoint=str(copy.checkpoint),
            available_now=True,
            max_offsets_per_batch=30,
            listener=another,
        ).wait()
    assert exit_code_of(caught.value) == ExitCode.FENCED
    assert len(read_committed(copy.bootstrap, copy.output)) <= 30


def _start_again(copy: Copy) -> None:
    """As `eos spark run` does."""
    job = StreamJob(
        name=copy.name,
        inputs=[copy.source],
        outputs=[copy.output],
        transform=lambda df: df.select("key", "value"),
    )
    start_stream(job, copy.spark, copy.settings, checkpoint=str(copy.checkpoint), available_now=True).wait()


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])


def _without_checksum(file: Path) -> None:
    _cut(file)
    _checksum_of(file).unlink(missing_ok=True)


def _emptied_without_checksum(file: Path) -> None:
    _empty(file)
    _checksum_of(file).unlink(missing_ok=True)


def _checksum_of(file: Path) -> Path:
    return file.parent / f".{file.name}.crc"


@pytest.mark.parametrize("damage", [_empty, _cut, _without_checksum, _emptied_without_checksum])
def test_a_file_of_the_checkpoint_that_is_cut_off_is_named_and_whether_it_may_be_removed(
    copy: Copy, damage: Callable[[Path], None]
) -> None:
    """It was an error without a meaning, or one that did not say which file."""
    copy.run()
    copy.load(3)
    copy.run()
    written = read_committed(copy.bootstrap, copy.output)
    for name in ("metadata", "offsets/1", "commits/1"):
        file = copy.checkpoint / name
        before = {one: one.read_bytes() for one in (file, _checksum_of(file))}
        damage(file)
        with pytest.raises(ConfigError, match="a file of the query's checkpoint") as caught:
            _start_again(copy)
        assert f"{copy.checkpoint}/{name} " in str(caught.value)
        assert (f"remove {name}, and " in str(caught.value)) == (name == "commits/1")
        if name == "commits/1":  # as it says
            file.unlink()
            _checksum_of(file).unlink(missing_ok=True)
        else:
            for one, content in before.items():
                one.write_bytes(content)
    copy.run()
    assert read_committed(copy.bootstrap, copy.output) == written


def test_a_source_s_beginning_that_is_cut_off_is_named_where_no_batch_is_planned(copy: Copy) -> None:
    copy.run()
    for folder in ("offsets", "commits"):
        shutil.rmtree(copy.checkpoint / folder)
    _cut(copy.checkpoint / "sources/0/0")
    with pytest.raises(ConfigError, match="a file of the query's checkpoint") as caught:
        _start_again(copy)
    assert f"{copy.checkpoint}/sources/0/0 " in str(caught.value)
    assert "remove" not in str(caught.value)


@pytest.mark.parametrize("gone", [["offsets/0", "offsets/1"], ["offsets/0", "commits/1"]])
def test_files_of_the_checkpoint_that_lack_others_are_the_checkpoints_fault(
    copy: Copy, gone: list[str]
) -> None:
    """Spark says "assertion failed", or that the batch before is not found."""
    copy.run()
    copy.load(3)
    copy.run()
    written = read_committed(copy.bootstrap, copy.output)
    for name in gone:
        (copy.checkpoint / name).unlink()
    with pytest.raises(ConfigError, match="a file of the query's checkpoint"):
        _start_again(copy)
    assert read_committed(copy.bootstrap, copy.output) == written
