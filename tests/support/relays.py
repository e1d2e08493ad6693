"""An application's database with an outbox, and its relay, run by `eos.run` or in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, MetaData

import eos
from eos.events import Event
from eos.settings import Settings
from eos.shards import ledger_group
from eos.sql import Outbox, OutboxJob
from eos.sql.tables import create
from tests.support.databases import Database
from tests.support.jobs_for_faults import settings_for
from tests.support.observer import SeenRecord, committed_offsets, create_topics, read_committed, unique
from tests.support.patience import PATIENCE_S

PARTITIONS = 2
TIMEOUT_MS = 6_000  # of a transaction: the longest that an owner that stands still holds its row


class Books:
    """An application's database with an outbox, and its relay."""

    def __init__(self, bootstrap: str, database: Database) -> None:
        self.bootstrap, self.database = bootstrap, database
        self.name, self.topic = unique("relay"), unique("out")
        create_topics(bootstrap, {self.topic: PARTITIONS})
        self.outbox = Outbox(MetaData())
        with database.judge.begin() as connection:
            create(connection, OutboxJob(name=self.name, outbox=self.outbox, outputs=[self.topic]).own_tables)
        self.told: list[Event] = []

    def job(self, **others: Any) -> OutboxJob:
        given: dict[str, Any] = {"name": self.name, "outbox": self.outbox, "outputs": [self.topic]}
        return OutboxJob(**(given | others))

    def put(self, *numbers: int, key: Callable[[int], bytes | None] = lambda n: b"k%d" % (n % 5)) -> None:
        with self.database.judge.begin() as connection:
            self.put_in(connection, *numbers, key=key)

    def put_in(
        self,
        connection: Connection,
        *numbers: int,
        key: Callable[[int], bytes | None] = lambda n: b"k%d" % (n % 5),
    ) -> None:
        for n in numbers:
            self.outbox.add(connection, self.topic, key(n), b"%d" % n, {"n": b"%d" % n})

    def run(self, job: OutboxJob | None = None, **changed: Any) -> None:
        eos.run(job or self.job(), self.settings(**changed), until_caught_up=True, listener=self.told.append)

    def settings(self, **changed: Any) -> Settings:
        return settings_for(
            self.bootstrap,
            **({"sql__url": self.database.url, "transaction__timeout_ms": TIMEOUT_MS} | changed),
        )

    def child(self, point: str = "", nth: int = 1, how: str = "SIGKILL") -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-m",
            "tests.support.relay_child",
            self.name,
            self.topic,
            point,
            str(nth),
            how,
        ]
        environment = {
            "EOS_KAFKA__BOOTSTRAP_SERVERS": self.bootstrap,
            "EOS_SQL__URL": self.database.url,
            "EOS_TRANSACTION__MAX_RECORDS": "7",
            "EOS_TRANSACTION__TIMEOUT_MS": str(TIMEOUT_MS),
            "EOS_ORDINAL": "0",
        }
        return subprocess.Popen(command, env=os.environ | environment, stderr=subprocess.PIPE, text=True)

    def records(self) -> list[SeenRecord]:
        return read_committed(self.bootstrap, self.topic, timeout_s=PATIENCE_S)

    def numbers(self) -> list[int]:
        return sorted(int(record.value or b"") for record in self.records())

    def relayed(self, shard: int = 0) -> int:
        """What a shard's group has committed."""
        group = ledger_group(self.name, self.name, shard)
        return committed_offsets(self.bootstrap, group, [(self.topic, 0)])[self.topic, 0][0] or 0

    def assert_exact(self, numbers: range) -> None:
        assert self.numbers() == list(numbers)
        assert self.relayed() == len(numbers)


def in_order(records: list[SeenRecord]) -> bool:
    """Whether the records of each key are in the order of their numbers."""
    by_key: dict[bytes | None, list[int]] = {}
    for record in sorted(records, key=lambda one: (one.partition, one.offset)):
        by_key.setdefault(record.key, []).append(int(record.value or b""))
    return all(numbers == sorted(numbers) for numbers in by_key.values())
