"""Engine: a way to the database of the settings, whose secrets no text of it holds."""

from __future__ import annotations

import contextlib
from typing import Any

from sqlalchemy import URL, Engine, NullPool, create_engine, make_url
from sqlalchemy.exc import ArgumentError

from eos.errors import ConfigError
from eos.settings import Settings, is_sensitive
from eos.sql.dialect import Dialect, dialect_named
from eos.sql.waiting import always_wait_at_most

_DRIVERS = {Dialect.POSTGRESQL: "postgresql+psycopg", Dialect.SQLITE: "sqlite+pysqlite"}
# A connection whose other side is gone is noticed in 25 s, as Kafka's clients notice theirs; by themselves a kernel's keepalives
# begin after two hours. What the URL says goes before.
_CONNECTION: dict[str, str | int] = {
    "client_encoding": "utf8",  # by itself it is the database's, which cannot say much, or (SQL_ASCII) makes texts bytes in Python
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
_FIX = "Fix: postgresql://USER:PASSWORD@HOST/DATABASE or sqlite:///FILE, in the file of sql.url_file or in EOS_SQL__URL"


def engine_of(settings: Settings, *, app: str, keeps: bool = True, waits_s: float | None = None) -> Engine:
    """An engine for the database of the settings; it connects when it is first used.

    Args:
        settings: with ``sql.url``.
        app: the job's name, by which the database's own views show its connections.
        keeps: whether it keeps connections that are not in use.
        waits_s: how long an answer may take, outside of transactions with limits of their own; by default as long as in these.

    Raises:
        ConfigError: no URL is given, it is none, or it is that of another database.
    """
    url = url_of(settings)
    options: dict[str, Any] = {} if keeps else {"poolclass": NullPool}
    if url.get_backend_name() == Dialect.POSTGRESQL:
        if keeps:
            options["pool_size"] = 0  # no limit: each owner has one at most, and a relay keeps it
        defaults = _CONNECTION | {"application_name": f"eos {app}"}
        given = {name: value for name, value in defaults.items() if name not in url.query}
        # SQLAlchemy hides a password, and shows the rest of a URL: ?sslpassword=… too.
        secret = {name: value for name, value in url.query.items() if is_sensitive(name)}
        url = url.difference_update_query(secret)
        options["connect_args"] = given | secret
    try:
        # Errors and the log of SQLAlchemy would quote rows otherwise.
        engine = create_engine(url, hide_parameters=True, **options)
    except ImportError as error:
        raise ConfigError(
            f"the driver for {url.drivername} is not installed. Fix: pip install 'eos-kafka[sql]'"
        ) from error
    always_wait_at_most(engine, settings.transaction.timeout_s if waits_s is None else waits_s)
    return engine


def url_of(settings: Settings) -> URL:
    """The URL of the settings.

    Raises:
        ConfigError: as `engine_of`.
    """
    if settings.sql.url is None:
        raise ConfigError(f"sql.url is not given. {_FIX}")
    return parsed(settings.sql.url.get_secret_value())


def parsed(text: str) -> URL:
    """A URL with the driver that eos uses.

    Raises:
        ConfigError: see `engine_of`; the message holds nothing of the URL but the name of its database.
    """
    url: URL | None = None
    with contextlib.suppress(ArgumentError, ValueError):  # whose texts may quote it
        url = make_url(text)
    if url is None:
        raise ConfigError(f"sql.url is not the URL of a database. {_FIX}")
    backend, _, driver = url.drivername.partition("+")
    dialect = dialect_named("postgresql" if backend == "postgres" else backend)
    wanted = _DRIVERS[dialect]
    if driver and f"{dialect}+{driver}" != wanted:
        raise ConfigError(f"sql.url names the driver {driver!r}, and eos uses another one. Fix: {wanted}://…")
    return url.set(drivername=wanted)
