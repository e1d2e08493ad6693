"""What a start has seen of eos's own offsets does not go, and does not go back; what says so is no topic that was created anew."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from eos.core.surroundings import TakeOver
from eos.errors import ConfigError
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.guards import seen
from eos.guards.seen import SeenOffsets, gone_back
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition
from tests.support.settings import settings_of

P0, P1 = Partition("in", 0), Partition("in", 1)
SETTINGS = settings_of("nowhere:1")

Stored = dict[Partition, Committed]
Compare = Callable[[Stored, Stored], None]


def own(offset: int, topic: str = "id") -> Committed:
    return Committed(offset, str(OffsetMetadata(OwnershipMode.GROUP, "#0", topic=topic)))


@pytest.fixture(autouse=True)
def written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every partition has had records."""
    monkeypatch.setattr(seen, "ever_written", lambda _, partitions: list(partitions))


def look_twice(first: Stored, then: Stored) -> None:
    looks = SeenOffsets(SETTINGS, "g")
    looks.compare([P0, P1], first)
    looks.compare([P0, P1], then)


def take_over(first: Stored, then: Stored) -> None:
    gone_back(
        SETTINGS,
        TakeOver(
            group="g",
            mode=OwnershipMode.GROUP,
            app="mine",
            partitions=[P0],
            stored=then,
            positions=OffsetVector(),
            topic_ids={},
            known_ids=set(),
            entered=first,
        ),
    )


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
    ],
    ids=["the same", "further on", "another program's", "created anew", "created anew and not begun"],
)
def test_what_is_no_step_back_is_gone_on_from(compare: Compare, then: Stored) -> None:
    compare({P0: own(5), P1: own(9)}, then)


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
