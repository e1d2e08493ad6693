"""The way to the database: which URLs are taken, and that no text of the engine or of an error holds a secret."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from eos.errors import ConfigError
from eos.settings import Settings
from eos.sql.dialect import dialect_named
from eos.sql.engine import engine_of, parsed

CANARY = "s3cr3t"


def settings_with(url: str) -> Settings:
    return Settings.load(environ={"EOS_SQL__URL": url})


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("postgresql://eos@host/db", "postgresql+psycopg"),
        ("postgres://eos@host/db", "postgresql+psycopg"),
        ("postgresql+psycopg://eos@host/db?sslmode=verify-full", "postgresql+psycopg"),
        ("sqlite:///file.db", "sqlite+pysqlite"),
        ("sqlite://", "sqlite+pysqlite"),
    ],
)
def test_a_url_names_postgresql_or_sqlite_by_the_driver_that_eos_knows(url: str, driver: str) -> None:
    assert parsed(url).drivername == driver


@pytest.mark.parametrize("name", ["mysql", "mariadb", "oracle", "mssql", "duckdb", ""])
def test_another_database_is_refused_with_the_reason_and_the_fix(name: str) -> None:
    with pytest.raises(ConfigError, match=r"row locks.*Fix: sql\.url = postgresql://"):
        dialect_named(name)


@pytest.mark.parametrize(
    "url",
    [
        f"mysql://eos:{CANARY}@host/db",
        f"mysql+pymysql://eos:{CANARY}@host/db",
        f"postgresql+asyncpg://eos:{CANARY}@host/db",
        f"postgresql+psycopg2://eos:{CANARY}@host/db",
        f"sqlite+aiosqlite:///{CANARY}",
        f"host=db password={CANARY}",
        f"postgresql://eos:{CANARY}@host:port/db",
        f"{CANARY}",
        "",
    ],
)
def test_no_refusal_of_a_url_shows_what_it_holds(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        engine_of(settings_with(url), app="books")
    assert CANARY not in "".join(traceback.format_exception(caught.value))


def test_a_missing_url_names_the_settings() -> None:
    with pytest.raises(ConfigError, match=r"sql\.url is not given. Fix: .*EOS_SQL__URL"):
        engine_of(Settings(), app="books")


def test_no_text_of_an_engine_holds_its_password(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    settings = settings_with(f"postgresql://eos:{CANARY}@127.0.0.1:1/db?sslpassword={CANARY}")
    engine = engine_of(settings, app="books")
    with pytest.raises(Exception, match="connection failed") as caught:
        engine.connect()
    shown = [repr(engine), str(engine), str(settings), repr(settings.shown()), caplog.text]
    shown += traceback.format_exception(caught.value)
    assert CANARY not in "".join(shown)


def test_an_engine_says_who_it_is_and_notices_a_dead_connection_unless_the_url_says_otherwise() -> None:
    engine = engine_of(settings_with("postgresql://eos@host/db?keepalives_idle=3"), app="books")
    (_, given) = engine.dialect.create_connect_args(engine.url)
    assert given["keepalives_idle"] == "3"
    assert engine.hide_parameters


def test_the_url_of_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text("sqlite://\n")
    settings = Settings.load(environ={"EOS_SQL__URL_FILE": str(file)})
    engine = engine_of(settings, app="books")
    with engine.connect() as connection:
        assert connection.dialect.name == "sqlite"
    engine.dispose()
