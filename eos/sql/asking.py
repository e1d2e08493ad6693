"""One question to a database from outside of owners, as an operator's commands and `eos check` put it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from eos.base.calls import Call
from eos.errors import RetriableError
from eos.settings import Settings
from eos.sql.classify import Kind, classify
from eos.sql.dialect import dialect_of
from eos.sql.limits import Limits, limit
from eos.sql.meaning import asked

T = TypeVar("T")


def answer(
    engine: Engine, settings: Settings, question: Callable[[Connection], T], *, timeout_s: float | None = None
) -> T:
    """What the database answers, in a transaction of its own.

    Args:
        engine: to the database.
        settings: the limits of a transaction.
        question: asked with a connection in it; again, where no answer came.
        timeout_s: by default as long as an owner that opens waits.

    Raises:
        ConfigError: it is a database that eos does not know.
        UnavailableError: no answer in time; with the database's own words, where it cannot work now.
        EosError: a refusal.
    """

    def once() -> T:
        try:
            with engine.connect() as connection, connection.begin():
                dialect_of(connection)
                limit(connection, Limits.of(settings))
                return question(connection)
        except DBAPIError as error:
            # An operator is told where it was looked for, and what is wrong there.
            verdict = classify(error)
            if verdict is None or verdict.kind is not Kind.DOWN:
                raise
            raise RetriableError(f"the database cannot work now: {verdict.detail}") from error

    timeout_s = settings.open_timeout_s if timeout_s is None else timeout_s
    return asked(Call.COMMITTED, once, timeout_s=timeout_s, on_retry=None)
