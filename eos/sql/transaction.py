"""SqlTransaction: one transaction of a database: rows, and the positions of their input."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import OperationalError

from eos.core.topics_used import TopicsUsed
from eos.core.transaction import TransactionState
from eos.errors import (
    AbortableError,
    CommitOutcomeUnknownError,
    EosError,
    FencedError,
    UnclassifiedError,
    UsageError,
)
from eos.home import Home, refuse_elsewhere
from eos.kafka.group_offsets import GroupMetadata
from eos.offsets import OffsetVector, Partition
from eos.sql import progress
from eos.sql.classify import Kind, classify
from eos.sql.dialect import Dialect, require_transaction
from eos.sql.limits import Limits, limit
from eos.sql.meaning import meaning
from eos.sql.position import Move, Owner

# A COMMIT was answered so, or its transaction was ended before: it has not happened. 40003 says that nobody knows.
_NOT_COMMITTED = (Kind.TRANSIENT, Kind.RECORD)
_UNKNOWN_CODE = "40003"


class TransactionOwner(Protocol):
    """The writer that a transaction belongs to."""

    @property
    def engine(self) -> Engine: ...
    @property
    def owner(self) -> Owner: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def topics(self) -> TopicsUsed: ...
    def on_refused(self) -> None: ...
    def topic_id_of(self, topic: str) -> str: ...
    def moves(self, offsets: OffsetVector) -> dict[Partition, Move]: ...
    def ended(self, transaction: SqlTransaction, error: BaseException | None) -> None: ...


class SqlTransaction:
    """A transaction of the database; the calls of `core.destination.WriterTransaction`.

    Attributes:
        moves: what it has done to positions, once that was sent.
    """

    records_in = 0  # only reported
    records_out = 0
    seconds = 0.0
    commit_seconds = 0.0
    state = TransactionState.NEW

    def __init__(self, writer: TransactionOwner) -> None:
        self._writer = writer
        self._connection: Connection | None = None
        self._offsets: OffsetVector | None = None
        self._begun_at = 0.0
        self._commits = False
        self._home = Home.here
        self.moves: dict[Partition, Move] = {}

    @property
    def may_have_output(self) -> bool:
        """What its caller has made of the connection is not known."""
        return True

    @property
    def connection(self) -> Connection:
        """To fill it with statements."""
        if self._connection is None or self.state is not TransactionState.OPEN:
            raise UsageError(f"the transaction is {self.state}, not open; a block is used once")
        return self._connection

    @property
    def offsets(self) -> OffsetVector:
        return self._offsets or OffsetVector()

    @property
    def open_s(self) -> float:
        return time.monotonic() - self._begun_at

    def meant_by(self, error: BaseException) -> EosError | None:
        """What the database's error means if it ended this transaction, and a new one may put that right."""
        return meaning(error) if self._is_broken else None

    # --- its moves -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin, within limits of time.

        Raises:
            AbortableError: the database does not let it now.
        """
        self._begun_at = time.monotonic()
        try:
            self._connection = connection = self._writer.engine.connect()
            begin(connection, self._writer.limits)
            event.listen(connection, "before_cursor_execute", self._refuse_in_a_fork)
            event.listen(connection, "commit", self._refuse_commit)
            event.listen(connection, "rollback", self._refuse_rollback)
            self.state = TransactionState.OPEN
        except BaseException as error:
            self._let_go()
            self._end(TransactionState.ABORTED, error)
            if (meant := meaning(error)) is not None:
                raise meant from meant.__cause__
            raise

    def add(self, outputs: Sequence[Any]) -> None:
        """Run the changes that a transform has returned.

        Raises:
            AbortableError: a new transaction may succeed. Of a row that the database refuses the record is looked for then.
        """
        try:
            for output in outputs:
                self.records_out += output.apply(self.connection, self._writer.topic_id_of)
        except Exception as error:
            refused = self._refused(error)
            if refused is error:
                raise
            raise refused from refused.__cause__ or error

    def add_offsets(self, offsets: OffsetVector, group: GroupMetadata) -> None:  # noqa: ARG002 - Kafka's group decides nothing here
        """The positions behind its input, once and last."""
        if self._offsets is not None:
            raise UsageError("add_offsets: offsets are added once per transaction, as its last step")
        self._offsets = offsets

    def commit(self) -> None:
        """Move the positions, and commit.

        Raises:
            AbortableError: it was rolled back, and a new one may succeed.
            CommitOutcomeUnknownError: COMMIT was not answered.
            FencedError: another owner has a partition.
            RebalancedError: another member of the group has.
            OffsetGapError: a position went back.
        """
        connection, began = self.connection, time.monotonic()
        try:
            self._require_the_same()
            self.moves = self._writer.moves(self.offsets)
            self._move(connection)
            self._writer.topics.last_look()
        except BaseException as error:
            meant = meaning(error)
            self.abort(meant or error)
            if meant is not None:
                raise meant from meant.__cause__
            raise
        self.state, self._commits = TransactionState.COMMITTING, True
        try:
            connection.commit()
        except BaseException as error:
            raise self._not_answered(error) from error
        self.commit_seconds = time.monotonic() - began
        self._let_go()
        self._end(TransactionState.COMMITTED)

    def abort(self, reason: BaseException | None = None) -> None:
        """Roll back. A connection that cannot do so is dropped, and the database ends the transaction."""
        if self.state is not TransactionState.OPEN:
            raise UsageError(f"the transaction is {self.state} and cannot be aborted")
        self.state = TransactionState.ABORTING
        self._let_go()
        self._end(TransactionState.ABORTED, reason)

    def settle(self, reason: BaseException) -> None:
        """Bring it to an end, after an exception of a signal handler has left any call of it."""
        if self.state is TransactionState.OPEN:
            self.abort(reason)
        elif self.state in (TransactionState.ABORTING, TransactionState.NEW):
            self._let_go()
            self._end(TransactionState.ABORTED, reason)
        elif self.state is TransactionState.COMMITTING:
            self._let_go()
            self._end(TransactionState.UNRESOLVED, reason)

    # --- inside ------------------------------------------------------------------------------------

    @property
    def _is_broken(self) -> bool:
        """Whether this transaction can't go on, which an error of another database of the caller's does not say."""
        connection = self._connection
        if connection is None or connection.closed or connection.invalidated:
            return True
        if connection.dialect.name == Dialect.SQLITE:
            return True  # it does not say; what a new transaction may put right is busy files
        driver: Any = connection.connection.driver_connection
        return bool(driver.closed or driver.info.transaction_status != TransactionStatus.INTRANS)

    def _move(self, connection: Connection) -> None:
        new = {partition: move for partition, move in self.moves.items() if move.start is None}
        old = {partition: move for partition, move in self.moves.items() if move.start is not None}
        if old:
            progress.move(connection, self._writer.owner, old)
        if new and (had := progress.begin_at(connection, self._writer.owner, new)):
            raise FencedError(
                f"{had[0]}: another owner has begun it meanwhile. Nothing of this transaction was written"
            )

    def _refused(self, error: Exception) -> Exception:
        """What an error of a job's statement means to its loop."""
        verdict = classify(error)
        if verdict is None:
            return error
        if verdict.kind is Kind.RECORD:
            self._writer.on_refused()
            return AbortableError(f"the database refuses a row: {verdict.says}", code=verdict.code or None)
        return meaning(error) or UnclassifiedError(
            f"the database refuses a statement of the job: {verdict.says}", code=verdict.code or None
        )

    def _not_answered(self, error: BaseException) -> BaseException:
        """What is raised for an error of COMMIT, once the transaction is at its end."""
        verdict = classify(error)
        self._let_go()
        if verdict is None:  # a signal handler's: the COMMIT may have been sent
            self._end(TransactionState.UNRESOLVED, error)
            return error
        if (
            verdict.kind in _NOT_COMMITTED
            and not verdict.lost
            and verdict.code
            and verdict.code != _UNKNOWN_CODE
        ):
            if verdict.kind is Kind.RECORD:  # a deferred constraint's
                self._writer.on_refused()
            aborted = AbortableError(f"the database did not commit: {verdict.says}", code=verdict.code)
            self._end(TransactionState.ABORTED, aborted)
            return aborted
        unknown = CommitOutcomeUnknownError(
            f"COMMIT was not answered: {verdict.says}. Its rows and positions are visible together or not at all; which of the "
            "two is read back",
            code=verdict.code or None,
        )
        self._end(TransactionState.UNRESOLVED, unknown)
        return unknown

    def _let_go(self) -> None:
        """Give the connection back; what is open on it is rolled back. One that cannot is closed."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._commits = True
        try:
            connection.close()
        except Exception:  # noqa: BLE001 - the database ends the transaction of a connection that is gone
            if not connection.closed:
                connection.invalidate()

    def has_committed(self) -> None:
        """As of `eos.core.transaction.ShardTransaction`."""
        self.state = TransactionState.COMMITTED

    def _end(self, state: TransactionState, error: BaseException | None = None) -> None:
        self.state = state
        self.seconds = time.monotonic() - self._begun_at
        self._writer.ended(self, error)

    def _require_the_same(self) -> None:
        """The caller may have ended the transaction by SQL of its own, which then is committed without its position."""
        connection = self.connection
        require_transaction(connection)
        if not is_marked(connection):
            raise UsageError(_ENDED)

    def _refuse_in_a_fork(self, *_: object) -> None:
        """A fork shares the connection: what it does there is lost, or breaks in on the parent's work."""
        refuse_elsewhere(self._home, "execute()")

    def _refuse_commit(self, _: Connection) -> None:
        refuse_elsewhere(self._home, "commit()")
        if not self._commits:
            raise UsageError(_ENDED)

    def _refuse_rollback(self, _: Connection) -> None:
        if not self._commits:
            raise UsageError(
                "rollback() inside the block. Fix: leave the block by AbortTransaction, or use connection.begin_nested()"
            )


_ENDED = (
    "the block's transaction was committed by its own code, without the position of its input: what it wrote is visible, and the "
    "input comes again. Fix: no commit() and no COMMIT inside the block; leaving it commits rows and position together"
)


def begin(connection: Connection, limits: Limits) -> None:
    """Begin the transaction of a block, with a mark that goes with it.

    On SQLite it holds the one lock from its begin on: what it reads nobody changes.
    """
    limit(connection, limits)
    if connection.dialect.name == Dialect.SQLITE:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        connection.exec_driver_sql("SAVEPOINT eos_block")
    else:
        connection.execute(text("SELECT set_config('eos.transaction', 'open', true)"))


def is_marked(connection: Connection) -> bool:
    """Whether it is that transaction still; asked once, at its end."""
    if connection.dialect.name != Dialect.SQLITE:
        return bool(connection.scalar(text("SELECT current_setting('eos.transaction', true) = 'open'")))
    try:
        connection.exec_driver_sql("RELEASE SAVEPOINT eos_block")
    except OperationalError:  # no such savepoint: it went with its transaction
        return False
    return True


def check_constraints(connection: Connection) -> None:
    """Check now what a COMMIT would check; what follows is checked later again."""
    if connection.dialect.name == Dialect.POSTGRESQL:
        connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")
        connection.exec_driver_sql("SET CONSTRAINTS ALL DEFERRED")
