"""The commit record: what says that a shard is done, committed by the very transaction that does it.

There are two such records: the committed offsets of the input (batches), and an entry of a commit log (streams). Both are
offsets of a group, so one transaction has them and the rows, and both are read under the writer's own fence: not begun,
done, or something else, which is a conflict. The writer (`eos.spark.write.writer`) knows no more of a shard than this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Protocol

import pyarrow as pa

from eos.core.producer import ShardProducer
from eos.errors import EosError, FencedError, OffsetGapError
from eos.events import Listener, ignore_event
from eos.group.committed import fresh_reader
from eos.group.metadata import OffsetMetadata
from eos.kafka.group_offsets import Committed, GroupMetadata
from eos.offsets import OffsetVector, Partition
from eos.settings import Settings
from eos.shards import Shard

_metadata: dict[str, GroupMetadata] = {}


class ConflictError(FencedError):
    """What is stored is neither what was planned with nor what the shard's own commit would leave. It stands."""


class CommitRecord(Protocol):
    """The record of all shards of a run. Immutable and picklable: the executors get it as it is."""

    def __contains__(self, number: object) -> bool:
        """Whether the run has a shard of this number."""

    def in_task(self, number: int, task: int) -> ShardRecord:
        """The record of one shard, in the task that writes it."""


class ShardRecord(ABC):
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
    for_good: tuple[type[EosError], ...] = ()

    def was_done(self) -> bool:
        """Whether it is known to be done before the init, which fences the shard's present owner."""
        return False

    @abstractmethod
    def is_done(self, stored: Mapping[Partition, Committed]) -> bool:
        """Whether what is stored says so; if not, it is what was planned with. It is neither: a ConflictError."""

    @property
    @abstractmethod
    def offsets(self) -> OffsetVector:
        """What says that the shard is done."""

    def explained(self, error: OffsetGapError) -> EosError:
        """What it means that a topic was deleted and created anew, by the shard that met it."""
        return error

    def to_commit(self) -> OffsetVector:
        """The offsets to commit, asked for when all rows are produced."""
        return self.offsets

    @abstractmethod
    def smaller(self, *, written: int | None, seconds: float) -> str:
        """How to have less in a transaction, after one that expired: what a person does.

        ``written``: records it had written when it was cut short; None if it had written all of its rows.
        """

    def counted(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows, which are looked at as they pass; also those of a shard that is done."""
        return rows

    def contents(self) -> tuple[str, str]:
        """What the rows came to, and what is written of them; "" where that is not recorded."""
        return "", ""


def commit_offsets(
    settings: Settings,
    shard: Shard,
    group: str,
    partitions: Collection[Partition],
    choose: Callable[[Mapping[Partition, Committed]], OffsetVector],
    *,
    metadata: OffsetMetadata,
    started: Mapping[str, int],
    listener: Listener = ignore_event,
) -> dict[Partition, Committed | None]:
    """Own a shard for as long as it takes to commit offsets.

    The init comes first, and then the offsets are read: of two drivers at once neither takes the other's commit back.

    ``choose`` goes from what is stored of ``partitions`` to what is committed, which may be nothing. Returns what is
    stored then.

    Raises:
        FencedError: another driver has opened the shard meanwhile.
        EosError: what ``choose`` raised, or the commit met.
    """
    with ShardProducer(
        settings, shard, metadata=metadata, listener=listener, started_partitions=started
    ) as producer:
        if offsets := choose(producer.take_over(group, partitions)):
            with producer.transaction() as transaction:
                transaction.add_offsets(offsets, group_metadata(settings, group))
        return producer.ledger_of(group).stored_of(partitions)


def group_metadata(settings: Settings, group: str) -> GroupMetadata:
    """The metadata of no member of a group, which is its name alone: made once per process."""
    if group not in _metadata:
        with fresh_reader(settings, group, stable=False) as reader:
            _metadata[group] = reader.group_metadata()
    return _metadata[group]
