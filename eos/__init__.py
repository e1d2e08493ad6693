"""eos: exactly-once processing for Python on Apache Kafka.

Output records and input offsets become visible in one transaction, or never. Everything public is named
here, and in four modules below: ``eos.events`` (what a ``listener=`` receives), ``eos.local``,
``eos.spark`` and ``eos.testing``. The others are internal.

The names are imported when they are asked for: a command and a Spark task need a part of them, and a worker's process can
be started before its parent has loaded what both need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eos.lazy_names import homes_of as _homes_of
from eos.lazy_names import named as _named

if TYPE_CHECKING:
    from eos.deadletter import dead_letter
    from eos.errors import (
        AbortableError,
        AbortTransaction,
        CommitOutcomeUnknownError,
        ConfigError,
        DeliveryError,
        EosError,
        FatalError,
        FencedError,
        OffsetGapError,
        RebalancedError,
        RecordError,
        RecordRefusedError,
        ReopenError,
        RetriableError,
        TransactionExpiredError,
        TransformError,
        UnavailableError,
        UnclassifiedError,
        UnprovenFenceError,
        UsageError,
    )
    from eos.exits import ExitCode
    from eos.job import Job
    from eos.offsets import OffsetVector, Partition
    from eos.producer.transaction import Transaction, TransactionState
    from eos.producer.transactional import TransactionalProducer
    from eos.records import InputBatch, InputRecord, OutputBatch, OutputRecord
    from eos.runner.worker import run
    from eos.session.reader import ReadCommittedConsumer
    from eos.session.session import Session
    from eos.settings import Settings
    from eos.shards import OrdinalShard, PartitionShard, Shard
    from eos.verifier.report import VerificationReport
    from eos.verifier.verify import verify

_HOMES = _homes_of(
    {
        "deadletter": "dead_letter",
        "errors": (
            "AbortTransaction AbortableError CommitOutcomeUnknownError ConfigError DeliveryError "
            "EosError FatalError FencedError OffsetGapError RebalancedError RecordError "
            "RecordRefusedError ReopenError RetriableError TransactionExpiredError TransformError "
            "UnavailableError UnclassifiedError UnprovenFenceError UsageError"
        ),
        "exits": "ExitCode",
        "job": "Job",
        "offsets": "OffsetVector Partition",
        "producer.transaction": "Transaction TransactionState",
        "producer.transactional": "TransactionalProducer",
        "records": "InputBatch InputRecord OutputBatch OutputRecord",
        "runner.worker": "run",
        "session.reader": "ReadCommittedConsumer",
        "session.session": "Session",
        "settings": "Settings",
        "shards": "OrdinalShard PartitionShard Shard",
        "verifier.report": "VerificationReport",
        "verifier.verify": "verify",
    }
)

__all__ = [
    "AbortTransaction",
    "AbortableError",
    "CommitOutcomeUnknownError",
    "ConfigError",
    "DeliveryError",
    "EosError",
    "ExitCode",
    "FatalError",
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
    "RebalancedError",
    "RecordError",
    "RecordRefusedError",
    "ReopenError",
    "RetriableError",
    "Session",
    "Settings",
    "Shard",
    "Transaction",
    "TransactionExpiredError",
    "TransactionState",
    "TransactionalProducer",
    "TransformError",
    "UnavailableError",
    "UnclassifiedError",
    "UnprovenFenceError",
    "UsageError",
    "VerificationReport",
    "dead_letter",
    "run",
    "verify",
]


def __getattr__(name: str) -> Any:
    return _named(__name__, _HOMES, name)
