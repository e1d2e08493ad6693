"""eos: exactly-once processing for Python on Apache Kafka.

Output records and input offsets become visible in one transaction, or never. Everything public is named
here, and in four modules below: ``eos.events`` (what a ``listener=`` receives), ``eos.local``,
``eos.spark`` and ``eos.testing``. The others are internal.
"""

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
