"""Exactly-once batches and streams on Spark: output records and input offsets in one Kafka transaction.

Importing `eos` needs neither PySpark nor Java; the names of this package need both: ``pip install
'eos-kafka[spark]'``. They are imported when they are asked for: an executor's Python process starts with the writer
alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eos.lazy_names import homes_of as _homes_of
from eos.lazy_names import named as _named

if TYPE_CHECKING:
    from eos.spark.batch import BatchResult, ExactlyOnceBatch
    from eos.spark.job import SparkJob, SparkRun, main, run_job
    from eos.spark.ledger import LedgerChangedError, LedgerError
    from eos.spark.placing import Placement
    from eos.spark.plan import InputPlan, OffsetRange
    from eos.spark.report import ShardResult, ShardState
    from eos.spark.session import build_session, check_session
    from eos.spark.source import read_snapshot, read_stream
    from eos.spark.stream import ExactlyOnceSink, exactly_once_sink
    from eos.spark.stream_job import StreamJob, start_stream
    from eos.spark.stream_writer import StreamRun, StreamWriter, write_stream
    from eos.spark.transform import records_transform

_HOMES = _homes_of(
    {
        "batch": "BatchResult ExactlyOnceBatch",
        "job": "SparkJob SparkRun main run_job",
        "ledger": "LedgerChangedError LedgerError",
        "placing": "Placement",
        "plan": "InputPlan OffsetRange",
        "report": "ShardResult ShardState",
        "session": "build_session check_session",
        "source": "read_snapshot read_stream",
        "stream": "ExactlyOnceSink exactly_once_sink",
        "stream_job": "StreamJob start_stream",
        "stream_writer": "StreamRun StreamWriter write_stream",
        "transform": "records_transform",
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
    "run_job",
    "start_stream",
    "write_stream",
]


def __getattr__(name: str) -> Any:
    return _named(__name__, _HOMES, name)
