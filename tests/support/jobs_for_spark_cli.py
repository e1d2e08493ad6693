"""Spark jobs that tests give to `eos spark run` and submit as a script; their topics come from ``TEST_INPUT``."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pydantic import BaseModel
from pyspark.sql import DataFrame

from eos.spark.jobs import SparkJob, SparkRun, StreamJob
from eos.spark.submitted import main
from eos.spark.transform import FrameTransform
from tests.support.exactly_once import Output, SeenRecord

INPUT = os.environ.get("TEST_INPUT", "test-input")
COPIES = f"{INPUT}.copies"
_SECONDS_PER_TASK = float(os.environ.get("TEST_SECONDS_PER_TASK", "0"))


class Suffix(BaseModel):
    """Settings of ``suffixed``."""

    suffix: str


def expected(record: SeenRecord) -> Iterable[Output]:
    """What ``copying`` makes of a record, for the outside observer."""
    return [(COPIES, record.key, record.value)]


def _copied(run: SparkRun) -> FrameTransform:
    def copy(frame: DataFrame) -> DataFrame:
        kept = frame.select("shard", "key", "value")
        return kept.mapInArrow(_slowly, kept.schema) if _SECONDS_PER_TASK else kept

    return copy


def _slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    time.sleep(_SECONDS_PER_TASK)
    yield from batches


def _refusing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for value in batch.column("value").to_pylist():
            int(value)
        yield batch


def _refused(frame: DataFrame) -> DataFrame:
    kept = frame.select("shard", "key", "value")
    return kept.mapInArrow(_refusing, kept.schema)


def _exiting(frame: DataFrame) -> DataFrame:
    sys.exit(0)


def _suffixed(run: SparkRun) -> FrameTransform:
    return lambda frame: frame.selectExpr(
        "shard", "key", f"concat(cast(value AS STRING), '{run.settings.suffix}') AS value"
    )


copying = SparkJob(name="copying", inputs=[INPUT], outputs=[COPIES], transform_factory=_copied)
refusing = SparkJob(name="refusing", inputs=[INPUT], outputs=[COPIES], transform=_refused)
exiting = SparkJob(name="exiting", inputs=[INPUT], outputs=[COPIES], transform=_exiting)
suffixed = SparkJob(
    name="suffixed",
    inputs=[INPUT],
    outputs=[COPIES],
    transform_factory=_suffixed,
    settings=Suffix,
    commit="batch",
)
streaming = StreamJob(
    name="streaming",
    inputs=[INPUT],
    outputs=[COPIES],
    transform=lambda frame: frame.select("key", "value"),
)

if __name__ == "__main__":
    main(streaming if os.environ.get("TEST_STREAM") else copying)
