"""Copying: new rows by PostgreSQL's COPY, where it stores just what INSERT would store, at a fifth of the time.

COPY takes texts, and INSERT takes values with the types that the columns are declared with. The two differ where a value is of another
type than its column (``True`` in a text column), where the declaration is not the table's (a scale that rounds), and where PostgreSQL
treats COPY in another way (rules, row-level security, identity columns). Such rows are inserted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy import Column, Connection, Table
from sqlalchemy.dialects import postgresql

from eos.sql.dialect import Dialect

COPIED_AT_LEAST = 10  # below, the statements of COPY cost more than those of INSERT
_CACHE = "eos_copy"  # in Connection.info, which lives as long as the connection
_TEXT = ("text", "character varying")
_TYPES: dict[type, tuple[str, frozenset[type]]] = {
    sa.SmallInteger: ("smallint", frozenset({int})),
    sa.Integer: ("integer", frozenset({int})),
    sa.BigInteger: ("bigint", frozenset({int})),
    sa.Boolean: ("boolean", frozenset({bool})),
    sa.LargeBinary: ("bytea", frozenset({bytes})),
    sa.Date: ("date", frozenset({date})),
    sa.Uuid: ("uuid", frozenset({UUID})),
    postgresql.UUID: ("uuid", frozenset({UUID})),
    postgresql.BYTEA: ("bytea", frozenset({bytes})),
    sa.String: ("", frozenset({str})),
    sa.Text: ("", frozenset({str})),
    sa.Unicode: ("", frozenset({str})),
    sa.UnicodeText: ("", frozenset({str})),
    sa.Numeric: ("numeric", frozenset({Decimal, int})),
    sa.Float: ("double precision", frozenset({float})),
    sa.Double: ("double precision", frozenset({float})),
    sa.DateTime: ("timestamp", frozenset({datetime})),
}
# Each by its name in capitals too, which SQLAlchemy has as a class of its own.
_BY_CLASS = _TYPES | {
    capital: entry
    for one, entry in _TYPES.items()
    if isinstance(capital := getattr(sa, one.__name__.upper(), None), type)
}
_COLUMNS = sa.text(
    "SELECT a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid "
    "WHERE c.oid = to_regclass(:name) AND a.attnum > 0 AND NOT a.attisdropped AND a.attidentity = '' AND a.attgenerated = '' "
    "AND c.relkind IN ('r', 'p') AND NOT c.relhasrules AND NOT c.relrowsecurity"
)


class Copy:
    """COPY into some columns of a table.

    Args:
        statement: of the driver.
        columns: as they are declared, in the order of a row's values.
    """

    def __init__(self, statement: sql.Composed, columns: Sequence[Column[Any]]) -> None:
        self._statement = statement
        self._types = [_BY_CLASS[type(column.type)][1] for column in columns]
        self._naive = [n for n, column in enumerate(columns) if _is_naive(column)]

    def takes(self, rows: Sequence[Sequence[Any]]) -> bool:
        """Whether each value is of its column's own type."""
        by_column = list(zip(*rows, strict=True))
        return all(
            found <= types or found - {type(None)} <= types
            for types, found in zip(
                self._types, (set(map(type, column)) for column in by_column), strict=True
            )
        ) and all(value is None or value.tzinfo is None for n in self._naive for value in by_column[n])

    def run(self, connection: Connection, rows: Sequence[Sequence[Any]]) -> None:
        """Copy them.

        Raises:
            psycopg.Error: as INSERT would.
        """
        driver: Any = connection.connection.driver_connection
        try:
            with driver.cursor() as cursor, cursor.copy(self._statement) as copy:
                write: Callable[[Sequence[Any]], None] = copy.write_row
                for row in rows:
                    write(row)
        except psycopg.Error:
            if driver.closed:  # as SQLAlchemy does behind its own statements
                connection.invalidate()
            raise


def copy_into(connection: Connection, table: Table, names: Sequence[str]) -> Copy | None:
    """COPY into these columns; None where it is not known to do what INSERT does."""
    if connection.dialect.name != Dialect.POSTGRESQL:
        return None
    known: dict[tuple[Table, tuple[str, ...]], Copy | None] = connection.info.setdefault(_CACHE, {})
    key = (table, tuple(names))
    if key not in known:
        known[key] = _made(connection, table, names)
    return known[key]


def _made(connection: Connection, table: Table, names: Sequence[str]) -> Copy | None:
    full = sql.Identifier(*filter(None, (table.schema, table.name)))
    found = connection.execute(_COLUMNS, {"name": full.as_string()})
    there: dict[str, str] = {row[0]: row[1] for row in found}
    columns = [table.columns[name] for name in names]
    if not all(_is_as_declared(column, there.get(column.name, "")) for column in columns):
        return None
    if _filled_by_python(table, names):
        return None
    listed = sql.SQL(", ").join(sql.Identifier(column.name) for column in columns)
    return Copy(sql.SQL("COPY {} ({}) FROM STDIN").format(full, listed), columns)


def _filled_by_python(table: Table, names: Collection[str]) -> bool:
    """Whether SQLAlchemy adds something to an INSERT of these columns."""
    return any(column.name not in names and column.default is not None for column in table.columns)


def _is_as_declared(column: Column[Any], there: str) -> bool:
    """Whether the table has the column, ``there`` with this type, as it is declared."""
    kind: Any = column.type
    if type(kind) not in _BY_CLASS:
        return False
    name = _BY_CLASS[type(kind)][0]
    if not name:
        # INSERT casts to VARCHAR without a length, so the table's own decides in both.
        return there.partition("(")[0] in _TEXT and kind.collation is None
    if name == "numeric":  # sent without a cast: the table's own scale rounds in both
        return there.partition("(")[0] == name
    if name == "timestamp":
        name = f"timestamp {'with' if kind.timezone else 'without'} time zone"
    return there == name


def _is_naive(column: Column[Any]) -> bool:
    """Whether INSERT would bring a time into the session's time zone, and COPY would drop its own."""
    return isinstance(column.type, sa.DateTime) and not column.type.timezone
