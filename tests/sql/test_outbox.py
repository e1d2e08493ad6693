"""The outbox: written in the application's own transaction, and read so that no row is skipped, repeated or turned around."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
import time
from datetime import timedelta

import psycopg
import pytest
from sqlalchemy import Connection, MetaData, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from eos.errors import OffsetGapError, UsageError
from eos.headers import Headers
from eos.sql.outbox import Outbox
from eos.sql.outbox_position import OutboxPosition
from eos.sql.outbox_prune import prune
from eos.sql.outbox_read import OutboxRow, first_position, read, require_same_database
from eos.sql.tables import check, create
from tests.support.databases import Database
from tests.support.patience import PATIENCE_S

HEADERS: Headers = (("a", b"\xff"), ("a", None), ("b", "é\0".encode()))
HOUR = timedelta(hours=1)


@pytest.fixture
def outbox() -> Outbox:
    return Outbox(MetaData())


@pytest.fixture
def app(database: Database, outbox: Outbox) -> Database:
    """An application's database, whose migrations have made the table."""
    return with_outbox(database, outbox)


@pytest.fixture
def pg(postgres: Database, outbox: Outbox) -> Database:
    return with_outbox(postgres, outbox)


def with_outbox(database: Database, outbox: Outbox) -> Database:
    outbox.table.metadata.create_all(database.judge)
    return database


class Relay:
    """Reads page by page, and goes through the text of its position each time, as metadata of an offset."""

    def __init__(self, database: Database, outbox: Outbox, limit: int = 3) -> None:
        self.outbox = outbox
        self.limit = limit
        self._engine = database.engine()
        with self._engine.connect() as connection:
            self.position = first_position(connection, outbox)
        self.rows: list[OutboxRow] = []

    def turn(self) -> list[OutboxRow]:
        """One page."""
        with self._engine.connect() as connection:
            page = read(connection, self.outbox, after=self.position, limit=self.limit)
        parsed = OutboxPosition.parse(str(page.position))
        assert parsed == page.position
        self.position = page.position
        self.rows += page.rows
        return page.rows

    def drain(self) -> list[str]:
        """All that there is; the values of it."""
        before = len(self.rows)
        while self.turn():
            pass
        return [value(row) for row in self.rows[before:]]


def value(row: OutboxRow) -> str:
    return (row.value or b"").decode(errors="replace")


def put(connection: Connection, outbox: Outbox, *values: str) -> None:
    for one in values:
        outbox.add(connection, "t", b"k", one.encode())


# --- writing --------------------------------------------------------------------------------------------------


def test_a_record_is_relayed_as_it_was_added(app: Database, outbox: Outbox) -> None:
    with app.engine().begin() as connection:
        outbox.add(connection, "settlements", b"\0key", b"\xff\0value", HEADERS)
        outbox.add(connection, "settlements")
    with Session(app.engine()) as session, session.begin():
        outbox.add(session, "t", value=b"by the ORM")
    relay = Relay(app, outbox)
    relay.drain()
    assert [(*row[2:5], row.headers) for row in relay.rows] == [
        ("settlements", b"\0key", b"\xff\0value", HEADERS),
        ("settlements", None, None, ()),
        ("t", None, b"by the ORM", ()),
    ]


def test_a_record_is_added_by_any_driver(app: Database, outbox: Outbox) -> None:
    if app.is_postgresql:
        with psycopg.connect(app.url) as connection:
            connection.execute(outbox.sql("format").encode(), outbox.parameters("t", b"k", b"1", HEADERS))
    else:
        plain = sqlite3.connect(app.url.removeprefix("sqlite:///"))
        with plain:
            plain.execute(outbox.sql("qmark"), outbox.parameters("t", b"k", b"1", HEADERS))
        plain.close()
    relay = Relay(app, outbox)
    assert relay.drain() == ["1"]
    assert relay.rows[0].headers == HEADERS


def test_three_lines_of_sql_do_as_well(pg: Database, outbox: Outbox) -> None:
    pg.run(
        """INSERT INTO eos_outbox (topic, key, value, headers)
           VALUES ('t', convert_to('k', 'UTF8'), convert_to('1', 'UTF8'), '{"source": "psql"}')"""
    )
    relay = Relay(pg, outbox)
    assert relay.drain() == ["1"]
    assert (relay.rows[0].key, relay.rows[0].headers) == (b"k", (("source", b"psql"),))


def test_a_record_is_added_by_an_asynchronous_connection(pg: Database, outbox: Outbox) -> None:
    async def add() -> None:
        engine = create_async_engine(pg.judge.url)
        async with engine.begin() as connection:
            await connection.execute(outbox.statement("t", value=b"1"))
        await engine.dispose()

    asyncio.run(add())
    assert Relay(pg, outbox).drain() == ["1"]


def test_a_table_in_a_schema_of_its_own_is_written_read_pruned_and_checked(pg: Database) -> None:
    pg.run("CREATE SCHEMA billing")
    outbox = Outbox(MetaData(schema="billing"), "out_1")
    with pg.judge.begin() as connection:
        create(connection, (outbox.table,))
        check(connection, (outbox.table,))
    with psycopg.connect(pg.url) as plain:
        plain.execute(outbox.sql("format").encode(), outbox.parameters("t", None, b"1"))
    relay = Relay(pg, outbox)
    assert relay.drain() == ["1"]
    with pg.engine().begin() as connection:
        require_same_database(connection, outbox, relay.position)
        assert prune(connection, outbox, older_than=-HOUR, committed=relay.position, batch=9) == 1


@pytest.mark.parametrize(
    ("schema", "name"), [(None, "Outbox"), (None, "a b"), ("Billing", "out"), (None, "x; DROP")]
)
def test_a_name_that_needs_quotes_is_refused(schema: str | None, name: str) -> None:
    with pytest.raises(UsageError, match="Fix: small letters"):
        Outbox(MetaData(schema=schema), name)


def test_headers_that_are_no_json_are_refused_where_they_are_inserted(app: Database) -> None:
    for wrong in ("text", "3"):
        with pytest.raises(DBAPIError):
            app.run("INSERT INTO eos_outbox (topic, headers) VALUES ('t', :wrong)", wrong=wrong)


def test_headers_of_an_unknown_form_hold_up_no_other_row(app: Database, outbox: Outbox) -> None:
    app.run("INSERT INTO eos_outbox (topic, headers) VALUES ('t', '[[\"a\", 1]]')")
    with app.engine().begin() as connection:
        put(connection, outbox, "1")
    relay = Relay(app, outbox)
    assert relay.drain() == ["", "1"]
    with pytest.raises(ValueError, match="a header is"):
        _ = relay.rows[0].headers


@pytest.mark.parametrize(
    "record",
    [
        ("",),
        (None,),
        ("t", "text"),
        ("t", b"k", "text"),
        ("t", b"k", b"v", [("a", "text")]),
        ("t", b"k", b"v", [("a\0", b"")]),
    ],
)
def test_what_is_no_record_is_refused_where_it_is_added(outbox: Outbox, record: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        outbox.parameters(*record)  # type: ignore[arg-type]


# --- reading --------------------------------------------------------------------------------------------------


def test_rolled_back_records_and_savepoints_are_not_relayed_and_the_others_are(
    app: Database, outbox: Outbox
) -> None:
    with app.engine().connect() as connection:
        with connection.begin():
            put(connection, outbox, "1")
            with connection.begin_nested() as savepoint:
                put(connection, outbox, "never")
                savepoint.rollback()
            with connection.begin_nested():
                put(connection, outbox, "2")
            put(connection, outbox, "3")
        transaction = connection.begin()
        put(connection, outbox, "never")
        transaction.rollback()
    assert Relay(app, outbox).drain() == ["1", "2", "3"]


def test_a_record_that_commits_late_is_neither_skipped_nor_waited_for(pg: Database, outbox: Outbox) -> None:
    """Its id and its transaction are lower than those of records that are relayed meanwhile."""
    relay = Relay(pg, outbox)
    with pg.engine().connect() as late, late.begin() as transaction:
        put(late, outbox, "late")
        for number in range(5):
            with pg.engine().begin() as connection:
                put(connection, outbox, f"{number}")
        assert relay.drain() == ["0", "1", "2", "3", "4"]
        assert relay.drain() == []
        transaction.commit()
    assert relay.drain() == ["late"]
    assert relay.drain() == []


def test_what_depends_on_a_record_comes_behind_it(pg: Database, outbox: Outbox) -> None:
    """The second transaction has had its number before the first one began: an order by it would turn them around."""
    pg.run(
        "CREATE TABLE account (balance INTEGER)",
        "INSERT INTO account VALUES (0)",
        "CREATE TABLE log (x INTEGER)",
    )
    change = text("UPDATE account SET balance = balance + 1 RETURNING balance")
    relay = Relay(pg, outbox)

    def second(began: threading.Event) -> None:
        with pg.engine().begin() as connection:
            connection.execute(text("INSERT INTO log VALUES (1)"))
            began.set()
            put(connection, outbox, f"balance {connection.execute(change).scalar_one()}")

    began = threading.Event()
    with pg.engine().connect() as connection, connection.begin() as transaction:
        balance = connection.execute(change).scalar_one()
        beside = pg.beside(lambda: second(began))
        assert began.wait(PATIENCE_S)
        pg.wait_until_blocked()
        put(connection, outbox, f"balance {balance}")
        transaction.commit()
    beside.result(PATIENCE_S)
    assert relay.drain() == ["balance 1", "balance 2"]


def test_eight_writers_that_commit_in_another_order_than_their_ids(pg: Database, outbox: Outbox) -> None:
    """Some roll back, some use savepoints, one is open all the time; the relay reads meanwhile, in small pages."""
    relay = Relay(pg, outbox, limit=4)
    kept: list[str] = []
    mutex = threading.Lock()

    def writer(seed: int) -> None:
        draw = random.Random(seed)
        engine = pg.engine()
        for number in range(40):
            name = f"{seed}.{number}"
            with engine.connect() as connection:
                transaction = connection.begin()
                put(connection, outbox, f"{name}a")
                if draw.random() < 0.3:
                    with connection.begin_nested() as savepoint:
                        put(connection, outbox, "never")
                        savepoint.rollback()
                time.sleep(draw.random() * 0.01)
                put(connection, outbox, f"{name}b")
                if draw.random() < 0.2:
                    transaction.rollback()
                else:
                    transaction.commit()
                    with mutex:
                        kept.extend((f"{name}a", f"{name}b"))

    with pg.engine().connect() as long, long.begin() as transaction:
        put(long, outbox, "long")
        writers = [pg.beside(lambda seed=seed: writer(seed)) for seed in range(8)]  # type: ignore[misc]
        while not all(one.done() for one in writers):
            relay.turn()
        for one in writers:
            one.result()
        relay.drain()
        assert sorted(value(row) for row in relay.rows) == sorted(kept)
        assert sorted(row.id for row in relay.rows) != [row.id for row in relay.rows], (
            "the ids tell the order after all"
        )
        transaction.commit()
    relay.drain()
    values = [value(row) for row in relay.rows]
    assert sorted(values) == sorted([*kept, "long"])
    for seed in range(8):  # a writer's transactions depend on each other
        of_writer = [one for one in values if one.startswith(f"{seed}.")]
        assert of_writer == sorted(of_writer, key=lambda one: (int(one[2:-1]), one[-1]))


def test_a_prepared_transaction_is_relayed_when_it_is_committed(pg: Database, outbox: Outbox) -> None:
    relay = Relay(pg, outbox)
    with psycopg.connect(pg.url, autocommit=True) as connection:
        connection.execute("BEGIN")
        connection.execute(outbox.sql("format").encode(), outbox.parameters("t", None, b"prepared"))
        connection.execute("PREPARE TRANSACTION 'one'")
        with pg.engine().begin() as other:
            put(other, outbox, "other")
        assert relay.drain() == ["other"]
        connection.execute("COMMIT PREPARED 'one'")
    assert relay.drain() == ["prepared"]


def test_in_sqlite_the_ids_are_the_order_and_one_is_not_given_twice(sqlite: Database, outbox: Outbox) -> None:
    with_outbox(sqlite, outbox)
    relay = Relay(sqlite, outbox)
    with sqlite.engine().begin() as connection:
        put(connection, outbox, "1", "2")
    assert relay.drain() == ["1", "2"]
    with sqlite.engine().begin() as connection:
        assert prune(connection, outbox, older_than=-HOUR, committed=relay.position, batch=10) == 2
        put(connection, outbox, "3")
    assert relay.drain() == ["3"]


# --- pruning --------------------------------------------------------------------------------------------------


def left(database: Database) -> list[str]:
    return [bytes(row[0]).decode() for row in database.seen("SELECT value FROM eos_outbox ORDER BY id")]


def test_prune_deletes_old_relayed_rows_in_batches_and_never_one_that_was_not_relayed(
    app: Database, outbox: Outbox
) -> None:
    relay = Relay(app, outbox, limit=4)
    with app.engine().begin() as connection:
        put(connection, outbox, *(str(number) for number in range(6)))
    relay.turn()  # 0 to 3
    with app.engine().begin() as connection:
        assert prune(connection, outbox, older_than=HOUR, committed=relay.position, batch=10) == 0
    long_ago = "now() - interval '2 hours'" if app.is_postgresql else "datetime('now', '-2 hours')"
    app.run(f"UPDATE eos_outbox SET created_at = {long_ago}")  # noqa: S608 - one of the two above
    deleted = []
    for _ in range(4):
        with app.engine().begin() as connection:
            deleted.append(prune(connection, outbox, older_than=HOUR, committed=relay.position, batch=3))
    assert deleted == [3, 1, 0, 0]
    assert left(app) == ["4", "5"]
    assert relay.drain() == ["4", "5"]
    with app.engine().begin() as connection:
        assert prune(connection, outbox, older_than=HOUR, committed=relay.position, batch=3) == 2


def test_prune_leaves_a_row_whose_transaction_was_open_when_later_ones_were_relayed(
    pg: Database, outbox: Outbox
) -> None:
    relay = Relay(pg, outbox)
    with pg.engine().connect() as late, late.begin() as transaction:
        put(late, outbox, "late")
        with pg.engine().begin() as connection:
            put(connection, outbox, "early")
        assert relay.drain() == ["early"]
        transaction.commit()
    with pg.engine().begin() as connection:
        assert prune(connection, outbox, older_than=-HOUR, committed=relay.position, batch=10) == 1
    assert left(pg) == ["late"]
    assert relay.drain() == ["late"]


def test_two_that_prune_do_not_wait_for_each_other(pg: Database, outbox: Outbox) -> None:
    relay = Relay(pg, outbox)
    with pg.engine().begin() as connection:
        put(connection, outbox, "1", "2")
    relay.drain()
    with pg.engine().begin() as first, pg.engine().begin() as second:
        pruned = [
            prune(connection, outbox, older_than=-HOUR, committed=relay.position, batch=1)
            for connection in (first, second)
        ]
    assert pruned == [1, 1]
    assert left(pg) == []


def test_pruning_beside_a_relay_and_writers_takes_no_row_from_the_relay(pg: Database, outbox: Outbox) -> None:
    """At the position that the relay has committed last, and whatever the age of a row: as fast as it can."""
    relay = Relay(pg, outbox, limit=3)
    stop = threading.Event()

    def write(seed: int) -> None:
        engine = pg.engine()
        for number in range(60):
            with engine.begin() as connection:
                put(connection, outbox, f"{seed}.{number}a")
                time.sleep(0.002 * (seed % 2))
                put(connection, outbox, f"{seed}.{number}b")

    def clean() -> int:
        engine, count = pg.engine(), 0
        while not stop.is_set():
            with engine.begin() as connection:
                count += prune(connection, outbox, older_than=-HOUR, committed=relay.position, batch=7)
        return count

    cleaning = pg.beside(clean)
    writers = [pg.beside(lambda seed=seed: write(seed)) for seed in range(4)]  # type: ignore[misc]
    while not all(one.done() for one in writers):
        relay.turn()
    for one in writers:
        one.result()
    relay.drain()
    stop.set()
    pruned = cleaning.result(PATIENCE_S)
    expected = [f"{seed}.{number}{half}" for seed in range(4) for number in range(60) for half in "ab"]
    assert sorted(value(row) for row in relay.rows) == sorted(expected)
    assert 0 < pruned == len(expected) - len(left(pg))


# --- another database -----------------------------------------------------------------------------------------


@pytest.fixture
def relayed(pg: Database, outbox: Outbox) -> OutboxPosition:
    """The position of a relay that has read some rows."""
    relay = Relay(pg, outbox)
    for number in range(3):
        with pg.engine().begin() as connection:
            put(connection, outbox, f"{number}")
    relay.drain()
    return relay.position


def refused(database: Database, outbox: Outbox, position: OutboxPosition) -> str:
    with database.engine().connect() as connection, pytest.raises(OffsetGapError) as caught:
        require_same_database(connection, outbox, position)
    return str(caught.value)


def test_the_database_that_a_position_was_made_in_is_accepted(
    pg: Database, outbox: Outbox, relayed: OutboxPosition
) -> None:
    with pg.engine().connect() as connection:
        require_same_database(connection, outbox, relayed)


def test_a_table_that_was_made_anew_as_a_restored_dump_does_is_refused(
    pg: Database, outbox: Outbox, relayed: OutboxPosition
) -> None:
    outbox.table.drop(pg.judge)
    with_outbox(pg, outbox)
    assert "a dump that was restored" in refused(pg, outbox, relayed)


def test_a_database_that_was_copied_is_refused(pg: Database, outbox: Outbox, relayed: OutboxPosition) -> None:
    name = f"{pg.judge.url.database}_copy"
    pg.judge.dispose()
    server = pg.url.rpartition("/")[0]
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s",
            [pg.judge.url.database],
        )
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {pg.judge.url.database}".encode())
    copy = Database(f"{server}/{name}")
    try:
        assert "Fix:" in refused(copy, outbox, relayed)
    finally:
        copy.close()
        with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def test_a_database_whose_transactions_went_back_is_refused(
    pg: Database, outbox: Outbox, relayed: OutboxPosition
) -> None:
    """As one that was restored to an earlier time in its own place."""
    ahead = OutboxPosition(
        relayed.database, type(relayed.seen)(relayed.seen.xmin + 1_000, relayed.seen.xmax + 1_000)
    )
    assert "went back" in refused(pg, outbox, ahead)


def test_sqlite_s_file_from_an_earlier_time_is_refused(sqlite: Database, outbox: Outbox) -> None:
    with_outbox(sqlite, outbox)
    with sqlite.engine().begin() as connection:
        put(connection, outbox, "1")
    with sqlite.engine().connect() as connection:
        require_same_database(connection, outbox, OutboxPosition("sqlite.eos_outbox", last=1))
    assert "went back" in refused(sqlite, outbox, OutboxPosition("sqlite.eos_outbox", last=2))


def test_an_ordinary_user_of_the_database_can_relay(
    pg: Database, outbox: Outbox, relayed: OutboxPosition
) -> None:
    role = f"r{pg.judge.url.database}"
    pg.run(
        f"CREATE ROLE {role} LOGIN PASSWORD 'x'",
        f"GRANT SELECT ON eos_outbox TO {role}",
    )
    try:
        url = pg.judge.url.set(username=role, password="x").render_as_string(hide_password=False)  # noqa: S106
        with pg.engine(url).connect() as connection:
            require_same_database(connection, outbox, relayed)
            assert read(connection, outbox, after=first_position(connection, outbox), limit=10).rows
        pg._engines.pop().dispose()
    finally:
        pg.run(f"DROP OWNED BY {role}", f"DROP ROLE {role}")
