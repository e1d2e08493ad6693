"""Destination: where an owner's transactions go, and where its committed offsets are: Kafka, or a database.

The input side does not depend on it. What an owner reads, and when it rewinds, is the same for every destination; what is committed
with the output goes through these calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from eos.core.ledger import Ledger, Outcome
from eos.core.transaction import TransactionState
from eos.errors import EosError
from eos.events import Listener
from eos.group.committed import OffsetStore
from eos.kafka.consumer import ConsumerClient
from eos.kafka.group_offsets import Committed, GroupMetadata
from eos.offsets import OffsetVector, Partition
from eos.settings import Settings
from eos.shards import Shard


class WriterTransaction(Protocol):
    """One atomic unit of output and input offsets. Its state changes after the destination has answered, never before."""

    records_in: int

    @property
    def state(self) -> TransactionState: ...
    @property
    def offsets(self) -> OffsetVector:
        """The input offsets that were added."""
        ...

    @property
    def may_have_output(self) -> bool:
        """Whether something may be written in it."""
        ...

    @property
    def open_s(self) -> float: ...
    @property
    def commit_seconds(self) -> float: ...
    def meant_by(self, error: BaseException) -> EosError | None:
        """What an exception means that has left the caller's block: that of a call of this transaction. None: it is the caller's own."""
        ...

    def begin(self) -> None: ...
    def add(self, outputs: Sequence[Any]) -> None:
        """Add what a job's transform has made of a batch."""
        ...

    def add_offsets(self, offsets: OffsetVector, group: GroupMetadata) -> None:
        """Add the input offsets, once and last."""
        ...

    def commit(self) -> None:
        """Commit the output and the offsets.

        Raises:
            AbortableError: it was aborted.
            ReopenError: the outcome is known after a reopen of the writer.
            FencedError: another owner has the partitions.
        """
        ...

    def abort(self, reason: BaseException | None = None) -> None: ...
    def settle(self, reason: BaseException) -> None:
        """Bring it to an end, after an exception of a signal handler has left any call of it."""
        ...


class Writer(Protocol):
    """Makes the transactions of one shard, one after the other."""

    @property
    def is_over(self) -> bool:
        """Whether it must be reopened before the next transaction, also to learn what became of the last one."""
        ...

    @property
    def is_fenced(self) -> bool:
        """Whether another owner has the shard."""
        ...

    @property
    def settling_s(self) -> float:
        """For how many seconds more a transaction that begins would wait."""
        ...

    def open(self) -> None:
        """Fence older owners of the shard, as far as that goes without its partitions."""
        ...

    def close(self) -> None:
        """Abort what is open, and let go."""
        ...

    def reopen(self) -> Outcome:
        """Go on after an error, and show that no other owner has come; returns the outcome of an unanswered commit.

        Raises:
            FencedError: another owner has.
        """
        ...

    def claim(self, partitions: Iterable[Partition]) -> None:
        """Partitions come: their former owner must not commit any more when their offsets are read next."""
        ...

    def new_transaction(self) -> WriterTransaction: ...
    def give_up(self, when: Callable[[], bool] = lambda: True) -> None:
        """Leave calls without an answer: the process has to end."""
        ...

    def given_up(self) -> bool: ...
    def hurry(self, seconds: float) -> None:
        """The process ends: a reopen takes no longer than so many seconds."""
        ...


class OffsetNote(Protocol):
    """Something that committed offsets say beside the position, from owner to owner."""

    def taken_over(self, stored: Mapping[Partition, Committed | None]) -> None:
        """Partitions have come, with these offsets."""
        ...

    def begins(self) -> None:
        """A transaction begins."""
        ...

    def committed(self, stored: Mapping[Partition, Committed | None]) -> Collection[Partition]:
        """These offsets were committed; returns the partitions whose offsets are to be committed once more."""
        ...

    def withdraw(self, partitions: Iterable[Partition]) -> Collection[Partition]:
        """These partitions are about to be given up in order; returns those whose offsets are to be committed once more before."""
        ...

    def forget(self, partitions: Iterable[Partition]) -> None:
        """These partitions are gone."""
        ...


class ForTools(Protocol):
    """A consumer, as far as offsets are concerned that no owner begins at."""

    def commit_for_tools(self, offsets: Mapping[Partition, Committed]) -> None:
        """Commit them to the group, and wait for nothing."""
        ...


class Destination(Protocol):
    """Kafka, or a database."""

    def store(self, reader: ConsumerClient) -> OffsetStore:
        """Where the offsets of a reader's group are."""
        ...

    def notes(self, consumer: ForTools) -> Sequence[OffsetNote]:
        """What is told of the owner's commits."""
        ...

    def writer(self, settings: Settings, shard: Shard, *, listener: Listener, ledger: Ledger) -> Writer:
        """Makes the transactions of a shard."""
        ...
