"""The two jobs with a database at one end, on the official image of PostgreSQL: the same as on the one that pip brings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from eos.exits import ExitCode
from tests.support.database_runs import DatabaseRun
from tests.support.databases import Database
from tests.support.postgres_container import ContainerPostgres, missing

_REASON = missing()
pytestmark = [
    pytest.mark.docker,
    pytest.mark.broker,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(_REASON), reason=_REASON),
]


@pytest.fixture(scope="module")
def server() -> Iterator[ContainerPostgres]:
    with ContainerPostgres(settings={"fsync": "off", "max_connections": "40"}) as running:
        yield running


@pytest.mark.parametrize("which", ["sink", "relay"])
def test_a_job_is_exact_over_a_kill_of_its_database(
    which: str, bootstrap: str, server: ContainerPostgres, tmp_path: Path
) -> None:
    database = Database(server.url)
    run = DatabaseRun("sink" if which == "sink" else "relay", bootstrap, database, tmp_path)
    run.feed(*range(40))
    assert run.catch_up() == ExitCode.DONE, run.said()
    process = run.start(input__offline_timeout_ms=120_000)
    server.kill()
    server.start()
    database.judge.dispose()
    run.feed(*range(40, 80))
    run.wait_for(80)
    process.terminate()
    assert process.wait(60) == ExitCode.DONE
    run.assert_exact(range(80))
    database.close()
