"""What an error of the database means to the owner of a transaction.

By SQLSTATE for PostgreSQL (its manual, appendix A) and by SQLite's own names, never by text. libpq gives no SQLSTATE for a
connection that it could not make, so a wrong password and a server that starts look alike: both are DOWN, and the message has
the server's words.
"""

from __future__ import annotations

import sqlite3
from enum import StrEnum
from typing import NamedTuple

import psycopg
from sqlalchemy.exc import DBAPIError, SQLAlchemyError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError


class Kind(StrEnum):
    """What an owner does."""

    TRANSIENT = "roll back; a new transaction may succeed"
    RECORD = "roll back; the database refuses a row at every try: find the record that made it"
    DOWN = "roll back; the database cannot work now: wait"
    STOP = "roll back and stop: a new try ends in the same way"


class Verdict(NamedTuple):
    """One error of the database.

    Attributes:
        kind: what to do.
        code: SQLSTATE, SQLite's name of the error, or "".
        says: what happened, without anything that a row or a URL holds.
        detail: the database's own words, which may quote a row.
        lost: whether the connection is gone, so that an answer to what was asked never comes.
    """

    kind: Kind
    code: str
    says: str
    detail: str
    lost: bool = False


# https://www.postgresql.org/docs/current/errcodes-appendix.html; a code goes before its class (the first two characters).
_BY_SQLSTATE = {
    # Another transaction was in the way.
    "40": Kind.TRANSIENT,  # 40001 serialization_failure, 40P01 deadlock_detected; 40002, a deferred constraint, is below
    "40002": Kind.RECORD,
    "55006": Kind.TRANSIENT,  # object_in_use
    # The server ended the transaction or the connection.
    "08": Kind.TRANSIENT,  # connection exceptions
    "25P03": Kind.TRANSIENT,  # idle_in_transaction_session_timeout: we stood still for too long
    "25P04": Kind.TRANSIENT,  # transaction_timeout
    "57014": Kind.TRANSIENT,  # query_canceled: statement_timeout, or pg_cancel_backend
    "57P01": Kind.TRANSIENT,  # admin_shutdown, or pg_terminate_backend
    "57P02": Kind.TRANSIENT,  # crash_shutdown: another backend crashed, and all are restarted
    "57P05": Kind.TRANSIENT,  # idle_session_timeout
    "72": Kind.TRANSIENT,  # snapshot_too_old
    # A value does not fit into its row.
    "21": Kind.RECORD,  # cardinality_violation: ON CONFLICT would change one row twice
    "22": Kind.RECORD,  # data exceptions: too long, out of range, NUL, no such date
    "23": Kind.RECORD,  # constraints
    "27": Kind.RECORD,  # triggered_data_change_violation
    "44000": Kind.RECORD,  # with_check_option_violation
    "P0001": Kind.RECORD,  # raise_exception: a trigger of the user's own refuses the row
    "54000": Kind.RECORD,  # program_limit_exceeded: for example an index row that is too large
    # It cannot work now.
    "25006": Kind.DOWN,  # read_only_sql_transaction: a standby, which may become the primary
    "53": Kind.DOWN,  # disk full, out of memory, too many connections
    "55000": Kind.DOWN,  # object_not_in_prerequisite_state: for example a standby that is asked for transaction ids
    "55P03": Kind.DOWN,  # lock_not_available: lock_timeout passed, which a transaction that nobody ends makes it do each time
    "57P03": Kind.DOWN,  # cannot_connect_now: it starts, stops or recovers
    "58030": Kind.DOWN,  # io_error
}
_LOCKED = "55P03"
_LOCKED_BY = "another transaction holds a row or a table that is needed; pg_stat_activity and pg_blocking_pids(pid) name it"
_MAX_SHOWN_CHARS = 300
_LOST = frozenset({"25P03", "25P04", "57P01", "57P02", "57P03", "57P04", "57P05"})
# https://www.sqlite.org/rescode.html; an extended code begins with the name of its primary one.
_BY_SQLITE_NAME = {
    "SQLITE_BUSY": Kind.TRANSIENT,
    "SQLITE_INTERRUPT": Kind.TRANSIENT,
    "SQLITE_LOCKED": Kind.TRANSIENT,
    "SQLITE_CONSTRAINT": Kind.RECORD,
    "SQLITE_MISMATCH": Kind.RECORD,
    "SQLITE_TOOBIG": Kind.RECORD,
    "SQLITE_CANTOPEN": Kind.DOWN,
    "SQLITE_FULL": Kind.DOWN,
    "SQLITE_IOERR": Kind.DOWN,
    "SQLITE_NOMEM": Kind.DOWN,
}


def classify(error: BaseException) -> Verdict | None:
    """What the error means; None for one that no database and no driver has raised, so it is the caller's own."""
    origin = error.orig if isinstance(error, StatementError) and error.orig is not None else error
    says = type(origin).__name__
    if isinstance(origin, psycopg.Error):
        return _of_postgresql(origin, says, invalidated=_invalidated(error))
    if isinstance(origin, sqlite3.Error):
        return _of_sqlite(origin, says)
    if isinstance(error, PoolTimeoutError):
        return Verdict(Kind.DOWN, "", "no connection of the pool became free in time", str(error))
    if isinstance(error, (StatementError, OverflowError, UnicodeEncodeError)):
        # Raised by a column's type or by the driver, on the way to the database: for this value it always is.
        return Verdict(Kind.RECORD, "", f"{says}: a value that the driver cannot send", str(origin))
    if isinstance(error, SQLAlchemyError):
        return Verdict(Kind.STOP, "", says, str(error))
    return None


def _invalidated(error: BaseException) -> bool:
    return isinstance(error, DBAPIError) and error.connection_invalidated


def _of_postgresql(error: psycopg.Error, says: str, *, invalidated: bool) -> Verdict:
    code = error.sqlstate or ""
    names = {
        "table": error.diag.table_name,
        "column": error.diag.column_name,
        "constraint": error.diag.constraint_name,
    }
    where = ", ".join(f"{what} {name}" for what, name in names.items() if name)
    says = f"{says} ({code})" if code else says
    says = f"{says} in {where}" if where else says
    detail = str(error).strip()
    if code:
        kind = _BY_SQLSTATE.get(code) or _BY_SQLSTATE.get(code[:2], Kind.STOP)
        lost = invalidated or code in _LOST or code.startswith("08")
        says = f"{says}: {_LOCKED_BY}" if code == _LOCKED else says
        return Verdict(kind, code, says, detail, lost=lost)
    if isinstance(error, psycopg.OperationalError):
        # Without a code it is libpq's own: no connection could be made, or it broke. Its words quote no row.
        kind = Kind.TRANSIENT if invalidated else Kind.DOWN
        first_line = detail.partition("\n")[0][:_MAX_SHOWN_CHARS]
        return Verdict(kind, "", f"{says}: {first_line}", detail, lost=True)
    # The driver's own: a NUL in a text, a number out of range, a value of a type that it cannot send.
    is_value = isinstance(error, (psycopg.DataError, psycopg.ProgrammingError, psycopg.NotSupportedError))
    return Verdict(Kind.RECORD if is_value else Kind.STOP, "", says, detail, lost=invalidated)


def _of_sqlite(error: sqlite3.Error, says: str) -> Verdict:
    name = getattr(error, "sqlite_errorname", "") or ""
    primary = "_".join(name.split("_")[:2])
    if not name:  # the module's own: a value that it cannot bind
        is_value = isinstance(error, (sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.DataError))
        return Verdict(Kind.RECORD if is_value else Kind.STOP, "", says, str(error))
    return Verdict(_BY_SQLITE_NAME.get(primary, Kind.STOP), name, f"{says} ({name})", str(error))
