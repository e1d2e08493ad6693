"""Fitness: whether a database offers what a job needs, asked before its first transaction. It only reads.

Not looked at, because each transaction of eos sets them itself: ``idle_in_transaction_session_timeout``, ``lock_timeout``, and how long a
statement or a transaction may last. The isolation level is the connection's own: READ COMMITTED is enough, and what a higher one refuses
is tried again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sqlalchemy import Connection, Table, inspect, text

from eos.errors import ConfigError, RetriableError
from eos.settings import Settings
from eos.sql.dialect import Dialect
from eos.sql.tables import check, dead_letters, progress, relays, tables_table

_CHANGES = ("SELECT", "INSERT", "UPDATE")
# A crash takes back what such a server has answered.
_DURABLE = {
    "fsync": ("on",),
    "full_page_writes": ("on",),
    "synchronous_commit": ("on", "local", "remote_write", "remote_apply"),
}


def fitness(connection: Connection, tables: Sequence[Table], settings: Settings) -> list[str]:
    """Refuse a database in which no owner could work; return warnings about one that is less safe than it could be.

    Args:
        connection: to the database.
        tables: that the job changes.
        settings: whether dead letters are written there.

    Raises:
        ConfigError: a table is missing or older, the user lacks a right, or it may only read.
        RetriableError: the database is a standby.
    """
    on_postgresql = connection.dialect.name == Dialect.POSTGRESQL
    if on_postgresql:
        _refuse_read_only(connection)
        # Each start looks at the columns of the dead letters.
        letters = ("SELECT", "INSERT") if settings.poison.policy == "dead-letter" else ("SELECT",)
        _refuse_lacking(connection, {tables_table: ("SELECT",), progress: _CHANGES, dead_letters: letters})
    check(connection)
    _refuse_missing(connection, tables)
    if on_postgresql:
        return [*_undurable(connection), *_lacking_of(connection, tables)]
    _refuse_read_only_file(connection, progress)
    return []


def fitness_of_outbox(connection: Connection, outbox: Table) -> list[str]:
    """The same for a relay, which reads an outbox and notes how far.

    Args:
        connection: to the database.
        outbox: the table.

    Raises:
        ConfigError, RetriableError: as `fitness`.
    """
    on_postgresql = connection.dialect.name == Dialect.POSTGRESQL
    if on_postgresql:
        _refuse_read_only(connection)
        _refuse_lacking(connection, {tables_table: ("SELECT",), relays: _CHANGES, outbox: ("SELECT",)})
    check(connection, (outbox, relays))
    if on_postgresql:
        return [*_undurable(connection)]
    _refuse_read_only_file(connection, relays)
    return []


def _refuse_read_only(connection: Connection) -> None:
    if connection.scalar(text("SELECT pg_is_in_recovery()")):
        raise RetriableError("the database is a standby (pg_is_in_recovery): no row can be written there")
    if connection.scalar(text("SELECT current_setting('transaction_read_only')")) == "on":
        raise ConfigError(
            "the transactions of this user may only read (default_transaction_read_only = on). Fix: ALTER ROLE … SET "
            "default_transaction_read_only = off, or another user in sql.url"
        )


def _refuse_read_only_file(connection: Connection, table: Table) -> None:
    # SQLite says so only to a statement that writes; this one finds no row.
    try:
        connection.execute(table.delete().where(text("1 = 0")))
    except Exception as error:
        if "readonly" in str(error):
            raise ConfigError(
                "the file of sql.url can only be read. Fix: its rights, or another file"
            ) from error
        raise


def _refuse_lacking(connection: Connection, needed: Mapping[Table, Sequence[str]]) -> None:
    for table, rights in needed.items():
        if lacking := _lacking(connection, table, rights):
            raise ConfigError(f"{table.fullname}: {_fix(connection, table, lacking)}")


def _refuse_missing(connection: Connection, tables: Sequence[Table]) -> None:
    inspector = inspect(connection)
    missing = [table.fullname for table in tables if not inspector.has_table(table.name, schema=table.schema)]
    if missing:
        raise ConfigError(
            f"the database lacks {', '.join(missing)}, which the job changes. Fix: create it by your own migrations; eos makes no table "
            "of a job"
        )


def _undurable(connection: Connection) -> Iterator[str]:
    for name, durable in _DURABLE.items():
        value = connection.scalar(text("SELECT current_setting(:name)"), {"name": name})
        if value not in durable:
            yield (
                f"{name} = {value}: a crash of the server takes back transactions that it has answered. Rows and positions go back "
                f"together, but the job takes that for a copy of an earlier time, and ends with 6. Fix: {name} = on"
            )


def _lacking_of(connection: Connection, tables: Sequence[Table]) -> Iterator[str]:
    for table in tables:
        if lacking := _lacking(connection, table, _CHANGES):
            yield (
                f"{table.fullname}: {_fix(connection, table, lacking)}. A change of the transform that needs it would end the job"
            )


def _lacking(connection: Connection, table: Table, rights: Sequence[str]) -> list[str]:
    """The rights that the user has on no column of the table; none of a table that is missing."""
    quoted = connection.dialect.identifier_preparer.format_table(table)
    return [
        right
        for right in rights
        if connection.scalar(
            text("SELECT has_any_column_privilege(to_regclass(:name), :right)"),
            {"name": quoted, "right": right},
        )
        is False
    ]


def _fix(connection: Connection, table: Table, lacking: Sequence[str]) -> str:
    user, rights = connection.scalar(text("SELECT current_user")), ", ".join(lacking)
    return f"the user {user} lacks {rights}. Fix: GRANT {rights} ON {table.fullname} TO {user}"
