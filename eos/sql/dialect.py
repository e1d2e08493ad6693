"""Dialect: the databases that eos keeps a position in; any other is refused with the reason."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from psycopg.pq import TransactionStatus
from sqlalchemy import Connection

from eos.errors import ConfigError, UsageError

_SQLITE_AT_LEAST = (3, 35)  # RETURNING
_POSTGRESQL_AT_LEAST = (13,)  # xid8


class Dialect(StrEnum):
    """By the names of SQLAlchemy."""

    POSTGRESQL = "postgresql"
    SQLITE = "sqlite"


def dialect_named(name: str) -> Dialect:
    """The dialect of that name.

    Raises:
        ConfigError: eos keeps no position in such a database.
    """
    try:
        return Dialect(name)
    except ValueError:
        raise ConfigError(
            f"eos keeps positions and outboxes in PostgreSQL or SQLite, and this database is {name!r}: whether its row locks hold "
            "back an owner that was replaced, and in which order its transactions become visible, was tested with those two only. "
            "Fix: sql.url = postgresql://… or sqlite:///…; or let another program copy a topic that eos writes"
        ) from None


def dialect_of(connection: Connection) -> Dialect:
    """The dialect of a connection on which eos can keep its promise.

    Raises:
        ConfigError: another database, an older version, or another driver.
    """
    dialect = dialect_named(connection.dialect.name)
    version = connection.dialect.server_version_info or ()
    least, driver = {
        Dialect.POSTGRESQL: (_POSTGRESQL_AT_LEAST, "psycopg"),
        Dialect.SQLITE: (_SQLITE_AT_LEAST, "pysqlite"),
    }[dialect]
    if connection.dialect.driver != driver:
        raise ConfigError(
            f"the engine reaches {dialect} by the driver {connection.dialect.driver!r}, whose errors eos cannot tell apart. "
            f"Fix: create_engine('{dialect}+{driver}://…')"
        )
    if version < least:
        raise ConfigError(
            f"{dialect} {_dotted(version)} is too old. Fix: {_dotted(least)} or newer is needed"
        )
    return dialect


def require_transaction(connection: Connection) -> None:
    """Check that a transaction is open; call it behind the statement that began it. Asks nobody but the driver.

    Raises:
        UsageError: the connection commits each statement by itself, or a statement has failed and the code went on.
    """
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == Dialect.SQLITE:
        is_open = driver.in_transaction
    else:
        status = driver.info.transaction_status
        if status == TransactionStatus.INERROR:
            raise UsageError(
                "a statement of the transaction has failed, and the code went on: PostgreSQL answers its COMMIT without an error, and "
                "rolls back. Fix: let the error leave the block, or put a statement that may fail into connection.begin_nested()"
            )
        is_open = status == TransactionStatus.INTRANS
    if not is_open:
        raise UsageError(
            "the connection commits each statement by itself (AUTOCOMMIT), so rows and position would not be in one transaction. "
            "Fix: an engine without isolation_level='AUTOCOMMIT'"
        )


def begin_snapshot(connection: Connection) -> None:
    """Begin a transaction whose statements all see the database as it is at the first one."""
    if connection.dialect.name == Dialect.SQLITE:
        connection.exec_driver_sql("BEGIN")
    else:
        connection.execution_options(isolation_level="REPEATABLE READ")


def _dotted(version: tuple[object, ...]) -> str:
    return ".".join(map(str, version)) or "of an unknown version"
