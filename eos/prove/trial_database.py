"""Trial database: a PostgreSQL server of its own, with the job's tables and a proxy before it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eos.local import LocalPostgres
from eos.prove.database_proxy import DatabaseProxy
from eos.settings import Settings

_SETTINGS = {"max_connections": "100"}
_CONNECTIONS = "SELECT client_port, xact_start IS NOT NULL FROM pg_stat_activity WHERE client_port > 0"
_TERMINATE = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE client_port = ANY(%s)"


class TrialDatabase:
    """Where the tables of a trial are.

    Args:
        server: that holds them.
        proxy: through which the job reaches it.
        settings: the job's, whose database is another one.
    """

    def __init__(self, server: LocalPostgres, proxy: DatabaseProxy, settings: Settings) -> None:
        self.server, self.proxy = server, proxy
        self._settings = settings

    @property
    def settings(self) -> Settings:
        """The job's, at the server itself."""
        return on_database(self._settings, self.server.url)

    @property
    def url(self) -> str:
        """Where the job finds it."""
        before, _, database = self.server.url.rpartition("/")
        return f"{before.rpartition(':')[0]}:{self.proxy.port}/{database}"

    def connections(self) -> dict[int, bool]:
        """The job's, by the ports that they come from: whether each is inside a transaction.

        Raises:
            EosError: the server does not answer.
        """
        clients = self.proxy.clients
        return {clients[port]: inside for port, inside in self.ask(_CONNECTIONS) if port in clients}

    def terminate(self, ports: Collection[int]) -> int:
        """End the backends of these connections; returns how many there were. Raises as `connections`."""
        behind = [server for server, client in self.proxy.clients.items() if client in ports]
        return int(self.ask(_TERMINATE, behind)[0][0])

    def ask(self, question: str, *values: Any) -> list[Any]:
        """The rows of an answer.

        Raises:
            EosError: the server does not answer.
        """
        with self.connected() as connection, connection.begin():
            return [*connection.exec_driver_sql(question, values or None)]

    @contextmanager
    def connected(self) -> Iterator[Any]:
        """A connection past the proxy.

        Raises:
            EosError: the server does not answer, at any statement of the block.
        """
        from eos.sql.engine import engine_of
        from eos.sql.meaning import explained

        engine = engine_of(self.settings, app="prove", keeps=False)
        with explained(), engine.connect() as connection:
            yield connection


@contextmanager
def trial_database(
    directory: Path, settings: Settings, *, tables: Sequence[Any], own_tables: Sequence[Any]
) -> Iterator[TrialDatabase]:
    """Start it, and make the tables; it ends with the block.

    Args:
        directory: of the trial.
        settings: the job's.
        tables: the job's, with all that their metadata has.
        own_tables: those of eos's own.

    Raises:
        ConfigError: no PostgreSQL is installed, or the machine does not allow it.
        UnavailableError: it did not start.
    """
    from eos.sql.engine import engine_of
    from eos.sql.tables import create

    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o755)  # of root's: the server runs as another user
    with LocalPostgres(directory, settings=_SETTINGS) as server, DatabaseProxy(lambda: server.port) as proxy:
        database = TrialDatabase(server, proxy, settings)
        engine = engine_of(database.settings, app="prove", keeps=False)
        with engine.begin() as connection:
            for schema in sorted({one.schema for one in (*tables, *own_tables) if one.schema}):
                connection.exec_driver_sql(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
            for metadata in {id(one.metadata): one.metadata for one in tables}.values():
                metadata.create_all(connection)
            create(connection, own_tables)
        yield database


def on_database(settings: Settings, url: str) -> Settings:
    """The settings with another database."""
    from pydantic import SecretStr

    from eos.settings.tables import SqlSettings

    return settings.model_copy(update={"sql": SqlSettings(url=SecretStr(url))})
