"""Mock clusters, and producers on them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from eos.testing.proxy.frames import ApiKey
from tests.support.mock_cluster import MockCluster
from tests.support.mock_shard import MockShard

NewShard = Callable[..., MockShard]


@pytest.fixture(autouse=True)
def _topics_without_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mock has no controller, whom librdkafka asks for the ids of topics; brokers before 2.8 have none either."""
    monkeypatch.setattr(
        "eos.group.topics.TopicIds.now", lambda _, topics, _timeout_s: dict.fromkeys(topics, "")
    )


_ordinals = itertools.count()


def running(brokers: int) -> Iterator[MockCluster]:
    with MockCluster(brokers) as cluster:
        for topic in ("in", "out"):
            cluster.topic_create(topic, partitions=1, rf=brokers)
        yield cluster


# One broker in every role, kept for a module: the mock may take a second to notice a change of roles.
# Errors and delays are pushed to two different ones, because a broker that was ever given delays for a
# kind of request no longer looks at the errors of its cluster.


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[MockCluster]:
    yield from running(brokers=1)


@pytest.fixture(scope="module")
def shared_slow_cluster() -> Iterator[MockCluster]:
    yield from running(brokers=1)


@pytest.fixture
def cluster(shared_cluster: MockCluster) -> Iterator[MockCluster]:
    """One broker for ``push_errors``, with nothing left of the last test."""
    yield shared_cluster
    for api_key in ApiKey:
        shared_cluster.clear_errors(api_key)
    shared_cluster.clear_requests()


@pytest.fixture
def slow_cluster(shared_slow_cluster: MockCluster) -> Iterator[MockCluster]:
    """One broker, with id 1, for ``push_error_rtts``; a test has to use up what it pushes."""
    yield shared_slow_cluster
    shared_slow_cluster.clear_requests()


@pytest.fixture
def three_brokers() -> Iterator[MockCluster]:
    """Three brokers, for tests in which a role moves or only one of them goes away."""
    yield from running(brokers=3)


@pytest.fixture
def new_shard(request: pytest.FixtureRequest) -> Iterator[NewShard]:
    """A maker of shards, on ``cluster`` unless told otherwise; other options are settings of ``[transaction]``."""
    shards: list[MockShard] = []

    def create(on: MockCluster | None = None, **transaction: object) -> MockShard:
        on = on or request.getfixturevalue("cluster")
        shards.append(MockShard(on, next(_ordinals), **transaction))
        return shards[-1]

    yield create
    for shard in shards:
        shard.close()


@pytest.fixture
def shard(new_shard: NewShard) -> MockShard:
    """A shard whose producer is open; only requests from now on are counted."""
    made = new_shard()
    made.producer.open()
    made.cluster.clear_requests()
    return made
