"""A database that is down is waited for as brokers are, whichever statement has met that: it is no try that failed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from sqlalchemy import Column, Integer, MetaData, Table

from eos.base.deadline import Deadline
from eos.core.transaction import TransactionState
from eos.core.tries import Tries
from eos.errors import AbortableError
from eos.offsets import OffsetVector, Partition
from eos.sql.changes import Insert, grouped
from eos.sql.limits import Limits
from eos.sql.outbox import Outbox
from eos.sql.outbox_read import WHOLE
from eos.sql.relay_mark import RelayMark
from eos.sql.relay_source import RelaySource
from eos.sql.transaction import SqlTransaction
from tests.support.databases import Database, backend_of
from tests.support.patience import PATIENCE_S

numbers = Table("numbers", MetaData(), Column("n", Integer, primary_key=True))
LIMITS = Limits(30.0, 30.0)


class Owner:
    """What a transaction needs of its writer."""

    owner: Any = None
    limits = LIMITS
    topics: Any = SimpleNamespace(last_look=lambda: None)

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def on_refused(self) -> None: ...
    def topic_id_of(self, topic: str) -> str:
        return topic

    def moves(self, _: OffsetVector) -> dict[Partition, Any]:
        return {}

    def ended(self, _: SqlTransaction, __: BaseException | None) -> None: ...


@pytest.fixture
def transaction(postgres: Database) -> SqlTransaction:
    with postgres.judge.begin() as connection:
        numbers.create(connection)
    transaction = SqlTransaction(Owner(postgres.engine()))
    transaction.begin()
    return transaction


def lose(transaction: SqlTransaction, postgres: Database) -> None:
    """End its backend, as a server that stops does."""
    backend = backend_of(transaction.connection)
    postgres.seen("SELECT pg_terminate_backend(:backend)", backend=backend)


def waits_for(error: AbortableError) -> bool:
    """Whether an owner waits for the database, as long as it may."""
    return Tries(60.0, lambda *_: None).sits_out(error)


def down(postgres: Database) -> Any:
    """An engine to a server that is down."""
    host, _, database = postgres.url.rpartition("/")
    return postgres.engine(f"{host.rpartition(':')[0]}:1/{database}")


def test_a_transaction_that_cannot_begin_waits_for_the_database(postgres: Database) -> None:
    with pytest.raises(AbortableError) as raised:
        SqlTransaction(Owner(down(postgres))).begin()
    assert waits_for(raised.value)


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(lambda one: one.add(grouped([Insert(numbers, {"n": 1})], [numbers])), id="a row"),
        pytest.param(lambda one: one.commit(), id="before COMMIT"),
    ],
)
def test_a_transaction_whose_connection_is_lost_waits_for_the_database(
    transaction: SqlTransaction, postgres: Database, act: Callable[[SqlTransaction], None]
) -> None:
    lose(transaction, postgres)
    with pytest.raises(AbortableError) as raised:
        act(transaction)
    assert waits_for(raised.value)
    assert "psycopg" in repr(raised.value.__cause__ and raised.value.__cause__.__cause__), (
        "what the driver said is kept"
    )


def test_a_transaction_that_the_database_has_ended_by_its_timeout_is_aborted(postgres: Database) -> None:
    with postgres.judge.begin() as connection:
        numbers.create(connection)
    owner = Owner(postgres.engine())
    owner.limits = Limits(5.0, 0.3)
    transaction = SqlTransaction(owner)
    transaction.begin()
    alive, backend = (
        "SELECT count(*) FROM pg_stat_activity WHERE pid = :pid",
        backend_of(transaction.connection),
    )
    assert Deadline(PATIENCE_S).wait_for(lambda: postgres.seen(alive, pid=backend) == [(0,)])
    with pytest.raises(AbortableError):
        transaction.commit()
    assert transaction.state is TransactionState.ABORTED


def test_a_transaction_whose_end_fails_at_the_driver_is_over_all_the_same(
    transaction: SqlTransaction,
) -> None:
    connection: Any = transaction.connection

    class Closing:
        """As where the rollback inside of close() fails with what SQLAlchemy takes for no lost connection."""

        closed = False

        def close(self) -> None:
            connection.close()
            self.closed = True
            raise psycopg.errors.TransactionTimeout("terminating connection due to transaction timeout")

        def invalidate(self) -> None:
            connection.invalidate()

    transaction._connection = Closing()  # type: ignore[assignment]
    transaction.abort()
    assert transaction.state is TransactionState.ABORTED


def test_a_relay_that_cannot_read_waits_for_the_database(postgres: Database) -> None:
    source = RelaySource(
        down(postgres), Outbox(MetaData()), WHOLE, RelayMark("group", "shard", "owner"), LIMITS
    )
    entry: Any = SimpleNamespace(position=None, relayed=0)
    with pytest.raises(AbortableError) as raised:
        source.read(entry, 10)
    assert waits_for(raised.value)


def test_a_deadlock_is_a_try_that_failed(transaction: SqlTransaction) -> None:
    with pytest.raises(AbortableError) as raised:
        transaction.add([Raising(psycopg.errors.DeadlockDetected("deadlock"))])
    assert not waits_for(raised.value)


class Raising:
    """Changes that the database refuses."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def apply(self, *_: object) -> int:
        raise self._error
