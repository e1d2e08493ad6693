"""Faults of a session that writes to a database: connections cut at a COMMIT, members that come and go, a server that is killed."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import IntegrityError

from eos import AbortTransaction, InputBatch, Partition
from eos.errors import ConfigError, EosError, FencedError, OffsetGapError, UnavailableError, UsageError
from eos.events import Event, TransactionEnded
from eos.exits import ExitCode, exit_code_of
from eos.local import LocalPostgres
from eos.sql.session import SqlSession
from tests.support.cutting_proxy import CuttingProxy
from tests.support.databases import Database
from tests.support.observer import PlainRecord, produce_plain, unique
from tests.support.patience import PATIENCE_S
from tests.support.processes import running
from tests.support.settings import settings_of

if TYPE_CHECKING:
    from tests.conftest import NewTopic

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("sql-session")]

RECORDS = 200


class Books:
    """A topic of two partitions with numbers in it, and a table that gets each number once."""

    def __init__(self, bootstrap: str, source: str, database: Database) -> None:
        self.source, self.database, self.group = source, database, unique("books")
        self._bootstrap = bootstrap
        database.with_tables().run("CREATE TABLE numbers (n INTEGER NOT NULL, source INTEGER NOT NULL)")
        self.feed(range(RECORDS))
        self.events: list[Event] = []

    def feed(self, numbers: range) -> None:
        records = [PlainRecord(b"%d" % n, partition=n % 2) for n in numbers]
        produce_plain(self._bootstrap, self.source, records)

    def session(
        self, engine: Engine | None = None, partition: int | None = None, **changes: object
    ) -> SqlSession:
        given: dict[str, object] = {
            "group": self.group,
            "input__start": "earliest",
            "input__fetch_records": 20,
            "sql__url": self.database.url,
            "transaction__timeout_ms": 10_000,
        }
        if partition is not None:
            given |= {"ownership__mode": "partition", "ownership__partitions": [f"{self.source}:{partition}"]}
        return SqlSession(
            settings_of(self._bootstrap, **(given | changes)),
            app="books",
            inputs=[self.source],
            engine=engine,
            partition=None if partition is None else Partition(self.source, partition),
            until_caught_up=True,
            listener=self.events.append,
        )

    def run(
        self,
        session: SqlSession,
        at_end: Callable[[int, Connection], Any] = lambda _nth, _connection: None,
        goes_on: tuple[type[BaseException], ...] = (),
    ) -> None:
        """Until all is committed; ``at_end`` is called at the end of each block with its number."""
        deadline = time.monotonic() + PATIENCE_S
        for nth, batch in enumerate(session, 1):
            assert time.monotonic() < deadline
            with suppress(*goes_on), session.transaction(batch) as connection:
                write(connection, batch)
                at_end(nth, connection)

    def roll_back(self, session: SqlSession) -> None:
        """A block that rolls back by itself."""
        with session.transaction(session.fetch(20, 10)) as connection:
            connection.execute(text("INSERT INTO numbers VALUES (-1, 0)"))
            raise AbortTransaction

    def numbers(self) -> list[int]:
        return [n for (n,) in self.database.seen("SELECT n FROM numbers ORDER BY n")]

    def positions(self) -> dict[int, int]:
        rows = self.database.seen("SELECT partition, next_offset FROM eos_progress ORDER BY 1")
        return {partition: offset for partition, offset in rows}  # noqa: C416 - of tuples, for the type checker

    def assert_exact(self, records: int = RECORDS) -> None:
        assert self.numbers() == list(range(records))
        assert self.positions() == {0: records // 2, 1: records // 2}


def write(connection: Connection, batch: InputBatch) -> None:
    rows = [{"n": int(record.value or b""), "source": record.partition} for record in batch]
    connection.execute(text("INSERT INTO numbers VALUES (:n, :source)"), rows)


@pytest.fixture
def books(bootstrap: str, topic: NewTopic, postgres: Database) -> Books:
    return Books(bootstrap, topic("numbers", partitions=2), postgres)


def test_every_record_is_a_row_once_also_over_several_runs(books: Books) -> None:
    for run in range(2):
        with books.session() as session:
            books.run(session)
            assert session.committed_offsets == {
                Partition(books.source, p): RECORDS * (run + 1) // 2 for p in (0, 1)
            }
        books.assert_exact(RECORDS * (run + 1))
        books.feed(range(RECORDS * (run + 1), RECORDS * (run + 2)))
    rows = books.database.seen("SELECT topic_id, metadata, leader_epoch, app FROM eos_progress")
    assert all(
        row[0] and f"topic={row[0]}" in row[1] and row[2] is not None and row[3] == "books" for row in rows
    )


def test_every_record_is_a_row_once_in_sqlite(bootstrap: str, topic: NewTopic, sqlite: Database) -> None:
    books = Books(bootstrap, topic("numbers", partitions=2), sqlite)
    with books.session() as session:
        books.run(session, lambda nth, _: (_ for _ in ()).throw(KeyError) if nth == 2 else None, (KeyError,))
    books.assert_exact()


def test_an_exception_of_the_caller_s_rolls_back_goes_on_untouched_and_the_batch_comes_again(
    books: Books,
) -> None:
    with books.session() as session:
        batch = session.fetch(20, 10)
        mine = KeyError("mine")
        with pytest.raises(KeyError) as caught, session.transaction(batch) as connection:
            write(connection, batch)
            raise mine
        assert caught.value is mine
        books.roll_back(session)
        assert books.numbers() == []
        books.run(session)
    books.assert_exact()


@pytest.mark.parametrize("code", ["40001", "40P01", "55P03", "57014", "57P03"])
def test_what_a_new_transaction_may_put_right_ends_the_block_quietly(books: Books, code: str) -> None:
    def at_end(nth: int, connection: Connection) -> None:
        if nth in (1, 3):
            connection.execute(text(f"DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{code}'; END $$"))

    with books.session() as session:
        books.run(session, at_end)
    books.assert_exact()
    assert any(isinstance(event, TransactionEnded) for event in books.events)


def test_a_backend_that_is_ended_inside_a_block_or_before_its_commit_costs_nothing_but_time(
    books: Books,
) -> None:
    def at_end(nth: int, connection: Connection) -> None:
        if nth in (1, 4):
            pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
            books.database.run("SELECT pg_terminate_backend(:pid, 5000)", pid=pid)
            if nth == 4:
                connection.execute(text("SELECT 1"))

    with books.session() as session:
        books.run(session, at_end)
    books.assert_exact()


@pytest.mark.parametrize("arrives", [True, False])
def test_a_commit_without_an_answer_is_settled_and_the_session_goes_on(
    books: Books, *, arrives: bool
) -> None:
    url = books.database.judge.url
    with CuttingProxy(url.port or 0) as proxy:

        def at_end(nth: int, _: Connection) -> None:
            if nth in (2, 4):
                proxy.cut_at(b"COMMIT", arrives=arrives)

        through = url.set(port=proxy.port).render_as_string(hide_password=False)
        with books.session(sql__url=through) as session:
            books.run(session, at_end)
    books.assert_exact()
    outcomes = [event.outcome for event in books.events if isinstance(event, TransactionEnded)]
    assert outcomes.count("unresolved") == 2


@pytest.mark.parametrize("call", ["commit", "rollback", "close"])
def test_a_block_that_ends_its_own_transaction_is_refused_and_nothing_is_written(
    books: Books, call: str
) -> None:
    with books.session() as session, pytest.raises(UsageError, match="inside the block"):
        books.run(session, lambda _, connection: getattr(connection, call)())
    assert books.numbers() == []
    assert set(books.positions().values()) == {0}


def test_a_row_that_the_database_refuses_goes_on_untouched(books: Books) -> None:
    with books.session() as session, pytest.raises(IntegrityError):
        books.run(
            session, lambda _, connection: connection.execute(text("INSERT INTO numbers VALUES (NULL, 0)"))
        )
    assert books.numbers() == []


def test_an_error_that_the_block_swallows_is_refused(books: Books) -> None:
    """PostgreSQL would answer the COMMIT as if it had been one."""

    def at_end(_: int, connection: Connection) -> None:
        with suppress(IntegrityError):
            connection.execute(text("INSERT INTO numbers VALUES (NULL, 0)"))

    with books.session() as session, pytest.raises(UsageError, match="the code went on"):
        books.run(session, at_end)
    assert books.numbers() == []


def test_a_savepoint_may_fail(books: Books) -> None:
    def at_end(_: int, connection: Connection) -> None:
        with suppress(IntegrityError), connection.begin_nested():
            connection.execute(text("INSERT INTO numbers VALUES (NULL, 0)"))

    with books.session() as session:
        books.run(session, at_end)
    books.assert_exact()


def test_a_zombie_that_wakes_up_inside_its_block_is_fenced_and_writes_nothing(books: Books) -> None:
    with books.session(partition=0) as zombie:
        batch = zombie.fetch(20, 10)
        with pytest.raises(FencedError), zombie.transaction(batch) as connection:
            write(connection, batch)
            with books.session(partition=0) as successor:
                books.run(successor)
        with pytest.raises(FencedError):
            zombie.fetch()
            with zombie.transaction(InputBatch([])) as connection:
                connection.execute(text("INSERT INTO numbers VALUES (-1, 0)"))
    assert books.numbers() == list(range(0, RECORDS, 2))


def test_members_that_come_and_go_neither_skip_nor_double_a_record(books: Books) -> None:
    stop = threading.Event()
    errors: list[BaseException] = []

    def member(ordinal: int, blocks: int) -> None:
        try:
            while not stop.is_set():
                with books.session(ownership__ordinal=ordinal, input__fetch_records=5) as session:
                    for nth, batch in enumerate(session):
                        with session.transaction(batch) as connection:
                            write(connection, batch)
                            time.sleep(0.01)
                        if nth >= blocks or stop.is_set():
                            break
                    else:
                        return
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread
            errors.append(error)

    members = [threading.Thread(target=member, args=(ordinal, 8 + ordinal)) for ordinal in range(3)]
    for one in members:
        one.start()
    for one in members:
        one.join(PATIENCE_S)
    stop.set()
    assert not errors, errors
    with books.session(ownership__ordinal=9) as session:
        books.run(session)
    books.assert_exact()


# It stands still inside its first block, until it is woken.
_SLOW = """
import os, signal, sys
from sqlalchemy import text
from eos.sql.session import SqlSession
from tests.support.processes import running
from tests.support.settings import settings_of

bootstrap, group, source, url = sys.argv[1:]
settings = settings_of(
    bootstrap, group=group, input__start="fail", sql__url=url, input__fetch_records=20,
    ownership__ordinal=0, ownership__static_membership=False, ownership__session_timeout_ms=6_000,
)
with SqlSession(settings, app="books", inputs=[source], until_caught_up=True) as session:
    for nth, batch in enumerate(session):
        with session.transaction(batch) as connection:
            rows = [{"n": int(record.value), "source": record.partition} for record in batch]
            connection.execute(text("INSERT INTO numbers VALUES (:n, :source)"), rows)
            if nth == 0:
                print("in its block", flush=True)
                os.kill(os.getpid(), signal.SIGSTOP)
print("done", flush=True)
"""


def test_a_member_whose_partitions_went_to_another_one_while_it_stood_still_goes_on_without_them(
    books: Books, tmp_path: Path, bootstrap: str
) -> None:
    """A rebalance, and no other owner of its shard: it must not end as one that is fenced."""
    with books.session():
        pass  # the first positions
    script = tmp_path / "slow.py"
    script.write_text(_SLOW)
    url = books.database.url
    with running(script, bootstrap, books.group, books.source, url) as slow:
        slow.wait_line("in its block", PATIENCE_S)
        with books.session(ownership__ordinal=1) as other:
            books.run(other)
        slow.signal(signal.SIGCONT)
        slow.wait_line("done", PATIENCE_S)
    books.assert_exact()


def test_a_position_that_went_back_while_the_session_ran_is_refused(books: Books) -> None:
    def at_end(nth: int, _: Connection) -> None:
        if nth == 4:
            books.database.run("UPDATE eos_progress SET next_offset = 0")

    with books.session() as session, pytest.raises(OffsetGapError, match="went back"):
        books.run(session, at_end)
    assert len(books.numbers()) == len(set(books.numbers())) == 60


def test_a_row_that_was_deleted_is_no_new_partition(books: Books) -> None:
    with books.session() as session:
        books.run(session)
    books.database.run("DELETE FROM eos_progress WHERE partition = 0")
    with pytest.raises(OffsetGapError, match="the row was deleted"), books.session() as session:
        books.run(session)
    assert len(books.numbers()) == RECORDS


def test_a_database_without_the_tables_or_without_a_start_is_named_with_the_fix(
    bootstrap: str, topic: NewTopic, postgres: Database
) -> None:
    books = Books(bootstrap, topic("numbers", partitions=2), postgres)
    with pytest.raises(ConfigError, match=r"nothing says where to start.*--start earliest"):
        books.session(input__start="fail").open()
    postgres.run("DROP TABLE eos_progress")
    with pytest.raises(ConfigError, match=r"lacks eos_progress\. Fix: eos sql tables"):
        books.session().open()


def test_a_database_that_does_not_answer_is_waited_for_and_then_named(books: Books) -> None:
    nowhere = books.database.judge.url.set(port=1).render_as_string(hide_password=False)
    session = books.session(
        sql__url=nowhere,
        ownership__max_poll_interval_ms=5_000,
        ownership__session_timeout_ms=4_000,
        transaction__timeout_ms=5_000,
    )
    with pytest.raises(UnavailableError) as caught:
        session.open()
    password = str(books.database.judge.url.password)
    assert password not in str(caught.value)


def test_a_pool_whose_connections_the_caller_keeps_is_waited_for_and_then_named(books: Books) -> None:
    engine = create_engine(books.database.judge.url, pool_size=1, max_overflow=0, pool_timeout=0.3)
    with books.session(engine) as session:
        for nth, batch in enumerate(session, 1):
            if nth == 3:
                threading.Timer(2.0, engine.connect().close).start()
            with session.transaction(batch) as connection:
                write(connection, batch)
    books.assert_exact()

    books.feed(range(RECORDS, RECORDS + 10))
    with (
        pytest.raises(EosError) as caught,
        books.session(engine, input__offline_timeout_ms=6_000) as session,
    ):
        books.roll_back(session)  # its partitions are claimed
        with engine.connect():
            books.run(session)
    assert exit_code_of(caught.value) == ExitCode.UNAVAILABLE
    assert "no connection of the pool became free" in str(caught.value)
    books.assert_exact()
    engine.dispose()


def test_a_database_that_is_killed_in_the_middle_and_comes_back_costs_nothing_but_time(
    books: Books, postgres_server: LocalPostgres
) -> None:
    restart = threading.Timer(2.0, postgres_server.start)

    def at_end(nth: int, _: Connection) -> None:
        if nth == 3:
            postgres_server.kill()
            restart.start()

    with books.session() as session:
        books.run(session, at_end)
    restart.join()
    books.database.judge.dispose()  # its connection was cut as well
    books.assert_exact()
