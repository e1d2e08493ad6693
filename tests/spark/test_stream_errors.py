"""What a failed query says: of the transform's errors no record, of a cluster that is away 5, of a stop a line."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from eos.errors import EosError, UnavailableError, UnclassifiedError, UsageError
from eos.exits import ExitCode, exit_code_of
from eos.spark.source import read_stream
from eos.spark.stream_job import StreamJob, start_stream
from eos.spark.stream_writer import StreamRun
from tests.spark.conftest import Settled
from tests.support.observer import PlainRecord, produce_plain, read_committed
from tests.support.sink_faults import Accident, with_accident
from tests.support.stream_copy import SHARDS, Copy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.broker

QUOTED = "card-4711"
WAIT_S = 60.0
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
    deadline = time.monotonic() + WAIT_S
    while not Path(f"{flag}.0").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    stopping = threading.Thread(target=query.stop, daemon=True)
    stopping.start()
    stopping.join(WAIT_S)
    Path(f"{flag}.go").touch()
    assert not stopping.is_alive()
    assert query.exception() is None
    assert len(said) == 1
    assert len(said[0]) < 3000
    assert type(sink.failure) is UnclassifiedError
    assert "was stopped" in str(sink.failure)
