"""`eos sql prune`: relayed rows of an age go, and no other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from eos.exits import ExitCode
from tests.support.databases import Database
from tests.support.patience import PATIENCE_S
from tests.support.relays import Books

pytestmark = [pytest.mark.broker]

_JOB = """
from sqlalchemy import MetaData
from eos.sql import Outbox, OutboxJob
job = OutboxJob(name={name!r}, outbox=Outbox(MetaData()), outputs=[{topic!r}], shards={shards})
"""


class Command:
    def __init__(self, books: Books, directory: Path, shards: int) -> None:
        (directory / "pruned.py").write_text(_JOB.format(name=books.name, topic=books.topic, shards=shards))
        self._books, self._directory = books, directory

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("eos")), "sql", "prune", "pruned:job", *words]
        environment = {
            "EOS_KAFKA__BOOTSTRAP_SERVERS": self._books.bootstrap,
            "EOS_SQL__URL": self._books.database.url,
        }
        return subprocess.run(
            command,
            cwd=self._directory,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )


@pytest.mark.parametrize("shards", [1, 3])
def test_relayed_rows_of_that_age_are_counted_and_then_deleted(
    bootstrap: str, postgres: Database, tmp_path: Path, shards: int
) -> None:
    books = Books(bootstrap, postgres)
    prune = Command(books, tmp_path, shards)
    books.put(*range(40), key=lambda n: b"k%d" % n)
    before = prune("--older-than", "1h")
    assert before.returncode == ExitCode.CONFIGURATION
    assert "has not run yet" in before.stderr
    books.run(books.job(shards=shards))
    books.put(*range(40, 50), key=lambda n: b"k%d" % n)
    books.database.run("UPDATE eos_outbox SET created_at = now() - interval '2 hours' WHERE id % 2 = 0")
    shown = prune("--older-than", "1h")
    assert (shown.returncode, shown.stdout.strip()) == (0, "20 rows would be deleted. To do it: --yes"), shown
    assert books.database.seen("SELECT count(*) FROM eos_outbox") == [(50,)]
    done = prune("--older-than", "1h", "--yes")
    assert (done.returncode, done.stdout.strip()) == (0, "20 rows were deleted"), done
    assert books.database.seen("SELECT count(*) FROM eos_outbox WHERE id <= 40") == [(20,)]
    books.run(books.job(shards=shards))
    assert books.numbers() == list(range(50))


@pytest.mark.parametrize("age", ["", "7", "d", "7w", "-1d", "7 d"])
def test_what_is_no_age_is_refused(bootstrap: str, sqlite: Database, tmp_path: Path, age: str) -> None:
    done = Command(Books(bootstrap, sqlite), tmp_path, 1)("--older-than", age)
    assert done.returncode == ExitCode.CONFIGURATION
    assert "Fix: 7d" in done.stderr
