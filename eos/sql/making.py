"""Make eos's own tables in the database of the settings, for an operator."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Table

from eos.errors import ConfigError, UnavailableError
from eos.settings import Settings
from eos.sql import tables
from eos.sql.classify import Kind, classify
from eos.sql.dialect import Dialect, dialect_of
from eos.sql.engine import engine_of, url_of

_APP = "sql-tables"


def dialect_of_settings(settings: Settings) -> Dialect:
    """The dialect of ``sql.url``; asks no database.

    Raises:
        ConfigError: no URL is given, or it is none of a database that eos knows.
    """
    return Dialect(url_of(settings).get_backend_name())


def make(settings: Settings, wanted: Sequence[Table]) -> None:
    """Create the tables that are missing, and look at those that are there.

    Raises:
        ConfigError: the database refuses it, or a table is of another version.
        UnavailableError: the database does not answer.
    """
    engine = engine_of(settings, app=_APP)
    try:
        with engine.begin() as connection:
            dialect_of(connection)
            tables.create(connection, wanted)
            tables.check(connection, wanted)
    except Exception as error:
        verdict = classify(error)
        if verdict is None:
            raise
        if verdict.kind in (Kind.DOWN, Kind.TRANSIENT):
            raise UnavailableError(f"the database does not answer: {verdict.detail}") from error
        raise ConfigError(
            f"the database refuses it: {verdict.detail}. Fix: a user that may create tables"
        ) from error
    finally:
        engine.dispose()
