"""A streaming replica of a PostgreSQL, which can lose its primary and take over without the last commits."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psycopg

from eos.base.deadline import Deadline
from eos.local import LocalPostgres
from eos.local.ports import free_port
from eos.local.postgres_home import require_postgres
from tests.support.patience import PATIENCE_S


class Replica:
    """A hot standby.

    Attributes:
        port: of the server.
        url: of the database of its primary.
    """

    def __init__(self, primary: LocalPostgres, directory: Path) -> None:
        self._primary = primary
        self.port = free_port()
        self.url = primary.url.replace(f":{primary.port}/", f":{self.port}/")
        programs, data = require_postgres(), directory / "data"
        subprocess.run(
            [programs / "pg_basebackup", "-R", "-c", "fast", "--no-sync", "-D", data, "-d", primary.url],
            check=True,
            capture_output=True,
        )
        # As its primary runs, where root may not run it.
        before = primary._unprivileged(programs)
        if before[:1] == ["setpriv"]:
            subprocess.run(["chown", "-R", "nobody", directory], check=True)
        options = [
            f"--port={self.port}",
            "--listen_addresses=127.0.0.1",
            "--unix_socket_directories=",
            "--fsync=off",
        ]
        with (directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*before, programs / "postgres", "-D", data, *options], stdout=log, stderr=log, cwd=directory
            )
        assert Deadline(PATIENCE_S).wait_for(lambda: self._answers("SELECT pg_is_in_recovery()")), (
            directory / "log"
        ).read_text()

    def wait_for_all(self) -> None:
        """Until it has all that is committed now."""
        with psycopg.connect(self._primary.url) as connection:
            (now,) = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone() or ("",)
        there = f"SELECT pg_last_wal_replay_lsn() >= '{now}'"
        assert Deadline(PATIENCE_S).wait_for(lambda: self._answers(there))

    def fall_behind(self) -> None:
        """It gets nothing any more."""
        self._run("ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
        assert Deadline(PATIENCE_S).wait_for(
            lambda: self._answers("SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)")
        )

    def take_over(self) -> None:
        """With what it has."""
        self._run("SELECT pg_promote()")

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _run(self, *statements: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def _answers(self, question: str) -> bool:
        try:
            with psycopg.connect(self.url, autocommit=True) as connection:
                return connection.execute(question.encode()).fetchone() == (True,)
        except psycopg.OperationalError:
            return False
