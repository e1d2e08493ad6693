"""A streaming query that copies a topic through the exactly-once sink, for tests: started, ended, started again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from eos.events import Event
from eos.spark.stream.sink import ExactlyOnceSink, exactly_once_sink
from tests.support.observer import (
    PlainRecord,
    SeenRecord,
    committed_offsets,
    create_topics,
    produce_plain,
    read_committed,
    unique,
)
from tests.support.patience import PATIENCE_S
from tests.support.processes import Child, running_module
from tests.support.stream_child import copying

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from eos.settings import Settings

SHARDS, PER_BATCH = 3, 40


class Copy:
    """A query that copies a topic, and how often it was begun."""

    def __init__(self, spark: SparkSession, settings: Settings, bootstrap: str, directory: Path) -> None:
        self.spark, self.settings, self.bootstrap = spark, settings, bootstrap
        self.source, self.output, self.name = unique("in"), unique("out"), unique("copy")
        self.checkpoint = directory / "checkpoint"
        self.events: list[Event] = []
        create_topics(bootstrap, {self.source: 3, self.output: 2})

    def load(self, count: int, start: int = 0) -> None:
        produce_plain(
            self.bootstrap,
            self.source,
            [
                PlainRecord(b"v%d" % i, b"k%d" % (i % 11) if i % 4 else None, headers=(("n", b"%d" % i),))
                for i in range(start, start + count)
            ],
        )

    def sink(self, shards: int = SHARDS) -> ExactlyOnceSink:
        return exactly_once_sink(
            self.settings,
            name=self.name,
            outputs=[self.output],
            inputs=[self.source],
            shards=shards,
            listener=self.events.append,
        )

    def in_a_process(self, jars: list[Path], flag: Path, **others: object) -> AbstractContextManager[Child]:
        """The query in a driver of its own, which pauses in batch 1 until ``<flag>.go`` exists."""
        arguments: dict[str, object] = {
            "bootstrap": self.bootstrap,
            "jars": list(map(str, jars)),
            "name": self.name,
            "source": self.source,
            "output": self.output,
            "checkpoint": str(self.checkpoint),
            "shards": SHARDS,
            "per_batch": PER_BATCH,
            "pause_in": 1,
            "flag": str(flag),
        }
        return running_module("tests.support.stream_child", json.dumps(arguments | others))

    def run(
        self,
        sink: Callable[[DataFrame, int], None] | None = None,
        checkpoint: Path | None = None,
        *,
        wait_s: int = int(PATIENCE_S),
        per_batch: int = PER_BATCH,
    ) -> None:
        query = copying(
            self.spark,
            self.settings,
            self.source,
            sink or self.sink(),
            str(checkpoint or self.checkpoint),
            per_batch,
        )
        try:
            assert query.awaitTermination(wait_s)
        finally:
            query.stop()

    def next_batches(self, shards: int = SHARDS) -> list[int]:
        """Of each shard that has an entry."""
        entries = (
            committed_offsets(self.bootstrap, f"{self.name}.ledger.{k}", [(self.output, 0)])[self.output, 0]
            for k in range(shards)
        )
        return [offset for offset, _ in entries if offset is not None]

    def expect_exactly_once(self) -> None:
        """Every record once, with its headers and timestamp; a key's records in order."""
        wanted = read_committed(self.bootstrap, self.source)
        found = read_committed(self.bootstrap, self.output)
        assert Counter(map(_content, found)) == Counter(map(_content, wanted))
        assert _by_key(found) == _by_key(wanted)


def by_key(sink: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    """The sink behind a shuffle of the rows, so that it does not write them where they were read."""
    return lambda frame, batch: sink(frame.repartition(2, "key"), batch)


def _content(record: SeenRecord) -> tuple[object, ...]:
    return record.key, record.value, record.headers, record.timestamp_ms


def _by_key(records: list[SeenRecord]) -> dict[bytes, list[bytes | None]]:
    ordered: dict[bytes, list[bytes | None]] = {}
    for record in records:
        if record.key is not None:
            ordered.setdefault(record.key, []).append(record.value)
    return ordered
