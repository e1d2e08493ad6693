"""write_stream: the short way to start a query, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from eos.errors import UsageError
from eos.spark.source import read_stream
from eos.spark.stream.query import StreamRun, StreamWriter, write_stream
from tests.support.observer import read_committed
from tests.support.stream_copy import SHARDS, Copy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from eos.settings import Settings

pytestmark = pytest.mark.broker


@pytest.fixture
def copy(spark: SparkSession, settled: Callable[..., Settings], bootstrap: str, tmp_path: Path) -> Copy:
    made = Copy(spark, settled(), bootstrap, tmp_path)
    made.load(30)
    return made


def records(copy: Copy) -> DataFrame:
    read = read_stream(copy.spark, copy.settings, [copy.source], checkpoint=str(copy.checkpoint))
    return read.select("key", "value", "headers", "timestamp")


def writer(copy: Copy) -> StreamWriter:
    return write_stream(
        records(copy),
        copy.settings,
        name=copy.name,
        inputs=[copy.source],
        outputs=[copy.output],
        shards=SHARDS,
    )


def test_each_start_goes_on_where_the_one_before_ended(copy: Copy) -> None:
    written = []
    for first in (0, 30):
        copy.load(first, 30)  # none for the first start, which finds what is there
        run = writer(copy).start(str(copy.checkpoint), available_now=True)
        run.wait()
        assert run.query.name == copy.name
        assert run.sink.lastProgress is not None
        written.append(run.sink.lastProgress["sink"]["numOutputRows"])
    assert written == [30, 30]
    copy.expect_exactly_once()


def test_a_frame_that_is_no_stream_is_refused(copy: Copy) -> None:
    with pytest.raises(UsageError, match=r"no stream.*ExactlyOnceBatch"):
        write_stream(copy.spark.range(3), copy.settings, name=copy.name, outputs=[copy.output])


def test_a_query_ends_or_goes_on_so_often(copy: Copy) -> None:
    with pytest.raises(UsageError, match="Fix: one of them"):
        writer(copy).start(str(copy.checkpoint), available_now=True, processing_time="1 second")


def test_a_query_in_real_time_mode_writes_nothing(copy: Copy) -> None:
    """Spark refuses it: its tasks would hand rows on while the batch still runs."""
    sink = writer(copy).sink
    started = records(copy).writeStream.foreachBatch(sink).outputMode("update")
    started = started.trigger(realTime="5 minutes")  # type: ignore[call-overload] # PySpark's own stub lacks it
    with pytest.raises(Exception, match=r"(?i)real.?time"):
        started.option("checkpointLocation", str(copy.checkpoint)).start().awaitTermination(60)
    assert sink.lastProgress is None
    assert read_committed(copy.bootstrap, copy.output) == []
    assert copy.next_batches() == []


def test_a_refusal_that_a_foreach_batch_function_catches_is_raised_by_wait(copy: Copy) -> None:
    """Spark counts the batch as done, and would end as if all were written."""
    sink = copy.sink()

    def swallowing(frame: DataFrame, batch: int) -> None:
        with suppress(UsageError):
            sink(frame.selectExpr("value AS wrong"), batch)

    query = (
        records(copy)
        .writeStream.foreachBatch(swallowing)
        .option("checkpointLocation", str(copy.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(UsageError):
        StreamRun(query, sink).wait()
    assert read_committed(copy.bootstrap, copy.output) == []
