"""Done: what says that a shard's work is done, and is committed by the transaction that does it.

There are two such records: the committed offsets of the input (`eos.spark.done_ranges`, batches), and an entry of a
ledger (`eos.spark.done_entry`, streams). Both are offsets of a group, so one transaction has them and the rows, and both
are read under the writer's own fence: not begun, done, or something else, which is a conflict. The writer
(`eos.spark.writer`) knows no more of a shard than this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from typing import ClassVar, Protocol

import pyarrow as pa

from eos.errors import EosError, FencedError
from eos.group.metadata import OffsetMetadata
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition
from eos.shards import Shard


class ConflictError(FencedError):
    """What is stored is neither what was planned with nor what the shard's own commit would leave. It stands."""


class Done(Protocol):
    """The record of all shards of a run. Immutable and picklable: the executors get it as it is."""

    def __contains__(self, number: object) -> bool:
        """Whether the run has a shard of this number."""

    def shard(self, number: int) -> Shard:
        """Who commits."""

    def offsets(self, number: int) -> OffsetVector:
        """What says that the shard is done."""

    def in_task(self, number: int, task: int) -> ShardDone:
        """The record of one shard for the task that writes it."""


class ShardDone(ABC):
    """The record of one shard, in the task that writes it.

    Attributes:
        shard: who commits.
        group: whose offsets the record is.
        partitions: what the offsets are of.
        metadata: what is stored with the offsets.
        started: per topic, what the metadata says of its partitions (`eos.group.expiry`).
        for_good: errors that another try of the task would meet as well, beside those of every writer.
    """

    shard: Shard
    group: str
    partitions: Collection[Partition]
    metadata: OffsetMetadata
    started: Mapping[str, int]
    for_good: ClassVar[tuple[type[EosError], ...]] = ()

    def was_done(self) -> bool:
        """Whether it is known to be done before the init, which fences the shard's present owner."""
        return False

    @abstractmethod
    def is_done(self, stored: Mapping[Partition, Committed]) -> bool:
        """Whether what is stored says so; if not, it is what was planned with.

        Raises:
            ConflictError: it is neither.
        """

    @abstractmethod
    def to_commit(self) -> OffsetVector:
        """The offsets to commit, asked for when all rows are produced."""

    @abstractmethod
    def smaller(self, *, written: int | None, seconds: float) -> str:
        """How to have less in a transaction, after one that expired: what a person does.

        Args:
            written: records it had written when it was cut short; None if it had written all of its rows.
            seconds: how long it was open.
        """

    def counted(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows, which are looked at as they pass; also those of a shard that is done."""
        return rows

    def contents(self) -> tuple[str, str]:
        """What the rows came to, and what is written of them; "" where that is not recorded."""
        return "", ""
