"""SqlWriter: makes the transactions of one shard in a database: rows, and in the same transaction the positions of their input.

Its fence is the row of each position. `claim` writes the owner's token into it before the position is read, and each transaction
moves its positions by compare-and-set (`eos.sql.progress`). They are moved last, right before COMMIT: an owner that stands still
with an open transaction then holds no row that its successor has to wait for, but for that moment.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from sqlalchemy import Engine

from eos.base.calls import Call
from eos.base.deadline import Deadline
from eos.core.ledger import Ledger
from eos.core.ledger import Outcome as CommitOutcome
from eos.core.topics_used import TopicsUsed
from eos.core.transaction import TransactionState
from eos.errors import (
    AbortableError,
    EosError,
    FencedError,
    UsageError,
    reason_of,
)
from eos.events import (
    CallRetried,
    Fenced,
    Listener,
    ProducerOpened,
    TransactionCommitted,
    TransactionEnded,
    guarded,
)
from eos.group.expiry import count_started, grown
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition
from eos.settings import Settings
from eos.shards import Shard
from eos.sql import progress, tables
from eos.sql.dialect import dialect_of
from eos.sql.limits import Limits, limit
from eos.sql.meaning import asked
from eos.sql.position import Move, Outcome, Owner, Position
from eos.sql.transaction import SqlTransaction


class _Had(NamedTuple):
    """Of a topic: how many of its first partitions have or had a position, and the partitions that have one."""

    started: int
    present: frozenset[Partition]


class SqlWriter:
    """The calls of `core.destination.Writer` for a database.

    Args:
        engine: to the database.
        settings: how long a transaction, and an answer, may take.
        shard: whose.
        listener: called with each event.
        ledger: the owner's.
        on_refused: called when the database refuses a row.
        on_closed: called when it is closed, or could not be opened.
    """

    settling_s = 0.0

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        shard: Shard,
        *,
        listener: Listener,
        ledger: Ledger,
        on_refused: Callable[[], None],
        on_closed: Callable[[], None],
    ) -> None:
        self.engine = engine
        self.name = shard.transactional_id
        self.ledger = ledger
        self.topics = TopicsUsed(settings)
        self.owner = Owner(shard.app, shard.group, f"{shard} {ledger.metadata.owner}")
        self.limits = Limits.of(settings)
        self._settings = settings
        self.on_refused = on_refused
        self._on_closed = on_closed
        self._listener = guarded(listener)
        self._open_transaction: SqlTransaction | None = None
        self._unresolved: SqlTransaction | None = None  # its commit got no answer
        self._fence: FencedError | None = None
        self._gives_up: Callable[[], bool] = lambda: False
        self._hurry: Deadline | None = None
        self._closed = False
        self._rows: Mapping[Partition, Position] = {}  # of the group
        # Per topic, how many partitions begin together if none has a position.
        self._new: Mapping[str, int] = {}
        self._had: dict[tuple[str, str], _Had] = {}  # per topic and id, once it was asked for

    @property
    def is_over(self) -> bool:
        return self._unresolved is not None

    @property
    def is_fenced(self) -> bool:
        return self._fence is not None

    def given_up(self) -> bool:
        return self._gives_up()

    def give_up(self, when: Callable[[], bool] = lambda: True) -> None:
        self._gives_up = when

    def hurry(self, seconds: float) -> None:
        self._hurry = Deadline(seconds)

    # --- life --------------------------------------------------------------------------------------

    def open(self) -> None:
        """Look whether the database and its tables are as they must be. Nobody is fenced yet: a partition's claim does that.

        Raises:
            ConfigError: tables are missing or older, or it is a database that eos does not know.
            UnavailableError: it did not answer.
        """
        began = time.monotonic()

        def look() -> None:
            with self.engine.connect() as connection:
                dialect_of(connection)
                limit(connection, self.limits)
                tables.check(connection)

        try:
            self._asked(look)
        except BaseException:
            self._on_closed()
            raise
        self._listener(ProducerOpened(self.name, time.monotonic() - began, ""))

    def close(self) -> None:
        transaction = self._open_transaction
        try:
            if transaction is not None and transaction.state is TransactionState.OPEN:
                transaction.abort(UsageError("the session was closed inside a transaction"))
        finally:
            self._closed = True
            self._on_closed()

    def claim(self, partitions: Iterable[Partition]) -> None:
        """Write this owner's token into the positions of these partitions. From then on no transaction of a former owner commits.

        Waits for one that is just committing.

        Raises:
            ConfigError: a position belongs to another job.
            UnavailableError: the database did not answer, or another transaction held the position for too long.
        """
        wanted = tuple(partitions)

        def claim() -> None:
            with self.engine.connect() as connection, connection.begin():
                limit(connection, self.limits)
                progress.claim(connection, self.owner, wanted, adopt=self._settings.ownership.adopt_offsets)
                found = progress.positions(connection, self.owner.group)
            self._rows = {**self._rows, **found}
            self._had.clear()

        self._asked(claim)

    def none_is_new(self, partitions: Iterable[Partition]) -> None:
        """None of these is new to a topic that has no position yet, whichever of them gets one first: for an operator."""
        self._new = Counter(partition.topic for partition in partitions)
        self._had.clear()

    def reopen(self) -> CommitOutcome:
        """Read what became of a COMMIT without an answer, once the database has ended that transaction.

        Raises:
            FencedError: another owner has taken a partition over.
            RebalancedError: another member of the group has; the next fetch calls back.
            OffsetGapError: a position went back: the database is a copy of an earlier time.
            UnavailableError: the database did not answer.
        """
        self._require_usable()
        unresolved, pending = self._unresolved, self.ledger.pending or OffsetVector()
        moves = {} if unresolved is None else unresolved.moves
        # Those of partitions that were given up meanwhile are read by their next owner.
        mine = {partition: move for partition, move in moves.items() if partition in pending}
        outcome = CommitOutcome.ABORTED
        if mine:
            try:
                found = self._asked(lambda: progress.settle(self.engine, self.owner, mine, self.limits))
            except FencedError as error:
                raise self._fenced(error) from error
            if found is Outcome.COMMITTED and unresolved is not None:
                outcome = CommitOutcome.COMMITTED
                unresolved.has_committed()
        self.ledger.ended(outcome)
        self.ledger.proved()
        self._unresolved = None
        return outcome

    def new_transaction(self) -> SqlTransaction:
        """A transaction, not yet begun.

        Raises:
            UsageError: the last one is still open, or the writer is closed.
            FencedError: another owner has been found.
        """
        self._require_usable()
        if self.is_over:
            self.reopen()
        self.topics.begin()
        self._open_transaction = transaction = SqlTransaction(self)
        return transaction

    def topic_id_of(self, topic: str) -> str:
        """The id of an owned input topic."""
        return self.ledger.committed.topic_ids.get(topic, "")

    # --- called by the transaction -------------------------------------------------------------------

    def moves(self, offsets: OffsetVector) -> dict[Partition, Move]:
        """What the open transaction does to positions; the ledger knows of it from now on.

        Without offsets every owned position is moved to where it is: without a row of its own nothing would fence the transaction.

        Raises:
            AbortableError: no partition is owned.
        """
        wanted = offsets or self.ledger.committed
        if not wanted:
            raise AbortableError("no partition is owned now, so nothing would fence this transaction")
        ids = self.topics.ids_of({p.topic for p in wanted if not wanted.topic_ids.get(p.topic)})
        topic_ids = {p.topic: wanted.topic_ids.get(p.topic) or ids.get(p.topic, "") for p in wanted}
        self.topics.read(topic_ids)
        had = {topic: self._had_of(topic, topic_id) for topic, topic_id in topic_ids.items()}
        started = grown(
            {topic: one.started for topic, one in had.items()},
            wanted.keys() | set().union(*(one.present for one in had.values())),
        )
        return moves_of(self.ledger, wanted, started, topic_ids)

    def _had_of(self, topic: str, topic_id: str) -> _Had:
        """Rows of a topic of this name that was deleted count for nothing: it may have had more partitions."""
        key = topic, topic_id
        if key not in self._had:
            of_it = {
                partition: Committed(one.next_offset, one.metadata)
                for partition, one in self._rows.items()
                if partition.topic == topic and (not topic_id or one.topic_id in ("", topic_id))
            }
            started = count_started(of_it).get(topic, self._new.get(topic, 0))
            self._had[key] = _Had(started, frozenset(of_it))
        return self._had[key]

    def ended(self, transaction: SqlTransaction, error: BaseException | None) -> None:
        """A transaction has reached a final state."""
        self._open_transaction = None
        if isinstance(error, FencedError):
            self._fenced(error)
        if transaction.state is TransactionState.COMMITTED:
            self.ledger.ended(CommitOutcome.COMMITTED)
            self.ledger.proved()
            self._listener(
                TransactionCommitted(
                    self.name,
                    transaction.records_in,
                    transaction.records_out,
                    transaction.offsets,
                    transaction.seconds,
                    transaction.commit_seconds,
                )
            )
            return
        if transaction.state is TransactionState.UNRESOLVED:
            self._unresolved = transaction
        else:
            self.ledger.ended(CommitOutcome.ABORTED)
        self._listener(
            TransactionEnded(
                self.name,
                "unresolved" if self.is_over else "aborted",
                "" if error is None else reason_of(error),
                transaction.seconds,
            )
        )

    # --- inside ------------------------------------------------------------------------------------

    def _asked(self, question: Callable[[], Any]) -> Any:
        timeout_s = self._settings.open_timeout_s
        if self._hurry is not None:
            timeout_s = min(timeout_s, self._hurry.left_s)
        return asked(Call.COMMITTED, question, timeout_s=timeout_s, on_retry=self._on_retry)

    def _on_retry(self, call: Call, attempt: int, error: EosError) -> None:
        self._listener(CallRetried(self.name, call, attempt, str(error)))

    def _fenced(self, error: FencedError) -> FencedError:
        if self._fence is None:
            self._fence = error
            self._listener(Fenced(self.name, str(error)))
        return error

    def _require_usable(self) -> None:
        if self._fence is not None:
            raise FencedError(str(self._fence)) from self._fence
        if self._closed:
            raise UsageError(f"{self.name}: it is closed")
        if self._open_transaction is not None and self._open_transaction.state is TransactionState.OPEN:
            raise UsageError(f"{self.name}: its transaction is still open; blocks do not nest")


def moves_of(
    ledger: Ledger, offsets: OffsetVector, started: Mapping[str, int], topic_ids: Mapping[str, str]
) -> dict[Partition, Move]:
    """What a transaction with these offsets does to positions; the ledger knows of it from now on."""
    before = ledger.stored_of(offsets)
    moves = {}
    for partition, stored in ledger.sent(offsets, started, topic_ids).items():
        was = before.get(partition)
        moves[partition] = Move(
            None if was is None else was.offset,
            stored.offset,
            stored.leader_epoch,
            topic_ids.get(partition.topic, ""),
            stored.metadata,
        )
    return moves
