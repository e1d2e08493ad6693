"""A job with a database at one end, run by `eos run` in a process of its own, and its state as it is seen from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Connection

from eos.sql.tables import create
from tests.support import jobs_for_databases as jobs
from tests.support.databases import Database
from tests.support.observer import PlainRecord, create_topics, produce_plain, read_committed, unique
from tests.support.patience import PATIENCE_S

Which = Literal["sink", "relay"]
_QUICK: dict[str, object] = {  # everything that is waited for
    "transaction.timeout_ms": 3_000,
    "transaction.interval_ms": 100,
    "transaction.max_records": 10,
    "input.fetch_records": 10,
    "input.offline_timeout_ms": 12_000,  # no shorter: a consumer that was not polled for less is taken for cut off
    "input.start": "earliest",
    "shutdown.grace_ms": 4_000,
    "ownership.session_timeout_ms": 6_000,
    "ownership.max_poll_interval_ms": 60_000,
}


class DatabaseRun:
    """One of the two jobs, its topic and its tables.

    Args:
        which: of the jobs.
        bootstrap: the cluster.
        database: that it writes to, or reads.
        directory: for what it says.
    """

    def __init__(self, which: Which, bootstrap: str, database: Database, directory: Path) -> None:
        self.which, self.bootstrap, self.database = which, bootstrap, database
        self.name, self.topic = unique(which), unique("numbers")
        self.url = database.url
        self.log = directory / f"{which}.log"
        self.log.touch()
        self._started: list[subprocess.Popen[bytes]] = []
        create_topics(bootstrap, {self.topic: 2})
        with database.judge.begin() as connection:
            self.make_tables(connection)

    def make_tables(self, connection: Connection) -> None:
        create(connection, (jobs.sink if self.which == "sink" else jobs.relay).own_tables)
        if self.which == "sink":
            jobs.numbers.create(connection)

    def feed(self, *numbers: int) -> None:
        if self.which == "sink":
            produce_plain(
                self.bootstrap, self.topic, [PlainRecord(b"%d" % n, partition=n % 2) for n in numbers]
            )
            return
        with self.database.judge.begin() as connection:
            for n in numbers:
                jobs.relay.outbox.add(connection, self.topic, b"%d" % n, b"%d" % n)

    def written(self) -> list[int]:
        """What a reader sees at the other end."""
        if self.which == "sink":
            return [n for (n,) in self.database.seen("SELECT n FROM numbers ORDER BY n")]
        return sorted(
            int(one.value or b"") for one in read_committed(self.bootstrap, self.topic, timeout_s=PATIENCE_S)
        )

    def eos(self, *command: str, **others: str) -> subprocess.Popen[bytes]:
        """`eos COMMAND` of the job; what it says is in the log."""
        environment = {
            "EOS_KAFKA__BOOTSTRAP_SERVERS": self.bootstrap,
            "EOS_SQL__URL": self.url,
            "TEST_NAME": self.name,
            "TEST_TOPIC": self.topic,
        }
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "eos.cli", *command],
                env=os.environ | environment | others,
                stdout=log,
                stderr=log,
            )
        self._started.append(process)
        return process

    def at_work(self, *numbers: int, **others: Any) -> subprocess.Popen[bytes]:
        """The job in a process, with these numbers written."""
        self.feed(*numbers)
        process = self.start(**others)
        self.wait_for(len(numbers))
        return process

    def close(self) -> None:
        """End what still runs."""
        for process in self._started:
            process.kill()
            process.wait()

    def start(self, *, caught_up: bool = False, pad: int = 1, **changed: object) -> subprocess.Popen[bytes]:
        """`eos run`, with little patience; a setting is given as ``input__start``."""
        settings = _QUICK | {name.replace("__", "."): value for name, value in changed.items()}
        given = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        job = f"tests.support.jobs_for_databases:{self.which}"
        more = ["--until-caught-up"] if caught_up else []
        return self.eos("run", job, *given, *more, TEST_PAD=str(pad))

    def catch_up(self, **changed: object) -> int:
        """Its exit code."""
        return ended(self.start(caught_up=True, **changed))  # type: ignore[arg-type]

    def wait_for(self, count: int, timeout_s: float = PATIENCE_S) -> None:
        """Until so many are written."""
        deadline = time.monotonic() + timeout_s
        while len(self.written()) < count:
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.2)

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def assert_exact(self, numbers: Sequence[int]) -> None:
        assert self.written() == list(numbers), self.said()


def ended(process: subprocess.Popen[bytes], timeout_s: float = PATIENCE_S) -> int:
    """Its exit code; one that does not end is killed, with what it has started."""
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
        raise
