"""A streaming query of its own process, for tests that kill it.

    python -m tests.support.stream_child <arguments of run as JSON>

Prints ``batch <n> done`` after each batch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from eos.settings import Settings
from eos.spark.session import build_session
from eos.spark.source import read_stream
from eos.spark.stream import exactly_once_sink
from tests.support.settings import settings_of
from tests.support.sink_faults import Accident, with_accident

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def copying(
    spark: SparkSession,
    settings: Settings,
    source: str,
    sink: Callable[[DataFrame, int], None],
    checkpoint: str,
    per_batch: int,
) -> StreamingQuery:
    """A query that copies a topic, so many offsets per batch, until it has caught up."""

    def write(frame: DataFrame, batch: int) -> None:
        sink(frame, batch)
        sys.stdout.write(f"batch {batch} done\n")

    records = read_stream(spark, settings, [source], checkpoint=checkpoint, max_offsets_per_batch=per_batch)
    writer = records.select("key", "value", "headers", "timestamp").writeStream.foreachBatch(write)
    return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def run(
    *,
    bootstrap: str,
    jars: list[str],
    name: str,
    source: str,
    output: str,
    checkpoint: str,
    shards: int,
    per_batch: int,
    pause_in: int,
    flag: str,
) -> None:
    """Copy until one shard of a batch pauses with everything written."""
    settings = settings_of(bootstrap, input__start="earliest")
    options = {
        "spark.driver.memory": "512m",
        "spark.python.daemon.module": "tests.support.spark_daemon",
    }
    spark = build_session("child", "local[2,4]", map(Path, jars), options)
    spark.sparkContext.setLogLevel("OFF")
    sink = exactly_once_sink(settings, name=name, outputs=[output], inputs=[source], shards=shards)
    with_accident(sink, Accident.PAUSED, shards - 1, batch=pause_in, flag=flag, tries=9)
    copying(spark, settings, source, sink, checkpoint, per_batch).awaitTermination()


if __name__ == "__main__":
    run(**json.loads(sys.argv[1]))
