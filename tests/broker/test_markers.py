"""The pinned Kafka writes the marker of a partition that has no leader when a transaction ends, once it has one again.

A plain client only. Kafka 4.3.0 to 4.4.0 leave it out (KAFKA-20734; to see it, set EOS_LOCAL__KAFKA_HOME to an unpacked
4.3.1): when this fails after a change of ``eos.local.versions``, clusters of one broker can't be killed in tests.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from eos.local import LocalKafka
from tests.support import observer
from tests.support.own_broker import own_broker
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.fixture
def three(tmp_path: Path) -> Iterator[LocalKafka]:
    with own_broker(tmp_path, 3) as cluster:
        yield cluster


def leaders(admin: AdminClient, topic: str) -> dict[int, int]:
    """The broker that leads each partition; -1 for none."""
    found = admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
    return {number: partition.leader for number, partition in found.items()}


def test_transaction_that_ends_while_a_partition_has_no_leader_is_ended_there_once_it_has_one(
    three: LocalKafka,
) -> None:
    """The coordinator does not take the partition for a deleted one."""
    bootstrap, topic = three.bootstrap_servers, observer.unique("one-replica")
    observer.create_topics(bootstrap, {topic: 3}, rf=1, timeout_s=PATIENCE_S)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    orphan = next(number for number, leader in leaders(admin, topic).items() if leader == 3)

    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": observer.unique("canary"), "log_level": 0}
    )
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, b"committed", partition=orphan)
    producer.flush(PATIENCE_S)
    three.kill_broker(3)
    deadline = time.monotonic() + PATIENCE_S
    while leaders(admin, topic)[orphan] != -1:
        assert time.monotonic() < deadline, "the killed broker is not fenced"
        time.sleep(0.2)
    producer.commit_transaction(PATIENCE_S)
    three.restart_broker(3)

    deadline = time.monotonic() + PATIENCE_S
    while observer.watermarks(bootstrap, topic)[orphan] != (0, 2):
        assert time.monotonic() < deadline, "the record is there, and no marker"
        time.sleep(0.2)
    assert observer.lso(bootstrap, topic)[orphan] == 2
