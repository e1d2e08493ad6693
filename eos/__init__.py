"""eos: exactly-once processing for Python on Apache Kafka.

Output records and input offsets become visible in one transaction, or never. Everything public is named
here, and in four modules below: ``eos.events`` (what a ``listener=`` is told), ``eos.local``,
``eos.spark`` and ``eos.testing``. The others are internal.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
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

# Imported when first asked for: the pytest plugin lives in this package, and every run of pytest loads it, also
# those that never touch Kafka (importing all of this takes 0.3 s).
_HOMES = {
    "eos.consumer": ("ReadCommittedConsumer",),
    "eos.deadletter": ("dead_letter",),
    "eos.errors": (
        "AbortTransaction",
        "AbortableError",
        "CommitOutcomeUnknownError",
        "ConfigError",
        "DeliveryError",
        "EosError",
        "FatalError",
        "FencedError",
        "OffsetGapError",
        "RebalancedError",
        "RecordRefusedError",
        "ReopenError",
        "RetriableError",
        "TransactionExpiredError",
        "TransformError",
        "UnavailableError",
        "UnclassifiedError",
        "UsageError",
    ),
    "eos.exits": ("ExitCode",),
    "eos.job": ("Job",),
    "eos.kafka.consumer": ("GroupMetadata",),
    "eos.offsets": ("OffsetVector", "Partition"),
    "eos.producer": ("ProducerState", "TransactionalProducer"),
    "eos.records": ("InputBatch", "InputRecord", "OutputBatch", "OutputRecord"),
    "eos.settings": ("Settings",),
    "eos.shards": ("OrdinalShard", "PartitionShard", "Shard"),
    "eos.transaction": ("Transaction", "TransactionState"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


# Hidden from type checkers, which would take any name for one that is there.
if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if (home := _HOME_OF.get(name)) is None:
            msg = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(msg)
        value: object = getattr(importlib.import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
