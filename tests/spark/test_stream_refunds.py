"""jobs.refunds_stream writes what the loop writes for the same input, in each merchant's order."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaException

from eos.kafka.topics import create_topics
from eos.offsets import Partition
from eos.ops.verifier.verify import verify
from eos.records import InputRecord
from eos.shards import ledger_group
from eos.spark.jobs import StreamJob
from eos.spark.running import start_stream
from jobs import refunds, refunds_stream
from jobs.settlements import settlements
from tests.support.observer import PlainRecord, SeenRecord, lso, produce_plain, read_committed, unique
from tests.support.patience import PATIENCE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from eos.settings import Settings

pytestmark = pytest.mark.broker

_Row = tuple[str, bytes | None, bytes | None, tuple[object, ...], int | None]


def test_stream_writes_the_loops_records(
    spark: SparkSession, settled: Callable[..., Settings], bootstrap: str, tmp_path: Path
) -> None:
    """From one checkpoint, in batches that cut the input elsewhere than a loop would.

    The job's topics have fixed names, which other tests may use as well: what counts is what comes from here on.
    """
    outputs = sorted(refunds.job.written_topics)
    create_topics({"bootstrap.servers": bootstrap}, dict.fromkeys([refunds.SETTLEMENTS, *outputs], 3))
    before = {topic: _ends(bootstrap, topic) for topic in (refunds.SETTLEMENTS, *outputs)}
    job: StreamJob = replace(refunds_stream.job, name=unique("refunds-stream"))

    def new(*topics: str) -> list[SeenRecord]:
        return [r for r in read_committed(bootstrap, *topics) if r.offset >= before[r.topic][r.partition]]

    def run_to_end() -> None:
        run = start_stream(
            job,
            spark,
            settled(input__start="latest"),
            checkpoint=str(tmp_path / "checkpoint"),
            available_now=True,
            max_offsets_per_batch=150,
        )
        run.wait()
        run.sink.refresh()

    run_to_end()
    given = list(settlements(400, seed=7, poison_share=0.05))
    for part in (given[:250], given[250:]):
        produce_plain(bootstrap, refunds.SETTLEMENTS, [PlainRecord(one.value, one.key) for one in part])
        run_to_end()

    transform = refunds.refunds(refunds.RefundSettings())
    expected: list[_Row] = [
        (output.topic, output.key, output.value, output.headers, output.timestamp_ms)
        for record in new(refunds.SETTLEMENTS)
        for output in transform(InputRecord(*record))
    ]
    found: list[_Row] = [(r.topic, r.key, r.value, r.headers, r.timestamp_ms) for r in new(*outputs)]
    assert Counter(found) == Counter(expected)
    assert {row[0] for row in found} == set(outputs)
    for topic in (refunds.REFUNDS_EMITTED, refunds.REFUND_AUDIT):
        assert _by_key(found, topic) == _by_key(expected, topic)

    # From the outside, by the marks of its ledger: its shards keep no order but that of a key.
    begins = {Partition(topic, number): end for topic, ends in before.items() for number, end in ends.items()}
    report = verify(
        refunds.job,
        settled(),
        group=ledger_group(job.name, job.name, 0),
        input_from={p: end for p, end in begins.items() if p.topic == refunds.SETTLEMENTS},
        output_from={p: end for p, end in begins.items() if p.topic != refunds.SETTLEMENTS},
    )
    assert report.exactly_once, report.rows()
    assert report.records == len(given)
    assert "a Spark run has committed the offsets" in report.order


def _ends(bootstrap: str, topic: str) -> dict[int, int]:
    """Where the topic's partitions end; a new one's leader may not know of it yet."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return lso(bootstrap, topic)
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _by_key(rows: list[_Row], topic: str) -> dict[bytes | None, list[bytes | None]]:
    found: dict[bytes | None, list[bytes | None]] = {}
    for of, key, value, *_ in rows:
        if of == topic:
            found.setdefault(key, []).append(value)
    return found
