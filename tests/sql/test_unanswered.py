"""A PostgreSQL that takes what is sent and answers nothing is not waited for without end, whoever asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, text

from eos.core.transaction import TransactionState
from eos.errors import AbortableError, CommitOutcomeUnknownError, UnavailableError
from eos.local import LocalPostgres
from eos.settings import Settings
from eos.sql import waiting
from eos.sql.asking import answer
from eos.sql.engine import engine_of
from eos.sql.limits import Limits, limit
from eos.sql.transaction import SqlTransaction
from eos.sql.waiting import NoAnswerError, as_before_in_the_pool, wait_at_most
from tests.sql.test_outages import Owner, waits_for
from tests.support.databases import Database
from tests.support.patience import PATIENCE_S


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_LATER_S", 0.5)


@pytest.fixture
def silent(postgres: Database, postgres_server: LocalPostgres) -> Iterator[Callable[[], object]]:
    """Call it: from then on the server stands still, until the end of the test."""
    yield postgres_server.pause
    postgres_server.resume()


def ended(postgres: Database, call: Callable[[], Any]) -> BaseException | None:
    return postgres.beside(call).exception(PATIENCE_S)


def test_a_statement_without_an_answer_ends_a_little_behind_its_limit_and_with_its_connection(
    postgres: Database, silent: Callable[[], object]
) -> None:
    with postgres.engine().connect() as connection:
        limit(connection, Limits(0.5, 2.5))
        silent()
        began = time.monotonic()
        error = ended(postgres, lambda: connection.execute(text("SELECT 1")))
        told = getattr(error, "orig", None)
        assert isinstance(told, NoAnswerError)
        assert "no answer in 3 s" in str(told)
        assert time.monotonic() - began > 2.9
        assert connection.invalidated


def test_a_transaction_without_an_answer_is_aborted_and_the_database_is_waited_for(
    postgres: Database, silent: Callable[[], object]
) -> None:
    transaction = begun(postgres)
    silent()
    error = ended(postgres, lambda: transaction.add([Asks()]))
    assert isinstance(error, AbortableError)
    assert waits_for(error)
    transaction.abort()


def test_a_commit_without_an_answer_has_an_unknown_outcome(
    postgres: Database, silent: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction = begun(postgres)
    transaction.add([Asks()])
    monkeypatch.setattr(Owner.topics, "last_look", silent)  # what follows is COMMIT
    assert isinstance(ended(postgres, transaction.commit), CommitOutcomeUnknownError)
    assert transaction.state is TransactionState.UNRESOLVED


def test_a_question_from_outside_ends_with_what_it_was_asked_for(
    postgres: Database, silent: Callable[[], object]
) -> None:
    settings = Settings.load(environ={"EOS_SQL__URL": postgres.url, "EOS_TRANSACTION__TIMEOUT_MS": "1000"})
    engine = engine_of(settings, app="test")

    def question(connection: Connection) -> None:
        silent()
        connection.execute(text("SELECT 1"))

    error = ended(postgres, lambda: answer(engine, settings, question, timeout_s=2.0))
    engine.dispose()
    assert isinstance(error, UnavailableError)


def test_the_first_questions_of_a_new_connection_are_bounded_too(
    postgres: Database, silent: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings.load(environ={"EOS_SQL__URL": postgres.url, "EOS_TRANSACTION__TIMEOUT_MS": "1000"})
    engine = engine_of(settings, app="test")
    initialize = engine.dialect.initialize

    def initialized(connection: Connection) -> None:
        silent()
        initialize(connection)

    monkeypatch.setattr(engine.dialect, "initialize", initialized)
    assert isinstance(getattr(ended(postgres, engine.connect), "orig", None), NoAnswerError)


def test_an_engine_of_the_callers_is_not_bounded_outside_of_transactions_of_eos(postgres: Database) -> None:
    engine = create_engine(postgres.judge.url, pool_size=1, max_overflow=0)
    as_before_in_the_pool(engine)
    with engine.connect() as connection:
        limit(connection, Limits(0.1, 0.1))
    with engine.connect() as connection:
        connection.execute(text("SELECT pg_sleep(1)"))
    engine.dispose()


def begun(postgres: Database) -> SqlTransaction:
    owner = Owner(postgres.engine())
    owner.limits = Limits(30.0, 30.0)
    transaction = SqlTransaction(owner)
    transaction.begin()
    wait_at_most(transaction.connection, 0.5)
    return transaction


class Asks:
    """Changes that ask a question."""

    def apply(self, connection: Connection, _: object) -> int:
        connection.execute(text("SELECT 1"))
        return 1
