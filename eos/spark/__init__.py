"""Exactly-once batches and streams on Spark: output records and input offsets in one Kafka transaction.

Importing `eos` needs neither PySpark nor Java; the names of this package need both: ``pip install
'eos-kafka[spark]'``. They are imported when they are asked for: an executor's Python process starts with the writer
alone.

Read first: `jobs` (what a user declares), `running` (runs it), `submitted` (the script of spark-submit). `transform` applies a loop's
job; `source` reads the input, by a `plan` if it is a batch. The rooms: `batch`, `stream`, `analysis`, `write`, `session`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eos.base.lazy_names import homes_of as _homes_of
from eos.base.lazy_names import named as _named

if TYPE_CHECKING:
    from eos.spark.analysis.placement import Placement
    from eos.spark.batch.batch import BatchResult, ExactlyOnceBatch
    from eos.spark.jobs import SparkJob, SparkRun, StreamJob
    from eos.spark.plan import InputPlan, OffsetRange
    from eos.spark.running import RunOptions, run, run_job, start_stream
    from eos.spark.session.checks import check_session
    from eos.spark.session.session import build_session
    from eos.spark.source import read_snapshot, read_stream
    from eos.spark.stream.log_rules import LedgerChangedError, LedgerError
    from eos.spark.stream.query import StreamRun, StreamWriter, write_stream
    from eos.spark.stream.sink import ExactlyOnceSink, exactly_once_sink
    from eos.spark.submitted import main
    from eos.spark.transform import records_transform
    from eos.spark.write.writer import ShardResult, ShardState

_HOMES = _homes_of(
    {
        "analysis.placement": "Placement",
        "batch.batch": "BatchResult ExactlyOnceBatch",
        "jobs": "SparkJob SparkRun StreamJob",
        "plan": "InputPlan OffsetRange",
        "running": "RunOptions run run_job start_stream",
        "session.checks": "check_session",
        "session.session": "build_session",
        "source": "read_snapshot read_stream",
        "stream.log_rules": "LedgerChangedError LedgerError",
        "stream.query": "StreamRun StreamWriter write_stream",
        "stream.sink": "ExactlyOnceSink exactly_once_sink",
        "submitted": "main",
        "transform": "records_transform",
        "write.writer": "ShardResult ShardState",
    }
)

__all__ = [
    "BatchResult",
    "ExactlyOnceBatch",
    "ExactlyOnceSink",
    "InputPlan",
    "LedgerChangedError",
    "LedgerError",
    "OffsetRange",
    "Placement",
    "RunOptions",
    "ShardResult",
    "ShardState",
    "SparkJob",
    "SparkRun",
    "StreamJob",
    "StreamRun",
    "StreamWriter",
    "build_session",
    "check_session",
    "exactly_once_sink",
    "main",
    "read_snapshot",
    "read_stream",
    "records_transform",
    "run",
    "run_job",
    "start_stream",
    "write_stream",
]


def __getattr__(name: str) -> Any:
    return _named(__name__, _HOMES, name)
