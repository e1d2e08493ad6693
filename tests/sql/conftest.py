"""One real PostgreSQL for each process of the suite, and a database in it for each test; and SQLite, where that is enough.

The PostgreSQL is the one that pip brings. With ``EOS_TEST_POSTGRES=docker`` it is one of the official image, in a container.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from eos.local import LocalPostgres
from tests.support.databases import Database, database_of, open_directory
from tests.support.postgres_container import ContainerPostgres, missing

# A disk that loses power is none of the faults here.
_QUICK = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "60",
    "shared_buffers": "32MB",
    "max_wal_size": "256MB",
    "max_prepared_transactions": "5",
    "deadlock_timeout": "100ms",
}


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[LocalPostgres]:
    if os.environ.get("EOS_TEST_POSTGRES", "process") == "docker":
        if why := missing():
            pytest.skip(why)
        with ContainerPostgres(settings=_QUICK) as container:
            yield cast("LocalPostgres", container)  # all of it that the tests of this directory use
        return
    with open_directory() as directory, LocalPostgres(directory, settings=_QUICK) as server:
        yield server


@pytest.fixture
def postgres(postgres_server: LocalPostgres) -> Iterator[Database]:
    """A database of its own, with a second connection to judge by."""
    with database_of(postgres_server.url) as database:
        yield database


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path / 'books.db'}")
    yield database
    database.close()


@pytest.fixture(params=["postgres", "sqlite"])
def database(request: pytest.FixtureRequest) -> Database:
    """Each of the two in turn."""
    found: Database = request.getfixturevalue(request.param)
    return found
