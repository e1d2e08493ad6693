"""Rows that are copied are stored as rows that are inserted: the same values, the same refusals. Judged through another connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import BigInteger, Column, Engine, Integer, MetaData, Table
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.types import TypeDecorator

from eos.sql import Delete, Insert, InsertBatch, Upsert, UpsertBatch
from eos.sql.changes import Rows, checked, grouped
from eos.sql.classify import Kind, classify
from eos.sql.copying import COPIED_AT_LEAST, copy_into
from tests.support.databases import Database

ROWS = COPIED_AT_LEAST + 2


class Lower(TypeDecorator[str]):
    impl = sa.String
    cache_ok = True

    def process_bind_param(self, value: str | None, _: Any) -> str | None:
        return value and value.lower()


class Case(NamedTuple):
    """A declared type, the column's own in the table, and a value that is given."""

    declared: Any
    there: str
    value: Any


COPIED = {
    "integer": Case(Integer, "integer", -7),
    "smallint": Case(sa.SmallInteger, "smallint", 7),
    "bigint": Case(BigInteger, "bigint", 2**62),
    "integer too large": Case(Integer, "integer", 2**40),
    "number too large for any": Case(BigInteger, "bigint", 2**80),
    "boolean": Case(sa.Boolean, "boolean", True),
    "text": Case(sa.Text, "text", "a\tb\\c\nd\r\\N\\.ü\U0001f600"),
    "null in words": Case(sa.Text, "text", "\\N"),
    "empty text": Case(sa.Text, "text", ""),
    "varchar in text": Case(sa.String(3), "text", "longer"),
    "too long": Case(sa.String(3), "varchar(3)", "longer"),
    "too long by spaces": Case(sa.String(3), "varchar(3)", "abc   "),
    "NUL": Case(sa.Text, "text", "a\0b"),
    "half of a pair": Case(sa.Text, "text", "\ud800"),
    "bytes": Case(sa.LargeBinary, "bytea", bytes(range(256))),
    "date": Case(sa.Date, "date", date(1, 2, 3)),
    "time": Case(sa.DateTime(timezone=True), "timestamptz", datetime(2024, 5, 6, 7, 8, 9, 10, UTC)),
    "time elsewhere": Case(
        sa.DateTime(timezone=True),
        "timestamptz",
        datetime(1890, 5, 6, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    ),
    "naive time as time": Case(sa.DateTime(timezone=True), "timestamptz", datetime(2024, 5, 6, 7)),  # noqa: DTZ001 - on purpose
    "naive time": Case(sa.DateTime, "timestamp", datetime(2024, 5, 6, 7, 8, 9, 10)),  # noqa: DTZ001 - on purpose
    "uuid": Case(sa.Uuid, "uuid", UUID(int=2**100)),
    "numeric": Case(sa.Numeric(10, 2), "numeric(10,2)", Decimal("12.345")),
    "numeric of another scale": Case(sa.Numeric(10, 2), "numeric(12,4)", Decimal("12.34567")),
    "numeric too large": Case(sa.Numeric(4, 2), "numeric(4,2)", Decimal(12345)),
    "no number": Case(sa.Numeric, "numeric", Decimal("NaN")),
    "whole numeric": Case(sa.Numeric, "numeric", 10**30),
    "double": Case(sa.Double, "double precision", 0.1),
    "infinite": Case(sa.Float, "double precision", float("-inf")),
    "null": Case(Integer, "integer", None),
}
INSERTED = {
    "boolean as integer": Case(Integer, "integer", True),
    "boolean as text": Case(sa.Text, "text", True),
    "float as integer": Case(Integer, "integer", 2.0),
    "float as text": Case(sa.Text, "text", 1.0),
    "time as text": Case(sa.Text, "text", datetime(2024, 5, 6, 7, tzinfo=UTC)),
    "time as date": Case(sa.Date, "date", datetime(2024, 5, 6, 23, 30, tzinfo=UTC)),
    "aware time as naive one": Case(
        sa.DateTime, "timestamp", datetime(2024, 5, 6, 7, tzinfo=timezone(timedelta(hours=-3)))
    ),
    "text as integer": Case(Integer, "integer", "12"),
    "integer as text": Case(sa.Text, "text", 12),
    "integer in bigint": Case(Integer, "bigint", 2**40),
    "text in integer": Case(sa.Text, "integer", "12"),
    "padded text": Case(sa.CHAR(5), "char(5)", "ab"),
    "double in real": Case(sa.Float, "real", 0.1),
    "type of one's own": Case(Lower, "text", "ABC"),
    "json": Case(sa.JSON, "jsonb", {"a": [1, None]}),
    "array": Case(sa.ARRAY(Integer), "integer[]", [1, 2]),
}


def table_of(case: Case) -> Table:
    return Table("things", MetaData(), Column("n", Integer, primary_key=True), Column("v", case.declared))


def written(engine: Engine, table: Table, rows: list[tuple[Any, ...]], size: int) -> None:
    with engine.begin() as connection:
        for start in range(0, len(rows), size):
            Rows(Insert, table, ("n", "v"), rows[start : start + size]).apply(connection, lambda _: "")


def refusal(call: Callable[[], None]) -> Kind | None:
    try:
        call()
    except (SQLAlchemyError, psycopg.Error, ValueError) as error:
        verdict = classify(error)
        return None if verdict is None else verdict.kind
    return None


def stored(books: Database, engine: Engine, table: Table, values: Sequence[Any], *, at_once: bool) -> Any:
    """What a second connection sees, as texts; or the kind of the refusal."""
    rows = [(n, value) for n, value in enumerate(values)]
    size = len(rows) if at_once else COPIED_AT_LEAST - 1
    kind = refusal(lambda: written(engine, table, rows, size))
    if kind is not None:
        return kind
    found = books.seen("SELECT n, v::text FROM things ORDER BY n")
    books.run("DELETE FROM things")
    return found


@pytest.mark.parametrize("name", [*COPIED, *INSERTED])
def test_what_is_copied_is_stored_or_refused_as_if_it_were_inserted(postgres: Database, name: str) -> None:
    case = (COPIED | INSERTED)[name]
    postgres.run(f"CREATE TABLE things (n integer PRIMARY KEY, v {case.there})")
    table, values = table_of(case), [case.value] * ROWS
    engine = postgres.engine()
    with engine.connect() as connection:
        copy = copy_into(connection, table, ("n", "v"))
        copied = copy is not None and copy.takes(list(enumerate(values)))
    assert copied == (name in COPIED)
    at_once = stored(postgres, engine, table, values, at_once=True)
    assert at_once == stored(postgres, engine, table, values, at_once=False)
    # With others that are of the column's own type, or NULL.
    mixed = [None, case.value] * ROWS
    assert stored(postgres, engine, table, mixed, at_once=True) == stored(
        postgres, engine, table, mixed, at_once=False
    )


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(st.text() | st.none(), min_size=ROWS, max_size=30))
def test_any_text_is_copied_as_it_is_inserted(
    texts: tuple[Database, Engine], values: list[str | None]
) -> None:
    table = table_of(Case(sa.Text, "text", ""))
    assert stored(*texts, table, values, at_once=True) == stored(*texts, table, values, at_once=False)


@pytest.fixture
def texts(postgres: Database) -> tuple[Database, Engine]:
    postgres.run("CREATE TABLE things (n integer PRIMARY KEY, v text)")
    return postgres, postgres.engine()


PLAIN = "CREATE TABLE things (n integer PRIMARY KEY, v integer)"


@pytest.mark.parametrize(
    "statements",
    [
        pytest.param((PLAIN, "CREATE RULE r AS ON INSERT TO things DO ALSO SELECT 1"), id="rules"),
        pytest.param((PLAIN, "ALTER TABLE things ENABLE ROW LEVEL SECURITY"), id="row-level security"),
        pytest.param(
            (
                "CREATE TABLE base (n integer PRIMARY KEY, v integer)",
                "CREATE VIEW things AS SELECT * FROM base",
            ),
            id="view",
        ),
        pytest.param(
            ("CREATE TABLE things (n integer PRIMARY KEY, v integer GENERATED ALWAYS AS IDENTITY)",),
            id="identity",
        ),
        pytest.param(
            ("CREATE TABLE things (n integer PRIMARY KEY, v integer GENERATED ALWAYS AS (n) STORED)",),
            id="generated",
        ),
        pytest.param(("CREATE TABLE things (n integer PRIMARY KEY)",), id="lacking column"),
    ],
)
def test_table_that_postgresql_copies_to_in_another_way_is_inserted_into(
    postgres: Database, statements: tuple[str, ...]
) -> None:
    postgres.run(*statements)
    with postgres.engine().connect() as connection:
        assert copy_into(connection, table_of(Case(Integer, "", 0)), ("n", "v")) is None


def test_column_that_sqlalchemy_fills_is_filled(postgres: Database) -> None:
    postgres.run(PLAIN)
    table = Table(
        "things", MetaData(), Column("n", Integer, primary_key=True), Column("v", Integer, default=lambda: 5)
    )
    with postgres.engine().begin() as connection:
        Rows(Insert, table, ("n",), [(n,) for n in range(ROWS)]).apply(connection, lambda _: "")
    assert postgres.seen("SELECT DISTINCT v FROM things") == [(5,)]


def test_names_that_need_quotes_are_quoted(postgres: Database) -> None:
    postgres.run(
        'CREATE SCHEMA "Odd one"', 'CREATE TABLE "Odd one"."a""b%s" (n integer PRIMARY KEY, "Ünï {}" text)'
    )
    table = Table(
        'a"b%s',
        MetaData(schema="Odd one"),
        Column("n", Integer, primary_key=True),
        Column("Ünï {}", sa.Text),
    )
    with postgres.engine().begin() as connection:
        copy = copy_into(connection, table, ("Ünï {}", "n"))
        assert copy is not None
        copy.run(connection, [(str(n), n) for n in range(ROWS)])
    assert postgres.seen('SELECT count(*), sum("Ünï {}"::int) FROM "Odd one"."a""b%s"') == [
        (ROWS, sum(range(ROWS)))
    ]


def test_transaction_of_a_copy_that_is_rolled_back_leaves_nothing(postgres: Database) -> None:
    postgres.run(PLAIN)
    with postgres.engine().connect() as connection, connection.begin() as transaction:
        rows = Rows(Insert, table_of(Case(Integer, "", 0)), ("n", "v"), [(n, n) for n in range(ROWS)])
        assert rows.apply(connection, lambda _: "") == ROWS
        assert connection.scalar(sa.text("SELECT count(*) FROM things")) == ROWS
        transaction.rollback()
    assert postgres.seen("SELECT count(*) FROM things") == [(0,)]


# --- changes by column -----------------------------------------------------------------------------------

things = table_of(Case(Integer, "", 0))


def test_changes_by_column_are_those_of_their_rows_in_the_same_order() -> None:
    one_by_one = [
        Insert(things, {"n": 1, "v": 2}),
        Insert(things, {"v": 4, "n": 3}),
        Upsert(things, {"n": 1, "v": 5}),
    ]
    by_column = [InsertBatch(things, {"v": [2, 4], "n": [1, 3]}), UpsertBatch(things, {"n": [1], "v": (5,)})]
    found = [
        [one for rows in grouped(checked("job", [things], made), [things]) for one in rows.changes()]
        for made in (one_by_one, by_column)
    ]
    assert [(type(a), a.table, {**a[1]}) for a in found[0]] == [
        (type(a), a.table, {**a[1]}) for a in found[1]
    ]


def test_batch_without_rows_changes_nothing() -> None:
    made = [InsertBatch(things, {"n": [], "v": []}), InsertBatch(things, {}), Delete(things, {"n": 1})]
    assert [rows.kind for rows in grouped(checked("job", [things], made), [things])] == [Delete]


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (
            InsertBatch(things, {"n": [1, 2], "v": [1]}),
            "InsertBatch of things: its columns differ in length: n has 2, v has 1",
        ),
        (UpsertBatch(things, {"v": [1]}), "UpsertBatch of things: it lacks n of the primary key"),
        (InsertBatch(things, {"n": [1], "w": [1]}), "things has no column w"),
    ],
    ids=["length", "key", "column"],
)
def test_batch_that_is_none_is_refused(made: InsertBatch | UpsertBatch, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        checked("job", [things], [made])
