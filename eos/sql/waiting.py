"""Waiting: no answer of PostgreSQL is waited for without end.

Its own limits (`eos.sql.limits`) do not hold where the server stands still, where its kernel answers and it does not, or where a
COMMIT waits for a replica that is gone. So the client gives up a little later than the server would have. The connection is closed then:
what was asked on it may be done still.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine, event

from eos.sql.dialect import Dialect

_LATER_S = 5.0  # than the server's own limit, whose answer says more


class NoAnswerError(psycopg.OperationalError):
    """The server has not answered, and its connection is closed."""


def wait_at_most(connection: Connection, limit_s: float) -> None:
    """Until the connection goes back to its pool, no answer is waited for much longer than the server takes by its own limit."""
    if connection.dialect.name == Dialect.POSTGRESQL:
        _bound(connection.connection.driver_connection, limit_s)


def always_wait_at_most(engine: Engine, limit_s: float) -> None:
    """The same of every connection of an engine, from the first statement on."""

    def bound(driver: Any, *_: object) -> None:
        if driver is not None:  # of a connection that is closed there is nothing to bound
            _bound(driver, limit_s)

    if engine.dialect.name == Dialect.POSTGRESQL:
        event.listen(engine, "connect", bound, insert=True)  # in front of SQLAlchemy's own first questions
        event.listen(engine, "checkin", bound)


def as_before_in_the_pool(engine: Engine) -> None:
    """Of an engine that is not eos's own: a connection is as it was when it goes back to its pool."""

    def unbound(driver: Any, *_: object) -> None:
        if driver is not None:  # as above
            vars(driver).pop("wait", None)

    if engine.dialect.name == Dialect.POSTGRESQL:
        event.listen(engine, "checkin", unbound)


def _bound(driver: Any, limit_s: float) -> None:
    seconds = limit_s + _LATER_S
    wait = type(driver).wait

    def bounded(generator: Generator[Any, Any, Any], *given: Any, **named: Any) -> Any:
        return wait(driver, _until(driver, generator, seconds), *given, **named)

    driver.wait = bounded


def _until(driver: Any, generator: Generator[Any, Any, Any], seconds: float) -> Generator[Any, Any, Any]:
    """What psycopg waits for, step by step. It takes a step at least each tenth of a second, so that Ctrl-C works."""
    give_up_at = time.monotonic() + seconds
    try:
        step = next(generator)
        while True:
            ready = yield step
            if not ready and time.monotonic() > give_up_at:
                driver.close()
                raise NoAnswerError(f"no answer in {seconds:.0f} s; the connection was closed")
            step = generator.send(ready)
    except StopIteration as over:
        return over.value
