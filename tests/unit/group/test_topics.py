"""A topic that the asked broker does not know yet, and one that nobody knows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from eos.errors import ConfigError, OffsetGapError
from eos.group.topics import known_partitions, known_topics, refuse_recreated
from eos.kafka.admin import TopicShape
from eos.offsets import Partition

SHAPE = TopicShape(2, 3, "id")


class Brokers:
    """Answers as an admin client whose broker learns of a topic at the third question."""

    def __init__(self, known_from: int) -> None:
        self.asked = 0
        self._known_from = known_from

    def topics(self, names: Iterable[str], timeout_s: float, *, hidden: object = ()) -> dict[str, TopicShape]:
        self.asked += 1
        return {name: SHAPE for name in names if name != "new" or self.asked >= self._known_from}


def test_broker_whose_metadata_are_behind_is_asked_again() -> None:
    brokers: Any = Brokers(known_from=3)
    found = known_partitions(brokers, ["old", "new"], timeout_s=20)
    assert found == [Partition(topic, number) for topic in ("old", "new") for number in (0, 1)]
    assert brokers.asked == 3


def test_topic_that_no_broker_learns_of_is_missing_after_the_time_for_it() -> None:
    brokers: Any = Brokers(known_from=10**6)
    assert known_topics(brokers, ["old", "new"], timeout_s=20, appear_s=0.3) == {"old": SHAPE}
    with pytest.raises(ConfigError, match="topic 'new' does not exist"):
        known_partitions(brokers, ["old", "new"], timeout_s=0.4)


def test_no_topics_are_no_question() -> None:
    brokers: Any = Brokers(known_from=0)
    assert known_partitions(brokers, [], timeout_s=1) == []
    assert not brokers.asked


def test_offsets_of_two_topics_of_one_name_are_not_all_said_to_belong_to_the_deleted_one() -> None:
    """The way out that was named, all of it from its beginning, processed twice what is counted in the topic of today."""
    with pytest.raises(OffsetGapError, match=r"topic was deleted.*--to earliest"):
        refuse_recreated({("in", "old")}, {"in": "new"})
    with pytest.raises(OffsetGapError, match=r"some in another one.*Fix: set those alone"):
        refuse_recreated({("in", "old"), ("in", "new")}, {"in": "new"})
