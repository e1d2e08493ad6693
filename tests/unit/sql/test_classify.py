"""What an error of a database means: each SQLSTATE and each name of SQLite that is known, and all others stop."""

from __future__ import annotations

import sqlite3

import psycopg
import pytest
from psycopg import errors
from sqlalchemy.exc import DBAPIError, OperationalError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from eos.sql.classify import Kind, Verdict, classify

SECRET = "a-value-of-a-row"  # noqa: S105 - no password


def meant(error: BaseException) -> Verdict:
    verdict = classify(error)
    assert verdict is not None
    return verdict


def of_postgresql(code: str) -> psycopg.Error:
    return errors.lookup(code)(SECRET)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("40001", Kind.TRANSIENT),
        ("40P01", Kind.TRANSIENT),
        ("40003", Kind.TRANSIENT),
        ("40002", Kind.RECORD),
        ("55P03", Kind.DOWN),
        ("25P03", Kind.TRANSIENT),
        ("57014", Kind.TRANSIENT),
        ("57P01", Kind.TRANSIENT),
        ("57P02", Kind.TRANSIENT),
        ("08006", Kind.TRANSIENT),
        ("23505", Kind.RECORD),
        ("23502", Kind.RECORD),
        ("23503", Kind.RECORD),
        ("23514", Kind.RECORD),
        ("22001", Kind.RECORD),
        ("22003", Kind.RECORD),
        ("22021", Kind.RECORD),
        ("22P02", Kind.RECORD),
        ("P0001", Kind.RECORD),
        ("21000", Kind.RECORD),
        ("53100", Kind.DOWN),
        ("53300", Kind.DOWN),
        ("57P03", Kind.DOWN),
        ("25006", Kind.DOWN),
        ("42P01", Kind.STOP),
        ("42501", Kind.STOP),
        ("42703", Kind.STOP),
        ("25P02", Kind.STOP),
        ("3D000", Kind.STOP),
        ("57P04", Kind.STOP),
        ("XX001", Kind.STOP),
        ("0A000", Kind.STOP),
    ],
)
def test_a_sqlstate_has_one_meaning(code: str, kind: Kind) -> None:
    origin = of_postgresql(code)
    for error in (origin, DBAPIError("INSERT", {"x": SECRET}, origin)):
        verdict = meant(error)
        assert (verdict.kind, verdict.code) == (kind, code)
        assert SECRET not in verdict.says


@pytest.mark.parametrize("code", ["25P03", "57P01", "57P02", "08006"])
def test_a_session_that_the_server_ends_has_lost_its_connection(code: str) -> None:
    assert meant(of_postgresql(code)).lost
    assert not meant(of_postgresql("40001")).lost


def test_without_a_sqlstate_a_broken_connection_is_told_from_one_that_was_not_made() -> None:
    origin = psycopg.OperationalError("consuming input failed: server closed the connection unexpectedly")
    broken = OperationalError("UPDATE", {}, origin, connection_invalidated=True)
    assert (meant(broken).kind, meant(broken).lost) == (Kind.TRANSIENT, True)
    assert (meant(origin).kind, meant(origin).lost) == (Kind.DOWN, True)


@pytest.mark.parametrize(
    "error",
    [
        psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes"),
        psycopg.ProgrammingError("cannot adapt type 'object'"),
        OverflowError("Python int too large to convert to SQLite INTEGER"),
        UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
        StatementError("SQLite DateTime type only accepts Python datetime", "INSERT", {}, TypeError(SECRET)),
        sqlite3.ProgrammingError("Error binding parameter 1: type 'object' is not supported"),
    ],
)
def test_a_value_that_the_driver_cannot_send_is_the_record_s_fault(error: Exception) -> None:
    assert meant(error).kind is Kind.RECORD
    assert SECRET not in meant(error).says


def of_sqlite(*statements: str) -> sqlite3.Error:
    with pytest.raises(sqlite3.Error) as caught:
        connection = sqlite3.connect(":memory:")
        try:
            for statement in statements:
                connection.execute(statement)
        finally:
            connection.close()
    return caught.value


def test_sqlite_s_errors_by_their_names() -> None:
    refused = of_sqlite(
        "CREATE TABLE t (x INTEGER PRIMARY KEY)", "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (1)"
    )
    assert meant(refused)[:2] == (Kind.RECORD, "SQLITE_CONSTRAINT_PRIMARYKEY")
    assert (
        meant(of_sqlite("CREATE TABLE t (x CHECK (x > 0))", "INSERT INTO t VALUES (0)")).kind is Kind.RECORD
    )
    assert meant(of_sqlite("SELECT * FROM nowhere"))[:2] == (Kind.STOP, "SQLITE_ERROR")
    full = of_sqlite("PRAGMA max_page_count = 1", "CREATE TABLE t (x)", "CREATE TABLE u (x)")
    assert meant(full)[:2] == (Kind.DOWN, "SQLITE_FULL")


def test_a_pool_without_a_free_connection_is_waited_for() -> None:
    assert meant(PoolTimeoutError("QueuePool limit of size 1 overflow 0 reached")).kind is Kind.DOWN


def test_an_error_of_the_caller_s_own_has_no_meaning_here() -> None:
    assert classify(ValueError("mine")) is None
    assert classify(KeyboardInterrupt()) is None
