"""A session that writes to a database, on a real broker and a real database: its state is judged through a second connection."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, TopicPartition
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import OperationalError

from eos import (
    CommitOutcomeUnknownError,
    ConfigError,
    FencedError,
    InputBatch,
    OffsetGapError,
    UnavailableError,
    UsageError,
)
from eos.base.deadline import Deadline
from eos.events import Event, TransactionEnded
from eos.sql.session import SqlSession
from tests.support.databases import Database
from tests.support.jobs_for_faults import settings_for
from tests.support.observer import create_topics, load, unique
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.broker]

RECORDS, PARTITIONS = 60, 2


@pytest.fixture
def books(database: Database) -> Database:
    """A database with eos's tables and one for rows, which takes the same record twice."""
    books = database.with_tables()
    books.run("CREATE TABLE paid (number INTEGER NOT NULL)")
    return books


@pytest.fixture
def source(bootstrap: str) -> str:
    topic = unique("in")
    create_topics(bootstrap, {topic: PARTITIONS})
    load(bootstrap, topic, RECORDS, partitions=range(PARTITIONS))
    return topic


class Tables:
    """Sessions over one topic and one database."""

    def __init__(self, bootstrap: str, source: str, books: Database) -> None:
        self.source = source
        self.books = books
        self._bootstrap = bootstrap
        self.group = unique("g")
        self.told: list[Event] = []

    def session(
        self, *, app: str = "table", ordinal: int = 0, start: str = "earliest", **changed: Any
    ) -> SqlSession:
        settings = settings_for(
            self._bootstrap,
            group=self.group,
            ownership__ordinal=ordinal,
            input__start=start,
            input__fetch_records=10,
            **changed,
        )
        return SqlSession(
            settings,
            app=app,
            inputs=[self.source],
            engine=self.books.engine(),
            until_caught_up=True,
            listener=self.told.append,
        )

    def run(self, **arguments: Any) -> None:
        """To the end of the input."""
        with self.session(**arguments) as session:
            for batch in session:
                with session.transaction(batch) as connection:
                    write(connection, batch)

    def require_exact(self, *more: int) -> None:
        """Each record once, and the positions behind the last ones."""
        rows = [number for (number,) in self.books.seen("SELECT number FROM paid")]
        assert Counter(rows) == Counter([*range(RECORDS), *more])
        assert self.positions() == RECORDS + len(more)

    def positions(self) -> int:
        return int(self.books.seen("SELECT coalesce(sum(next_offset), 0) FROM eos_progress")[0][0])


@pytest.fixture
def tables(bootstrap: str, source: str, books: Database) -> Tables:
    return Tables(bootstrap, source, books)


def write(connection: Connection, batch: InputBatch) -> None:
    connection.execute(
        text("INSERT INTO paid (number) VALUES (:number)"),
        [{"number": int(value or b"")} for value in batch.values],
    )


def test_rows_and_positions_are_committed_together_and_a_restart_goes_on(
    tables: Tables, bootstrap: str
) -> None:
    tables.run()
    tables.require_exact()
    load(bootstrap, tables.source, 20, "9", partitions=range(PARTITIONS))
    tables.run(start="fail")
    tables.require_exact(*(int(f"9{n}") for n in range(20)))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")  # from Python 3.12 on
def test_statement_of_a_fork_on_the_connection_of_a_block_is_refused_and_not_lost_in_silence(
    tables: Tables,
) -> None:
    with tables.session() as session:
        for batch in session:
            with session.transaction(batch) as connection:
                write(connection, batch)
                if not (child := os.fork()):
                    try:
                        with pytest.raises(UsageError, match="is a fork of it"):
                            write(connection, batch)
                        with pytest.raises(UsageError, match="is a fork of it"):
                            connection.commit()
                        os._exit(0)
                    finally:
                        os._exit(1)
                assert os.waitpid(child, 0)[1] == 0
    tables.require_exact()


def test_exception_of_the_block_rolls_back_and_goes_on_untouched(tables: Tables) -> None:
    broken = ValueError("a row's own")
    with tables.session() as session:
        with pytest.raises(ValueError, match="own") as raised:
            for batch in session:
                with session.transaction(batch) as connection:
                    write(connection, batch)
                    raise broken
        assert raised.value is broken
        assert tables.books.seen("SELECT count(*) FROM paid") == [(0,)]
        assert tables.positions() == 0
        for batch in session:
            with session.transaction(batch) as connection:
                write(connection, batch)
    tables.require_exact()


def test_error_of_a_row_is_the_callers_own(tables: Tables) -> None:
    tables.books.run("CREATE UNIQUE INDEX once ON paid (number)", "INSERT INTO paid VALUES (3)")
    with tables.session() as session, pytest.raises(Exception, match=r"(?i)unique"):
        for batch in session:
            with session.transaction(batch) as connection:
                write(connection, batch)
    rows = tables.books.seen("SELECT count(*) FROM paid")[0][0]
    assert rows == tables.positions() + 1


@pytest.mark.parametrize("how", ["commit", "raw"])
def test_commit_inside_the_block_is_refused(tables: Tables, how: str) -> None:
    with tables.session() as session, pytest.raises(UsageError, match="COMMIT inside the block"):
        for batch in session:
            with session.transaction(batch) as connection:
                if how == "commit":
                    write(connection, batch)
                    connection.commit()
                else:
                    connection.exec_driver_sql("COMMIT")
                    write(connection, batch)
    assert tables.positions() == 0
    assert tables.books.seen("SELECT count(*) FROM paid") == [(0,)]


def test_zombie_whose_partitions_another_owner_has_claimed_commits_nothing(tables: Tables) -> None:
    zombie = tables.session(ownership__static_membership=False)
    with zombie:
        batch = next(iter(zombie))
        with pytest.raises(FencedError, match="another owner"), zombie.transaction(batch) as connection:
            write(connection, batch)
            # As an owner that takes all partitions over while this one stands still.
            tables.books.run(
                "UPDATE eos_progress SET owner = '#0 another'"
            ) if tables.books.is_postgresql else None
            if not tables.books.is_postgresql:
                connection.execute(text("UPDATE eos_progress SET owner = '#0 another'"))
    assert tables.books.seen("SELECT count(*) FROM paid") == [(0,)]


def test_position_that_went_back_is_refused_not_processed_twice(tables: Tables) -> None:
    """A dump that was restored, or a replica without the last commits."""
    with tables.session() as session, pytest.raises(OffsetGapError, match="went back"):
        for number, batch in enumerate(session):
            with session.transaction(batch) as connection:
                write(connection, batch)
            if number == 1:
                tables.books.run("UPDATE eos_progress SET next_offset = 0 WHERE next_offset > 0")


def test_positions_are_mirrored_for_tools_and_a_database_that_went_back_is_refused_at_the_next_start(
    tables: Tables, bootstrap: str
) -> None:
    """Also where no owner runs: a dump of an earlier time was restored meanwhile."""
    tables.run()
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": tables.group})
    try:
        found = reader.committed(
            [TopicPartition(tables.source, n) for n in range(PARTITIONS)], timeout=PATIENCE_S
        )
        assert sum(one.offset for one in found) == RECORDS
    finally:
        reader.close()
    tables.books.run(
        "UPDATE eos_progress SET next_offset = next_offset - 1 WHERE partition = 0", "DELETE FROM paid"
    )
    with pytest.raises(OffsetGapError, match="copy from an earlier time"):
        tables.run()
    assert tables.books.seen("SELECT count(*) FROM paid") == [(0,)]


def test_missing_tables_name_the_command(bootstrap: str, source: str, database: Database) -> None:
    with pytest.raises(ConfigError, match=r"eos_progress.*eos sql tables"):
        Tables(bootstrap, source, database).session().open()


def test_nothing_says_where_to_start(tables: Tables) -> None:
    with pytest.raises(ConfigError, match=r"input\.start"):
        tables.session(start="fail").open()
    assert tables.books.seen("SELECT count(*) FROM eos_progress") == [(0,)]


def test_positions_of_another_job_are_refused(tables: Tables) -> None:
    tables.run()
    with pytest.raises(ConfigError, match=r"'table'.*'other'"):
        tables.session(app="other").open()


def test_row_of_a_position_that_was_deleted_is_refused(tables: Tables) -> None:
    tables.run()
    tables.books.run("DELETE FROM eos_progress WHERE partition = 1")
    with pytest.raises(OffsetGapError, match="the row was deleted"):
        tables.run()


class OnPostgres:
    """Faults that a server with many connections can have."""

    @pytest.fixture
    def books(self, postgres: Database) -> Database:
        books = postgres.with_tables()
        books.run("CREATE TABLE paid (number INTEGER NOT NULL)")
        return books


class TestFaultsOfPostgres(OnPostgres):
    @pytest.mark.parametrize("when", ["before", "after"])
    def test_connection_that_breaks_at_commit(
        self, tables: Tables, when: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """COMMIT is not answered: whether it has happened is read from the position."""
        broken: list[int] = []
        whole = Connection.commit

        def commit(connection: Connection) -> None:
            driver: Any = connection.connection.driver_connection
            pid = driver.info.backend_pid
            if len(broken) == 3:
                whole(connection)
                return
            broken.append(pid)
            if when == "after":
                whole(connection)
            tables.books.run("SELECT pg_terminate_backend(:pid)", pid=pid)
            alive = "SELECT count(*) FROM pg_stat_activity WHERE pid = :pid"
            assert Deadline(PATIENCE_S).wait_for(lambda: tables.books.seen(alive, pid=pid) == [(0,)])
            if when == "before":
                whole(connection)
            raise OperationalError("COMMIT", None, psycopg.OperationalError("the answer is lost"))

        monkeypatch.setattr(Connection, "commit", commit)
        tables.run()
        tables.require_exact()
        ended = [event.outcome for event in tables.told if isinstance(event, TransactionEnded)]
        assert ended.count("unresolved") == len(broken) == 3

    def test_commit_without_an_answer_of_a_block_without_input_is_not_passed_over(
        self, tables: Tables, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No position shows whether it has happened."""
        whole = Connection.commit

        def commit(connection: Connection) -> None:
            whole(connection)
            raise OperationalError("COMMIT", None, psycopg.OperationalError("the answer is lost"))

        with tables.session() as session:
            for batch in session:
                with session.transaction(batch) as connection:
                    write(connection, batch)
                break
            with monkeypatch.context() as patched:
                patched.setattr(Connection, "commit", commit)
                with (
                    pytest.raises(CommitOutcomeUnknownError, match="no input"),
                    session.transaction(InputBatch([])) as connection,
                ):
                    connection.execute(text("SELECT 1"))
            for batch in session:
                with session.transaction(batch) as connection:
                    write(connection, batch)
        tables.require_exact()

    def test_connection_that_breaks_inside_the_block_ends_it_quietly(self, tables: Tables) -> None:
        broken = 0
        with tables.session() as session:
            for batch in session:
                with session.transaction(batch) as connection:
                    if broken < 3:
                        broken += 1
                        pid = connection.scalar(text("SELECT pg_backend_pid()"))
                        tables.books.run("SELECT pg_terminate_backend(:pid)", pid=pid)
                    write(connection, batch)
        tables.require_exact()

    def test_serialization_failure_and_deadlock_are_tried_again(self, tables: Tables) -> None:
        failed = 0
        with tables.session() as session:
            for batch in session:
                with session.transaction(batch) as connection:
                    write(connection, batch)
                    if failed < 2:
                        failed += 1
                        code = ["40001", "40P01"][failed - 1]
                        connection.execute(
                            text(f"DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{code}'; END $$")
                        )
        tables.require_exact()
        assert failed == 2

    def test_owner_that_stands_still_with_its_transaction_open_is_replaced(self, tables: Tables) -> None:
        """It holds locks on rows of the user's until the server ends it; its position is free at once."""
        paused = tables.session(transaction__timeout_ms=20_000, ownership__static_membership=False)
        with paused:
            batch = next(iter(paused))
            with suppress(FencedError), paused.transaction(batch) as connection:
                write(connection, batch)
                tables.books.run(
                    "UPDATE eos_progress SET owner = '#0 another', next_offset = next_offset + 1"
                )
        assert tables.books.seen("SELECT count(*) FROM paid") == [(0,)]

    def test_database_that_is_away_for_a_moment_is_waited_for(
        self, tables: Tables, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        refused = 0
        whole = Engine.connect

        def connect(engine: Engine) -> Connection:
            nonlocal refused
            if 3 <= (refused := refused + 1) < 8:
                raise OperationalError("connect", None, psycopg.OperationalError("connection refused"))
            return whole(engine)

        with tables.session() as session:
            monkeypatch.setattr(Engine, "connect", connect)
            for batch in session:
                with session.transaction(batch) as connection:
                    write(connection, batch)
            monkeypatch.undo()
        tables.require_exact()

    def test_table_that_another_session_has_locked_is_no_wait_without_an_end(self, tables: Tables) -> None:
        """As an ALTER TABLE that waits for a transaction which nobody ends."""
        with tables.books.engine().connect() as other:
            other.execute(text("LOCK TABLE eos_progress IN ACCESS EXCLUSIVE MODE"))
            with pytest.raises(UnavailableError, match="LockNotAvailable"):
                tables.session(transaction__timeout_ms=2_000).open()
