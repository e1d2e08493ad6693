"""The benchmark's look at an output: what it counts decides who is called exact."""

from __future__ import annotations

from confluent_kafka import Producer

from bench.check import read_output
from tests.support.patience import PATIENCE_S


def test_records_keys_and_transactions_are_counted_per_partition() -> None:
    producer = Producer(
        {"bootstrap.servers": "", "test.mock.num.brokers": 1, "transactional.id": "t", "log_level": 0}
    )
    brokers = producer.list_topics(timeout=PATIENCE_S).brokers.values()
    producer.init_transactions(PATIENCE_S)
    for first in (0, 10):
        producer.begin_transaction()
        for number in range(first, first + 10):
            producer.produce("output", b"value", number.to_bytes(8), partition=number % 2)
        producer.commit_transaction(PATIENCE_S)

    output = read_output(",".join(f"{broker.host}:{broker.port}" for broker in brokers), "output")

    assert output.shares[:2] == ((10, sum(range(0, 20, 2))), (10, sum(range(1, 20, 2))))
    assert output.records == 20
    assert output.markers == 2
