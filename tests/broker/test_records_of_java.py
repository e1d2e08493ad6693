"""Records as Java's clients write them, and librdkafka's do not: a plain copy of them is exact."""

from __future__ import annotations

import warnings

import pytest

from eos import InputRecord, Job, OutputRecord
from eos.runner.worker import run
from tests.support.jobs_for_faults import settings_for
from tests.support.observer import create_topics, read_committed, unique

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of importlib.resources, which it uses the old way
    from kafka import KafkaProducer

pytestmark = pytest.mark.broker

# max.message.bytes of a topic, without what a batch of one record needs beside its value.
LARGEST_VALUE = 1_048_588 - 80
LARGE = [b"x" * size for size in (999_900, 1_000_000, LARGEST_VALUE)]


def produce(bootstrap: str, topic: str, values: list[bytes], timestamp_ms: int) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", max_request_size=2_000_000)
    try:
        for value in values:
            producer.send(topic, value, timestamp_ms=timestamp_ms).get(20)
    finally:
        producer.close(20)


def copied(record: InputRecord) -> list[OutputRecord]:
    if record.value is not None and record.value.startswith(b"poison"):
        raise ValueError
    return [OutputRecord(OUT, record.value, record.key, record.headers, record.timestamp_ms)]


OUT = unique("out")


@pytest.mark.parametrize("values", [[b"a", b"b"], LARGE], ids=["without timestamp", "of the largest size"])
def test_plain_copy_is_exact(bootstrap: str, monkeypatch: pytest.MonkeyPatch, values: list[bytes]) -> None:
    source, out = unique("in"), unique("out")
    monkeypatch.setattr(f"{__name__}.OUT", out)
    create_topics(bootstrap, {source: 1, out: 1})
    produce(bootstrap, source, values, -1)
    run(
        Job(name=unique("copy"), inputs=[source], outputs=[out], transform=copied),
        settings_for(bootstrap),
        until_caught_up=True,
    )
    assert [record.value for record in read_committed(bootstrap, out)] == values


def test_dead_letter_of_a_record_of_the_largest_size_is_written_where_its_topic_takes_it(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out, dead = unique("in"), unique("out"), unique("dead")
    monkeypatch.setattr(f"{__name__}.OUT", out)
    create_topics(bootstrap, {source: 1, out: 1})
    create_topics(bootstrap, {dead: 1}, config={"max.message.bytes": "1100000"})
    poison = b"poison".ljust(LARGEST_VALUE, b"x")
    produce(bootstrap, source, [poison, b"a"], 1_700_000_000_000)
    job = Job(name=unique("dead"), inputs=[source], outputs=[out], dead_letters=dead, transform=copied)
    run(job, settings_for(bootstrap, poison__policy="dead-letter"), until_caught_up=True)
    assert [record.value for record in read_committed(bootstrap, out)] == [b"a"]
    (letter,) = read_committed(bootstrap, dead)
    assert letter.value == poison
    assert b"ValueError" in (dict(letter.headers)["eos.deadletter.error"] or b"")
