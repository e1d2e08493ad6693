"""TopicsUsed: a transaction whose topics are not those any more that it began with is never committed."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest

from eos.core.topics_used import TopicsUsed
from eos.errors import AbortableError, ConfigError, OffsetGapError, RecordRefusedError, RetriableError
from eos.kafka.admin import TopicShape
from tests.support.settings import settings_of


class Cluster:
    """The ids that topics have now, as the admin client reads them."""

    def __init__(self) -> None:
        self.ids = {"in": "in-1", "out": "out-1", "other": "other-1"}
        self.answers = True
        self.needs_s = 0.0
        self.asked = 0
        self.turn: tuple[int, str, str] | None = None  # with this question another id is known of a topic

    def topics(self, names: Iterable[str], timeout_s: float) -> dict[str, TopicShape]:
        self.asked += 1
        if self.turn is not None and self.asked >= self.turn[0]:
            self.ids[self.turn[1]] = self.turn[2]
        time.sleep(min(self.needs_s, timeout_s))
        if not self.answers or timeout_s < self.needs_s:
            raise RetriableError("no answer")
        return {name: TopicShape(1, 1, self.ids[name]) for name in names if name in self.ids}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    one = Cluster()
    monkeypatch.setattr("eos.group.topics.shared_admin", lambda *_: one)
    return one


@pytest.fixture
def used(cluster: Cluster) -> TopicsUsed:
    """The topics of a transaction that is open, and has written its first record."""
    one = TopicsUsed(settings_of("nowhere:1", transaction__timeout_ms=2000))
    one.begin()
    one.write("out")
    return one


def test_brokers_that_are_slow_are_waited_for_and_the_next_question_waits_as_long_at_once(
    cluster: Cluster,
) -> None:
    """Tries of a second each never had an answer: nothing was committed for as long as the brokers needed longer."""
    used = TopicsUsed(settings_of("nowhere:1", transaction__timeout_ms=20_000))
    used.begin()
    used.write("out")
    cluster.needs_s = 1.2
    used.last_look()
    cluster.asked = 0
    used.last_look()
    assert cluster.asked == 1


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


@pytest.mark.parametrize("behind", ["in-0", "in-2"])
def test_input_of_which_brokers_tell_two_ids_aborts_the_transaction_and_no_more(
    used: TopicsUsed, cluster: Cluster, behind: str
) -> None:
    """One of them stood still while the topic was created anew; which, is not known: the fix of a new topic would double the input."""
    used.read({"in": "in-1"})
    cluster.ids["in"] = behind
    cluster.turn = cluster.asked + 3, "in", "in-1"
    with pytest.raises(AbortableError, match="brokers tell different ids"):
        used.last_look()
    used.begin()
    used.read({"in": "in-1"})
    used.last_look()


def test_stored_offsets_of_which_brokers_tell_two_ids_abort_the_transaction_and_no_more(
    used: TopicsUsed, cluster: Cluster
) -> None:
    """Those that are compared where the offsets to be sent name no topic."""
    with pytest.raises(AbortableError, match="brokers tell different ids"):
        used.refuse_recreated({("in", "in-1")}, {"in": "in-0"})
    with pytest.raises(OffsetGapError, match="its id was in-0, now it is in-1"):
        used.refuse_recreated({("in", "in-0")}, used.ids_of({"in"}))


def test_output_that_is_gone_ends_the_transaction(used: TopicsUsed, cluster: Cluster) -> None:
    del cluster.ids["out"]
    with pytest.raises(ConfigError, match="topic out does not exist"):
        used.last_look()


def test_ids_that_no_broker_tells_abort_the_transaction(used: TopicsUsed, cluster: Cluster) -> None:
    cluster.answers = False
    with pytest.raises(AbortableError, match="the topic ids of out could not be read"):
        used.last_look()


def test_output_that_records_do_not_find_is_waited_for_before_it_counts_as_gone(
    used: TopicsUsed, cluster: Cluster
) -> None:
    """Deleted and created anew by one command after the other: the job ended, because it looked in between."""
    not_found = RecordRefusedError("out: the topic does not exist", code="_UNKNOWN_TOPIC")
    del cluster.ids["out"]
    cluster.turn = cluster.asked + 3, "out", "out-2"
    why = used.explained(not_found)
    cluster.turn = None
    assert isinstance(why, AbortableError)
    assert "deleted and created anew" in str(why)

    used.begin()
    used.write("out")
    del cluster.ids["out"]
    assert isinstance(used.explained(not_found), ConfigError)
