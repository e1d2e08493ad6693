"""A zstd batch that unpacks to more than receive.message.max.bytes: every reader says which option it needs, and takes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from eos.errors import ConfigError, TransformError
from eos.exits import ExitCode
from tests.support.command_line import Eos
from tests.support.jobs_for_faults import fault_job
from tests.support.observer import read_committed
from tests.support.operated import GROUP, Operated
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker

COUNT = 3_000  # records of 1 kB, in one batch
FETCHED = {"fetch.max.bytes": 1_000_000, "max.partition.fetch.bytes": 1_000_000}
FIX = "Fix: a larger receive.message.max.bytes in [kafka.consumer]"


def produce_one_batch(bootstrap: str, topic: str) -> None:
    """Its last record is poison."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": "zstd",
            "batch.size": 10_000_000,
            "message.max.bytes": 10_000_000,
            "linger.ms": 60_000,  # until the flush
        }
    )
    # Else the records wait for the topic's metadata, and the flush may find a part of them in the partition's queue.
    producer.list_topics(topic, PATIENCE_S)
    for number in range(COUNT - 1):
        producer.produce(topic, b"v%d " % number + b"0" * 1_000, b"k", 0)
    producer.produce(topic, b"poison", b"k", 0)
    assert producer.flush(PATIENCE_S) == 0


def test_batch_that_unpacks_to_more_than_the_reader_takes(bootstrap: str, eos: Eos, tmp_path: Path) -> None:
    job = fault_job(bootstrap, partitions=1)
    (source,) = job.inputs
    produce_one_batch(bootstrap, source)
    many = {"transaction__max_records": COUNT, "input__fetch_records": 500}

    def limited(room: int) -> Operated:
        consumer = {
            f"kafka.consumer.{name}": value
            for name, value in {**FETCHED, "receive.message.max.bytes": room}.items()
        }
        return Operated(eos, tmp_path, bootstrap, job, {**GROUP, **many, **consumer})

    narrow, wide = limited(1_100_000), limited(8_000_000)
    skipping = ("skip", "JOB", f"{source}:0@{COUNT - 1}", "--reason", "no", "--yes")
    with pytest.raises(ConfigError, match=r"receive.message.max.bytes in \[kafka.consumer\]"):
        narrow.run()
    assert narrow("run", "JOB", "--until-caught-up").code == ExitCode.CONFIGURATION
    assert narrow.offsets()[0] in (None, 0)

    with pytest.raises(TransformError):
        wide.run()
    for words, code in (
        (skipping, ExitCode.DONE),
        (("run", "JOB", "--until-caught-up"), ExitCode.DONE),
        (("verify", "JOB", "--complete"), ExitCode.DONE),
        (("show", source, "-n", "1"), ExitCode.DONE),
    ):
        if words[0] != "run":
            refused = narrow(*words)
            assert (refused.code, FIX in refused.err) == (ExitCode.CONFIGURATION, True), (words, refused)
        done = wide(*words)
        assert done.code == code, (words, done)
    assert len(read_committed(bootstrap, job.out)) == COUNT - 1
    assert len(read_committed(bootstrap, job.dead)) == 1
