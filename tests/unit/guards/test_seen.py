"""What a start has seen of eos's own offsets does not go, does not go back, and is not begun anew; a topic that was created anew is another case."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from eos.core.surroundings import TakeOver
from eos.errors import ConfigError, OffsetGapError
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.group.topics import TopicIds
from eos.guards import seen
from eos.guards.seen import SeenOffsets, gone_back
from eos.guards.takeover import recreated
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition
from tests.support.settings import settings_of

P0, P1 = Partition("in", 0), Partition("in", 1)
SETTINGS = settings_of("nowhere:1")

Stored = dict[Partition, Committed]
Compare = Callable[[Stored, Stored], None]


def own(offset: int, topic: str = "id", *, shard: str = "#0") -> Committed:
    return Committed(offset, str(OffsetMetadata(OwnershipMode.GROUP, shard, topic=topic)))


@pytest.fixture(autouse=True)
def written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every partition has had records, in the topic that the offsets count in."""
    monkeypatch.setattr(seen, "ever_written", lambda _, partitions: list(partitions))
    monkeypatch.setattr(TopicIds, "soon", lambda *_, **__: {"in": "id"})


def look_twice(first: Stored, then: Stored) -> None:
    looks = SeenOffsets(SETTINGS, "g")
    looks.compare([P0, P1], first)
    looks.compare([P0, P1], then)


def found(first: Stored, then: Stored, topic_ids: dict[str, str] | None = None) -> TakeOver:
    return TakeOver(
        group="g",
        mode=OwnershipMode.GROUP,
        app="mine",
        partitions=[P0],
        stored=then,
        positions=OffsetVector(),
        topic_ids=topic_ids or {},
        known_ids=set(),
        entered=first,
    )


def take_over(first: Stored, then: Stored) -> None:
    gone_back(SETTINGS, found(first, then))


both = pytest.mark.parametrize("compare", [look_twice, take_over])


@both
@pytest.mark.parametrize(
    "then",
    [
        {P0: own(5), P1: own(9)},
        {P0: own(8), P1: own(9)},
        {P0: Committed(2, ""), P1: own(9)},  # another program's: another guard refuses it
        {P0: own(0, "other"), P1: own(0, "other")},
        {P1: own(0, "other")},
        {P0: own(5, shard="start"), P1: own(9)},
        {P0: own(8, shard="adopted"), P1: own(9)},
    ],
    ids=[
        "the same",
        "further on",
        "another program's",
        "created anew",
        "created anew and not begun",
        "begun anew where it was",
        "another start has adopted another program's",
    ],
)
def test_what_is_no_step_back_is_gone_on_from(compare: Compare, then: Stored) -> None:
    compare({P0: own(5), P1: own(9)}, then)


@both
def test_offset_that_another_start_has_begun_anew_further_on_is_refused(compare: Compare) -> None:
    """The group was deleted, and one of its starts began with only new input: 8 records were never processed, exit 0."""
    with pytest.raises(ConfigError, match=r"in\[0\].*has 8 now.*begun anew .* may never be processed"):
        compare({P0: own(5), P1: own(9)}, {P0: own(8, shard="start"), P1: own(9)})


@both
def test_offset_that_went_back_is_refused(compare: Compare) -> None:
    with pytest.raises(
        ConfigError, match=r"in\[0\].*committed offset 5 when this instance started, and has 4"
    ):
        compare({P0: own(5), P1: own(9)}, {P0: own(4), P1: own(9)})


@both
def test_offset_that_is_gone_beside_others_of_its_topic_is_refused(compare: Compare) -> None:
    """A partition whose own offset alone had counted it passed for a new one, and was read from its beginning."""
    with pytest.raises(ConfigError, match=r"in\[0\].*had committed offsets .* and has none here any more"):
        compare({P0: own(5), P1: own(9)}, {P1: own(9)})
    compare({P0: own(0), P1: own(9)}, {P1: own(9)})  # it begins where it was


def test_topic_that_has_lost_all_its_offsets_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"had committed offsets .* and has none here any more"):
        look_twice({P0: own(0), P1: own(9)}, {})


def test_topic_that_was_created_anew_is_not_called_one_whose_offsets_were_deleted() -> None:
    """The fix counted in the deleted topic: who followed it skipped as many records of the new one."""
    with pytest.raises(OffsetGapError, match=r"created anew.*--to earliest"):
        recreated(SETTINGS, found({P0: own(5)}, {}, {"in": "other"}))
    recreated(SETTINGS, found({P0: own(5)}, {}, {"in": "id"}))
    recreated(SETTINGS, found({P0: own(5)}, {P1: own(0, "other")}, {"in": "other"}))
