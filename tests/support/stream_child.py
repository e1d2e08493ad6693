"""A streaming query of its own process, for tests that kill it.

    python -m tests.support.stream_child <arguments of run as JSON>

Prints ``batch <n> done`` after each batch, and what the sink has refused.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eos.settings import Settings
from eos.spark.session.session import build_session
from eos.spark.source import read_stream
from eos.spark.stream import micro_batch
from eos.spark.stream import sink as sinks
from eos.spark.stream.log_driver import CommitLogDriver
from eos.spark.stream.log_rules import BatchPlan
from eos.spark.stream.sink import exactly_once_sink
from eos.spark.write.writer import ShardResult
from tests.support.settings import settings_of
from tests.support.sink_faults import Accident, with_accident

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PLANNED = "planned"


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


def wait_when_planned(batch: int, flag: str) -> None:
    """Before anything of a batch is written, ``<flag>`` exists; it goes on when ``<flag>.go`` does."""
    write = micro_batch.write_batch

    def later(log: CommitLogDriver, plan: BatchPlan, *others: Any, **more: Any) -> list[ShardResult]:
        if plan.batch == batch:
            Path(flag).touch()
            while not Path(f"{flag}.go").exists():
                time.sleep(0.05)
        return write(log, plan, *others, **more)

    setattr(sinks, "write_batch", later)  # noqa: B010 - the name is not the module's own


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
    accident: str = Accident.PAUSED,
    in_place: bool = True,
) -> None:
    """Copy until one shard of a batch has its accident; or until the batch is planned, where ``accident`` is ``planned``."""
    settings = settings_of(bootstrap, input__start="earliest", spark__twin_wait_ms=20_000)
    options = {
        "spark.driver.memory": "512m",
        "spark.python.daemon.module": "tests.support.spark_daemon",
    }
    spark = build_session("child", "local[2,4]", map(Path, jars), options)
    spark.sparkContext.setLogLevel("OFF")
    sink = exactly_once_sink(settings, name=name, outputs=[output], inputs=[source], shards=shards)
    if accident == PLANNED:
        wait_when_planned(pause_in, flag)
    else:
        with_accident(sink, Accident(accident), shards - 1, batch=pause_in, flag=flag, tries=9)

    def write(frame: DataFrame, batch: int) -> None:
        sink(frame if in_place else frame.repartition(2, "key"), batch)

    try:
        copying(spark, settings, source, write, checkpoint, per_batch).awaitTermination()
    finally:
        if sink.failure is not None:
            sys.stdout.write(f"{type(sink.failure).__name__}: {sink.failure}\n")


if __name__ == "__main__":
    run(**json.loads(sys.argv[1]))
