"""Limits: how long a transaction may wait for a lock, stand still, and last; set in each transaction anew.

Not once for a connection: a pooler between (PgBouncer in transaction mode) gives each transaction another one of the server. Nor is a
statement prepared there, which the next one would not know: what is prepared belongs to a connection of the server.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from eos.settings import Settings
from eos.sql.dialect import Dialect
from eos.sql.waiting import wait_at_most

_WITH_TRANSACTION_TIMEOUT = (17,)
_LOCK_SHARE = 0.5  # of a transaction's timeout


class Limits(NamedTuple):
    """In seconds.

    Attributes:
        lock_s: how long a statement waits for a row that another transaction has changed.
        transaction_s: how long PostgreSQL lets a transaction stand still, and from 17 on last at all; before 17 it limits each
            statement instead. A paused owner holds the locks on its rows for that long, so a takeover waits for longer.
    """

    lock_s: float
    transaction_s: float

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        """Those of a transaction of eos: ``transaction.timeout_ms``, half of it for a lock."""
        timeout_s = settings.transaction.timeout_s
        return cls(_LOCK_SHARE * timeout_s, timeout_s)


def limit(connection: Connection, limits: Limits) -> None:
    """Begin a transaction within limits: call it first. SQLite has none but the wait for its one lock."""
    wait_at_most(connection, limits.transaction_s)
    lock_ms = max(1, round(limits.lock_s * 1000))
    transaction_ms = max(1, round(limits.transaction_s * 1000))
    if connection.dialect.name == Dialect.SQLITE:
        connection.execute(text(f"PRAGMA busy_timeout = {lock_ms}"))
        return
    version = connection.dialect.server_version_info or ()
    longest = "transaction_timeout" if version >= _WITH_TRANSACTION_TIMEOUT else "statement_timeout"
    settings = connection.execute(
        text(
            "SELECT pg_backend_pid(), set_config('lock_timeout', :lock, true), "
            "set_config('idle_in_transaction_session_timeout', :transaction, true), "
            f"set_config('{longest}', :transaction, true)"
        ),
        {"lock": str(lock_ms), "transaction": str(transaction_ms)},
    )
    driver: Any = connection.connection.driver_connection
    if settings.one()[0] != driver.info.backend_pid:  # a pooler has given the client a number of its own
        driver.prepare_threshold = None
