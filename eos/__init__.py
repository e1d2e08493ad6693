"""eos: exactly-once processing for Python on Apache Kafka.

Output records and input offsets become visible in one transaction, or never. Everything public is named
here; modules below are internal unless they are named here.
"""

from eos.consumer import ReadCommittedConsumer
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
    RecordRefusedError,
    ReopenError,
    RetriableError,
    TransactionExpiredError,
    TransformError,
    UnavailableError,
    UnclassifiedError,
    UsageError,
)
from eos.exits import ExitCode
from eos.job import Job
from eos.kafka.consumer import GroupMetadata
from eos.offsets import OffsetVector, Partition
from eos.producer import ProducerState, TransactionalProducer
from eos.records import InputBatch, InputRecord, OutputBatch, OutputRecord
from eos.settings import Settings
from eos.shards import OrdinalShard, PartitionShard, Shard
from eos.transaction import Transaction, TransactionState

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
    "GroupMetadata",
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
    "ProducerState",
    "ReadCommittedConsumer",
    "RebalancedError",
    "RecordRefusedError",
    "ReopenError",
    "RetriableError",
    "Settings",
    "Shard",
    "Transaction",
    "TransactionExpiredError",
    "TransactionState",
    "TransactionalProducer",
    "TransformError",
    "UnavailableError",
    "UnclassifiedError",
    "UsageError",
    "dead_letter",
]
