"""Keys land where the Java clients put them, so that pipelines of both stay co-partitioned."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from eos.job import Job
from eos.local.java import find_java
from eos.ops.verifier.placement import partition_of
from eos.records import InputBatch, InputRecord, OutputBatch, OutputRecord
from tests.support.jobs_for_faults import FaultJob, Running, fault_job, settings_for
from tests.support.observer import PlainRecord, create_topics, produce_plain, read_committed, unique
from tests.support.patience import PATIENCE_S

if TYPE_CHECKING:
    from eos.local import LocalKafka

pytestmark = pytest.mark.broker

PARTITIONS = 7
KEYS = [
    "",
    *"abcdefgh",
    "merchant-7",
    "Straße",
    "日本語のキー",
    "🂡🂢🂣",
    "\u0000",
    " ",
    "x" * 1000,
    *(f"key-{i}" for i in range(200)),
]


def java_partitions(kafka: LocalKafka) -> dict[bytes | None, int]:
    """Where Kafka's own console producer puts the keys."""
    topic = unique("java")
    create_topics(kafka.bootstrap_servers, {topic: PARTITIONS})
    command = [
        find_java(),
        "-Xmx256m",
        "-cp",
        kafka.classpath,
        "org.apache.kafka.tools.ConsoleProducer",
        *("--bootstrap-server", kafka.bootstrap_servers, "--topic", topic),
        *("--reader-property", "parse.key=true", "--reader-property", "key.separator=|"),
    ]
    lines = "".join(f"{key}|v\n" for key in KEYS)
    done = subprocess.run(
        command, input=lines, encoding="utf-8", capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    found = read_committed(kafka.bootstrap_servers, topic)
    assert len(found) == len(KEYS)
    return {record.key: record.partition for record in found}


def eos_partitions(bootstrap: str, *, batch: bool) -> dict[bytes | None, int]:
    names = fault_job(bootstrap, partitions=1)
    out = unique("eos")
    create_topics(bootstrap, {out: PARTITIONS})
    produce_plain(bootstrap, names.inputs[0], [PlainRecord(b"v", key.encode()) for key in KEYS])

    def copy(record: InputRecord) -> list[OutputRecord]:
        return [OutputRecord(out, record.value, record.key)]

    def copy_batch(records: InputBatch) -> list[OutputBatch]:
        return [OutputBatch(out, records.values, records.keys)]

    shape = {"transform_batch": copy_batch} if batch else {"transform": copy}
    run_to_end(Job(name=names.name, inputs=names.inputs, outputs=[out], **shape), bootstrap)
    found = read_committed(bootstrap, out)
    assert len(found) == len(KEYS)
    return {record.key: record.partition for record in found}


def run_to_end(job: Job, bootstrap: str) -> None:
    run = Running(job, settings_for(bootstrap), until_caught_up=True)
    try:
        run.wait()
    finally:
        run.ask_to_stop()


def test_keys_of_all_kinds_land_on_the_partitions_of_the_java_client(kafka: LocalKafka) -> None:
    java = java_partitions(kafka)
    assert len(set(java.values())) == PARTITIONS
    assert eos_partitions(kafka.bootstrap_servers, batch=False) == java
    assert eos_partitions(kafka.bootstrap_servers, batch=True) == java
    assert {key: partition_of(key or b"", PARTITIONS) for key in java} == java, (
        "and the verification knows it"
    )


def test_records_without_a_key_go_anywhere_and_none_is_missing(bootstrap: str) -> None:
    """The empty key is a key; no key is none."""
    names: FaultJob = fault_job(bootstrap, partitions=1)
    produce_plain(bootstrap, names.inputs[0], [b"%d" % i for i in range(2_000)])

    def copy(record: InputRecord) -> list[OutputRecord]:
        return [OutputRecord(names.out, record.value)]

    run_to_end(Job(name=names.name, inputs=names.inputs, outputs=[names.out], transform=copy), bootstrap)

    found = read_committed(bootstrap, names.out)
    assert len({record.value for record in found}) == 2_000
    assert {record.key for record in found} == {None}
