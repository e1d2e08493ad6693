"""Brokers with fixed roles, and producers on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer

from tests.support.mock_cluster import MockCluster
from tests.support.mock_shard import GROUP, GROUP_COORDINATOR, LEADER, MockShard

NewShard = Callable[..., MockShard]


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    """Three brokers: one leads both topics, one coordinates transactions, one the group."""
    with MockCluster(brokers=3) as running:
        for topic in ("in", "out"):
            running.topic_create(topic, partitions=1, rf=3)
            running.partition_set_leader(topic, 0, LEADER)
        running.coordinator_set("group", GROUP, GROUP_COORDINATOR)
        yield running


@pytest.fixture
def new_shard(cluster: MockCluster) -> Iterator[NewShard]:
    """A maker of shards; its options are settings of ``[transaction]``."""
    group = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": GROUP, "log_level": 0})
    shards: list[MockShard] = []

    def create(**transaction: object) -> MockShard:
        shards.append(MockShard(cluster, group, len(shards), **transaction))
        return shards[-1]

    yield create
    for shard in shards:
        shard.producer.close()
    group.close()


@pytest.fixture
def shard(new_shard: NewShard) -> MockShard:
    """A shard whose producer is open; only requests from now on are counted."""
    made = new_shard()
    made.producer.open()
    made.cluster.clear_requests()
    return made
