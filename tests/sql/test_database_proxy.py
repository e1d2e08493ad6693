"""The proxy of `eos prove` before a PostgreSQL: what it does at a COMMIT is what becomes of the transaction."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg
import pytest

from eos.base.deadline import Deadline
from eos.local import LocalPostgres
from eos.prove.database_proxy import DatabaseProxy, Deed, Statement
from eos.testing.proxy import Edge
from tests.support.databases import Database
from tests.support.patience import PATIENCE_S


@pytest.fixture
def proxy(postgres: Database, postgres_server: LocalPostgres) -> Iterator[DatabaseProxy]:
    postgres.run("CREATE TABLE numbers (n int)")
    with DatabaseProxy(lambda: postgres_server.port) as proxy:
        yield proxy


@pytest.fixture
def connection(
    proxy: DatabaseProxy, postgres: Database, postgres_server: LocalPostgres
) -> Iterator[psycopg.Connection]:
    url = postgres.url.replace(f":{postgres_server.port}/", f":{proxy.port}/")
    with psycopg.connect(url) as connection:
        yield connection


def anyone(_: int) -> bool:
    return True


def is_there(postgres: Database) -> bool:
    return postgres.seen("SELECT count(*) FROM numbers") == [(1,)]


@pytest.mark.parametrize(
    ("cut", "reaches", "there"),
    [
        pytest.param(Edge.REQUEST, False, False, id="COMMIT lost"),
        pytest.param(Edge.REPLY, True, True, id="answer lost"),
        pytest.param(Edge.REQUEST, True, True, id="COMMIT late"),
    ],
)
def test_a_client_whose_connection_is_cut_at_its_commit_is_not_told_what_became_of_it(
    proxy: DatabaseProxy,
    connection: psycopg.Connection,
    postgres: Database,
    cut: Edge,
    reaches: bool,
    there: bool,
) -> None:
    connection.execute("INSERT INTO numbers VALUES (1)")
    ports: list[int] = []
    after_s = 3.0 if cut is Edge.REQUEST and reaches else 0.0
    deed = Deed(Statement.COMMIT, anyone, cut, ports.append, reaches=reaches, after_s=after_s)
    with proxy.doing(deed), pytest.raises(psycopg.OperationalError):
        connection.commit()
    if after_s:
        assert not is_there(postgres), "it has not arrived yet"
    assert Deadline(PATIENCE_S).wait_for(deed.done.is_set)
    assert deed.answer == ("COMMIT" if reaches else "")
    assert len(ports) == 1
    assert is_there(postgres) is there


def test_a_commit_that_is_delayed_is_answered_later(
    proxy: DatabaseProxy, connection: psycopg.Connection, postgres: Database
) -> None:
    connection.execute("INSERT INTO numbers VALUES (1)")
    began = time.monotonic()
    with proxy.doing(Deed(Statement.COMMIT, anyone, None, after_s=0.5)):
        connection.commit()
    assert time.monotonic() - began >= 0.5
    assert is_there(postgres)


def test_the_first_write_of_each_transaction_is_shown_also_where_it_is_prepared(
    proxy: DatabaseProxy, connection: psycopg.Connection
) -> None:
    seen: list[tuple[Statement, Edge]] = []
    proxy.observer = lambda statement, _, edge: seen.append((statement, edge))
    for number in range(8):  # psycopg prepares a statement after five times
        connection.execute("SELECT %s", (number,))
        connection.execute("INSERT INTO numbers VALUES (%s)", (number,))
        connection.execute("INSERT INTO numbers VALUES (%s)", (number,))
        connection.commit()
    of_each = [
        (one, edge) for one in (Statement.WRITE, Statement.COMMIT) for edge in (Edge.REQUEST, Edge.REPLY)
    ]
    assert seen == of_each * 8
    assert proxy.commits == 8


def test_rows_that_are_copied_are_a_write_whose_answer_comes_behind_them(
    proxy: DatabaseProxy, connection: psycopg.Connection
) -> None:
    seen: list[tuple[Statement, Edge]] = []
    proxy.observer = lambda statement, _, edge: seen.append((statement, edge))
    with connection.cursor() as cursor, cursor.copy("COPY numbers FROM STDIN") as copy:
        assert seen == [(Statement.WRITE, Edge.REQUEST)]
        copy.write_row((1,))
    assert seen == [(Statement.WRITE, Edge.REQUEST), (Statement.WRITE, Edge.REPLY)]


def test_a_deed_is_done_to_whom_it_is_meant_for_and_once(
    proxy: DatabaseProxy, connection: psycopg.Connection
) -> None:
    with proxy.doing(Deed(Statement.COMMIT, lambda _: False, Edge.REQUEST, reaches=False)):
        connection.execute("INSERT INTO numbers VALUES (1)")
        connection.commit()
    with proxy.doing(Deed(Statement.COMMIT, anyone, None)):
        for number in (2, 3):
            connection.execute("INSERT INTO numbers VALUES (%s)", (number,))
            connection.commit()
    assert proxy.cut_all() == 1
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
