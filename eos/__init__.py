"""eos: exactly-once processing for Python on Apache Kafka.

Output records and input offsets become visible in one transaction, or never. Everything public is named
here, and in four modules below: ``eos.events`` (what a ``listener=`` receives), ``eos.local``,
``eos.spark`` (with ``eos.spark.events``) and ``eos.testing``. The others are internal.

The names are imported when they are asked for: a command and a Spark task need a part of them, and a worker's process can
be started before its parent has loaded what both need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eos.base.lazy_names import homes_of as _homes_of
from eos.base.lazy_names import named as _named

if TYPE_CHECKING:
    from eos.core.block import Transaction
    from eos.core.transaction import TransactionState
    from eos.core.transactional import TransactionalProducer
    from eos.deadletter import dead_letter
    from eos.errors import (
        AbortableError,
        AbortTransaction,
        CommitOutcomeUnknownError,
        ConfigError,
        EosError,
        FencedError,
        OffsetGapError,
        RecordRefusedError,
        ReopenError,
        RetriableError,
        TransformError,
        UnavailableError,
        UnclassifiedError,
        UsageError,
    )
    from eos.exits import ExitCode
    from eos.faces.reader import ReadCommittedConsumer
    from eos.faces.session import Session
    from eos.job import Job
    from eos.offsets import OffsetVector, Partition
    from eos.ops.verifier.report import VerificationReport
    from eos.ops.verifier.verify import verify
    from eos.records import InputBatch, InputRecord, OutputBatch, OutputRecord
    from eos.runner.worker import run
    from eos.settings import Settings
    from eos.shards import OrdinalShard, PartitionShard, Shard

_HOMES = _homes_of(
    {
        "deadletter": "dead_letter",
        "errors": (
            "AbortTransaction AbortableError CommitOutcomeUnknownError ConfigError EosError FencedError OffsetGapError "
            "RecordRefusedError ReopenError RetriableError TransformError UnavailableError UnclassifiedError UsageError"
        ),
        "exits": "ExitCode",
        "job": "Job",
        "offsets": "OffsetVector Partition",
        "core.block": "Transaction",
        "core.transaction": "TransactionState",
        "core.transactional": "TransactionalProducer",
        "records": "InputBatch InputRecord OutputBatch OutputRecord",
        "runner.worker": "run",
        "faces.reader": "ReadCommittedConsumer",
        "faces.session": "Session",
        "settings": "Settings",
        "shards": "OrdinalShard PartitionShard Shard",
        "ops.verifier.report": "VerificationReport",
        "ops.verifier.verify": "verify",
    }
)

__all__ = [
    "AbortTransaction",
    "AbortableError",
    "CommitOutcomeUnknownError",
    "ConfigError",
    "EosError",
    "ExitCode",
    "FencedError",
    "InputBatch",
    "InputRecord",
    "Job",
    "OffsetGapError",
    "OffsetVector",
    "OrdinalShard",
    "OutputBatch",
    "OutputRecord",
    "Partition",
    "PartitionShard",
    "ReadCommittedConsumer",
    "RecordRefusedError",
    "ReopenError",
    "RetriableError",
    "Session",
    "Settings",
    "Shard",
    "Transaction",
    "TransactionState",
    "TransactionalProducer",
    "TransformError",
    "UnavailableError",
    "UnclassifiedError",
    "UsageError",
    "VerificationReport",
    "dead_letter",
    "run",
    "verify",
]


def __getattr__(name: str) -> Any:
    return _named(__name__, _HOMES, name)
