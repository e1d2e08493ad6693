"""A database of a test: engines as eos makes them, and a second connection through which its state is judged."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine, text

from eos.base.deadline import Deadline
from eos.settings import Settings
from eos.sql import tables
from eos.sql.engine import engine_of
from tests.support.patience import PATIENCE_S


class Database:
    """See above."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._engines: list[Engine] = []
        self._threads = ThreadPoolExecutor(max_workers=16, thread_name_prefix="test-sql")
        self.judge = self.engine()

    @property
    def is_postgresql(self) -> bool:
        return self.judge.dialect.name == "postgresql"

    def engine(self, url: str = "") -> Engine:
        """A new engine, with connections of its own."""
        engine = engine_of(Settings.load(environ={"EOS_SQL__URL": url or self.url}), app="test")
        self._engines.append(engine)
        return engine

    def with_tables(self) -> Database:
        """The same with eos's own tables."""
        with self.judge.begin() as connection:
            tables.create(connection)
        return self

    def seen(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        """What a second connection sees."""
        with self.judge.begin() as connection:
            return [tuple(row) for row in connection.execute(text(statement), values)]

    def run(self, *statements: str, **values: Any) -> None:
        with self.judge.begin() as connection:
            for statement in statements:
                connection.execute(text(statement), values)

    def beside(self, call: Callable[[], Any]) -> Future[Any]:
        """Run it in another thread."""
        return self._threads.submit(call)

    def wait_until_blocked(self, count: int = 1) -> None:
        """Until so many backends of this database wait for a lock."""
        assert Deadline(PATIENCE_S).wait_for(
            lambda: (
                self.seen(
                    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
                )
                == [(count,)]
            )
        ), "nothing waits for a lock"

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        for engine in self._engines:
            engine.dispose()


def backend_of(connection: Connection) -> int:
    """The process id of a connection's backend."""
    return int(connection.execute(text("SELECT pg_backend_pid()")).scalar_one())


@contextlib.contextmanager
def left_open(engine: Engine) -> Iterator[Connection]:
    """A connection with a transaction that nobody ends."""
    connection = engine.connect()
    try:
        yield connection
    finally:
        connection.invalidate()
        connection.close()


@contextlib.contextmanager
def open_directory() -> Iterator[Path]:
    """For a server. Not below pytest's own directory: where the suite runs as root, no other user can enter that."""
    directory = Path(tempfile.mkdtemp(prefix="eos-postgres-"))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def database_of(server_url: str, options: str = "") -> Iterator[Database]:
    """A new database of a PostgreSQL, with a second connection to judge by."""
    name = f"t{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} {options}".encode())
    database = Database(server_url.replace("/postgres", f"/{name}"))
    try:
        yield database
    finally:
        database.close()
        with psycopg.connect(server_url, autocommit=True) as admin:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
