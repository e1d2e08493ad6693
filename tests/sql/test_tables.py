"""The tables of eos: made on request only, looked for by name, column and version."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import MetaData

from eos.errors import ConfigError
from eos.exits import ExitCode
from eos.local.ports import free_port
from eos.sql import tables
from eos.sql.dialect import Dialect, dialect_of
from eos.sql.outbox import Outbox
from tests.support.command_line import Eos
from tests.support.databases import Database
from tests.support.patience import PATIENCE_S

FIX = r"Fix: eos sql tables MODULE:NAME --apply"


def check(database: Database, *more: object) -> None:
    with database.judge.connect() as connection:
        tables.check(connection, (*tables.SINK, *more))  # type: ignore[arg-type]


def test_missing_tables_are_named_with_the_command_and_not_created(database: Database) -> None:
    for _ in range(2):
        with pytest.raises(ConfigError, match=rf"lacks eos_progress, eos_dead_letters\. {FIX}"):
            check(database)


def test_created_tables_are_found_and_creating_them_again_changes_nothing(database: Database) -> None:
    outbox = Outbox(MetaData()).table
    for _ in range(2):
        with database.judge.begin() as connection:
            tables.create(connection, (*tables.SINK, outbox))
        check(database, outbox)
    assert database.seen("SELECT name, version FROM eos_tables ORDER BY name") == [
        ("eos_dead_letters", 1),
        ("eos_outbox", 1),
        ("eos_progress", 1),
    ]


def test_the_printed_statements_do_what_creating_does(database: Database) -> None:
    dialect = Dialect.POSTGRESQL if database.is_postgresql else Dialect.SQLITE
    with database.judge.begin() as connection:
        for statement in tables.ddl(dialect):
            connection.exec_driver_sql(statement)
    check(database)


def test_an_outbox_that_an_application_s_migrations_have_made_will_do(database: Database) -> None:
    outbox = Outbox(MetaData(), "events_out").table
    outbox.metadata.create_all(database.judge)
    with database.judge.begin() as connection:
        tables.create(connection)
    check(database, outbox)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (
            "UPDATE eos_tables SET version = 0 WHERE name = 'eos_progress'",
            rf"eos_progress is older than this eos\. {FIX}",
        ),
        ("UPDATE eos_tables SET version = 2 WHERE name = 'eos_progress'", r"made by a newer eos"),
        ("ALTER TABLE eos_progress DROP COLUMN metadata", rf"older than this eos, without metadata\. {FIX}"),
        ("DROP TABLE eos_dead_letters", rf"lacks eos_dead_letters\. {FIX}"),
    ],
)
def test_an_older_a_newer_or_a_damaged_table_is_refused(database: Database, damage: str, says: str) -> None:
    database.with_tables().run(damage)
    with pytest.raises(ConfigError, match=says):
        check(database)


def test_several_that_create_the_tables_at_once_all_succeed(postgres: Database) -> None:
    def create() -> None:
        with postgres.engine().begin() as connection:
            tables.create(connection)

    for one in [postgres.beside(partial(create)) for _ in range(6)]:
        one.result(PATIENCE_S)
    check(postgres)


def test_the_dialect_of_a_connection_is_told(database: Database) -> None:
    with database.judge.connect() as connection:
        assert dialect_of(connection) == database.judge.dialect.name


_BOOKS = """
from sqlalchemy import Column, Integer, MetaData, Table
from eos.sql import Insert, SqlJob

paid = Table("paid", MetaData(), Column("number", Integer, primary_key=True))
job = SqlJob(name="books", inputs=["in"], tables=[paid], transform=lambda record: [Insert(paid, {"number": 1})])
"""


def test_the_command_prints_the_statements_and_runs_them_only_when_it_is_told_to(
    database: Database, eos: Eos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "books_job.py").write_text(_BOOKS)
    (tmp_path / "url").write_text(database.url)
    monkeypatch.setenv("EOS_SQL__URL_FILE", str(tmp_path / "url"))
    words = ("sql", "tables", "books_job:job", "--app-dir", str(tmp_path))
    printed = eos(*words)
    assert printed.code == ExitCode.DONE, printed.err
    with pytest.raises(ConfigError, match="lacks eos_progress"):
        check(database)
    for statement in filter(str.strip, printed.out.split(";")):
        database.run(statement)
    check(database)
    for name in ("eos_progress", "eos_dead_letters", "eos_tables"):
        database.run(f"DROP TABLE {name}")

    for given in (words, ("sql", "tables")):  # a session has no job
        applied = eos(*given, "--apply")
        assert (applied.code, applied.out) == (ExitCode.DONE, ""), applied.err
        assert "eos_progress, eos_dead_letters" in applied.err
        check(database)


def test_the_command_refuses_what_writes_to_no_database_and_a_database_that_is_not_there(
    eos: Eos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = eos("sql", "tables")
    assert missing.code == ExitCode.CONFIGURATION
    assert "sql.url is not given" in missing.err
    monkeypatch.setenv("EOS_SQL__URL", f"postgresql://eos:s3cr3t@127.0.0.1:{free_port()}/db")
    away = eos("sql", "tables", "--apply")
    assert away.code == ExitCode.UNAVAILABLE
    assert "s3cr3t" not in away.err + away.out
    (tmp_path / "no_sql.py").write_text("job = 3\n")
    other = eos("sql", "tables", "no_sql:job", "--app-dir", str(tmp_path))
    assert other.code == ExitCode.CONFIGURATION
    assert "eos.sql.SqlJob" in other.err
