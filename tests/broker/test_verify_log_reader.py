"""What a verification reads of a log: all of the range that it was given."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import Producer

from eos.base.deadline import Deadline
from eos.offsets import Partition
from eos.ops.verifier.logs import LogReader, Range
from tests.support.jobs_for_faults import settings_for
from tests.support.observer import create_topics, load, unique
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker


def test_an_end_that_comes_before_the_range_s_is_none(bootstrap: str) -> None:
    """As from a new leader, whose high watermark is behind for a moment: it has the records, and does not hand them out yet."""
    topic = unique("in")
    create_topics(bootstrap, {topic: 1})
    load(bootstrap, topic, 1)
    later = threading.Timer(2.0, load, (bootstrap, topic, 1, "9"))
    with LogReader(settings_for(bootstrap), unique("reader"), Deadline(PATIENCE_S)) as reader:
        later.start()
        found = [record.value for record in reader.records({Partition(topic, 0): Range(0, 2)})]
    later.join()
    assert found == [b"0", b"90"]


def test_a_range_without_any_visible_record_is_read_to_its_end(bootstrap: str) -> None:
    topic = unique("in")
    create_topics(bootstrap, {topic: 1})
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": unique("aborted")})
    producer.init_transactions(PATIENCE_S)
    for _ in range(2):
        producer.begin_transaction()
        producer.produce(topic, b"x")
        producer.flush(PATIENCE_S)
        producer.abort_transaction(PATIENCE_S)
    with LogReader(settings_for(bootstrap), unique("reader"), Deadline(PATIENCE_S)) as reader:
        ranges = reader.settled(reader.partitions([topic]))
        assert ranges == {Partition(topic, 0): Range(0, 4)}
        assert list(reader.records(ranges)) == []
        assert list(reader.records({Partition(topic, 0): Range(3, 4)})) == []
