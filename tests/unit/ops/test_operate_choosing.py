"""What an operator's commands refuse of a topic whose id is another one now."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from eos.errors import OffsetGapError, UnavailableError
from eos.kafka.admin import TopicShape
from eos.ops.operate.choosing import refuse_recreated
from tests.support.settings import settings_of

STORED = frozenset({("orders", "first")})


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The ids that brokers tell when they are asked again."""
    ids = {"orders": "first"}

    class Brokers:
        def topics(self, names: Iterable[str], _timeout_s: float) -> dict[str, TopicShape]:
            return {name: TopicShape(1, 1, ids[name]) for name in names}

    brokers = Brokers()
    monkeypatch.setattr("eos.group.topics.shared_admin", lambda *_: brokers)
    return ids


def test_offsets_of_a_topic_that_all_brokers_tell_another_id_of_are_refused(told: dict[str, str]) -> None:
    told["orders"] = "second"
    with pytest.raises(OffsetGapError, match="its id was first, now it is second"):
        refuse_recreated(settings_of("nowhere:1"), STORED, {"orders": "second"})


@pytest.mark.usefixtures("told")
def test_offsets_of_a_topic_that_one_broker_tells_another_id_of_are_asked_for_later() -> None:
    """The fix of a recreated topic would process it twice."""
    with pytest.raises(UnavailableError, match="brokers tell different ids"):
        refuse_recreated(settings_of("nowhere:1"), STORED, {"orders": "second"})
    refuse_recreated(settings_of("nowhere:1"), STORED, {"orders": "first"})
