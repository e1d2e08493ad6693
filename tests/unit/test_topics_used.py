"""TopicsUsed: a transaction whose topics are not those any more that it began with is never committed."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from eos.errors import AbortableError, ConfigError, OffsetGapError, RetriableError
from eos.kafka.admin import TopicShape
from eos.producer.topics_used import TopicsUsed
from tests.support.settings import settings_of


class Cluster:
    """The ids that topics have now, as the admin client reads them."""

    def __init__(self) -> None:
        self.ids = {"in": "in-1", "out": "out-1", "other": "other-1"}
        self.answers = True

    def topics(self, names: Iterable[str], timeout_s: float) -> dict[str, TopicShape]:
        if not self.answers:
            raise RetriableError("no answer")
        return {name: TopicShape(1, 1, self.ids[name]) for name in names if name in self.ids}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    one = Cluster()
    monkeypatch.setattr("eos.group.topic_ids.shared_admin", lambda *_: one)
    return one


@pytest.fixture
def used(cluster: Cluster) -> TopicsUsed:
    """The topics of a transaction that is open, and has written its first record."""
    one = TopicsUsed(settings_of("nowhere:1", transaction__timeout_ms=2000))
    one.begin()
    one.write("out")
    return one


def test_topics_that_stay_the_same_let_the_transaction_commit(used: TopicsUsed) -> None:
    used.read({"in": "in-1"})
    used.last_look()


def test_output_that_is_created_anew_is_seen_before_the_commit_and_the_next_transaction_writes_to_the_new_one(
    used: TopicsUsed, cluster: Cluster
) -> None:
    cluster.ids["out"] = "out-2"
    with pytest.raises(AbortableError, match="out: the output topic was deleted and created anew"):
        used.last_look()
    used.begin()
    used.write("out")
    used.last_look()


def test_output_that_is_created_anew_between_two_transactions_is_seen_too(
    used: TopicsUsed, cluster: Cluster
) -> None:
    used.last_look()
    cluster.ids["out"] = "out-2"
    used.begin()
    used.write("out")
    with pytest.raises(AbortableError, match="created anew"):
        used.last_look()


def test_input_that_is_created_anew_is_seen_before_the_commit(used: TopicsUsed, cluster: Cluster) -> None:
    used.read({"in": "in-1"})
    cluster.ids["in"] = "in-2"
    with pytest.raises(OffsetGapError, match="in"):
        used.last_look()


def test_output_that_is_gone_ends_the_transaction(used: TopicsUsed, cluster: Cluster) -> None:
    del cluster.ids["out"]
    with pytest.raises(ConfigError, match="topic out does not exist"):
        used.last_look()


def test_ids_that_no_broker_tells_abort_the_transaction(used: TopicsUsed, cluster: Cluster) -> None:
    cluster.answers = False
    with pytest.raises(AbortableError, match="the topic ids of out could not be read"):
        used.last_look()
