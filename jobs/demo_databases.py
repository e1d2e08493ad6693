"""The databases of the demonstration: the application's, and that of the tables, on a PostgreSQL of this machine or in two files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL, Engine, MetaData, Table, create_engine, make_url, text

from eos.local import LocalPostgres
from eos.local.postgres_home import find_postgres
from eos.sql.tables import create
from jobs import refund_tables, settlement_outbox

# A disk that loses power is none of the accidents here.
_QUICK = {"fsync": "off", "full_page_writes": "off"}


@dataclass(frozen=True)
class Databases:
    """The two, with their tables, which are empty.

    Attributes:
        application, tables: engines for SQL of one's own.
    """

    application: Engine
    tables: Engine

    @property
    def are_postgresql(self) -> bool:
        return self.tables.dialect.name == "postgresql"

    @property
    def title(self) -> str:
        return "PostgreSQL" if self.are_postgresql else "SQLite"


@contextmanager
def new_databases(directory: Path, progress: Callable[[str], None]) -> Iterator[Databases]:
    """Both, made anew; files of SQLite only where pip has installed no PostgreSQL.

    Args:
        directory: where their files go.
        progress: called with one line before each long step.
    """
    if find_postgres() is None:
        with in_files(directory) as databases:
            yield databases
        return
    with (
        LocalPostgres(directory, settings=_QUICK, progress=progress) as server,
        on_server(server.url, "demo") as databases,
    ):
        yield databases


@contextmanager
def on_server(url: str, prefix: str) -> Iterator[Databases]:
    """Both, as databases of a PostgreSQL whose superuser the URL names."""
    server = make_url(url).set(drivername="postgresql+psycopg")
    names = (f"{prefix}_application", f"{prefix}_tables")
    admin = create_engine(server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        for name in names:
            connection.execute(text(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
            connection.execute(text(f"CREATE DATABASE {name}"))
    admin.dispose()
    with _with_tables([server.set(database=name) for name in names]) as databases:
        yield databases


@contextmanager
def in_files(directory: Path) -> Iterator[Databases]:
    """Both, as files of SQLite."""
    paths = [directory / "application.db", directory / "tables.db"]
    for path in paths:
        for left in path.parent.glob(f"{path.name}*"):
            left.unlink()
    urls = [URL.create("sqlite+pysqlite", database=str(path.absolute())) for path in paths]
    with _with_tables(urls) as databases:
        yield databases


@contextmanager
def _with_tables(urls: Sequence[URL]) -> Iterator[Databases]:
    application, tables = (create_engine(url) for url in urls)
    _create(application, settlement_outbox.metadata, settlement_outbox.job.own_tables)
    _create(tables, refund_tables.metadata, refund_tables.job.own_tables)
    try:
        yield Databases(application, tables)
    finally:
        application.dispose()
        tables.dispose()


def _create(engine: Engine, metadata: MetaData, own_tables: Sequence[Table]) -> None:
    """Migrations do the first, and ``eos sql tables --apply`` does the second."""
    metadata.create_all(engine)
    with engine.begin() as connection:
        create(connection, own_tables)
