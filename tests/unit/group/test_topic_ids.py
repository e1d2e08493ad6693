"""Records are of the topic that the owned offsets count in, or are not handed out."""

from __future__ import annotations

import pytest

from eos.errors import OffsetGapError
from eos.group.topics import may_be_of_another
from eos.offsets import OffsetVector, Partition

OWNED = OffsetVector({Partition("orders", 0): 100}, topic_ids={"orders": "first", "given-up": "first"})


@pytest.mark.parametrize("ids", [(), ("",), ("first",), ("", "first")], ids=str)
def test_records_under_the_id_of_the_owned_topic_are_of_it(ids: tuple[str, ...]) -> None:
    assert not may_be_of_another(OWNED, {"orders": ids})


@pytest.mark.parametrize("ids", [("second",), ("third", "second")], ids=str)
def test_records_under_no_other_than_another_id_are_refused(ids: tuple[str, ...]) -> None:
    with pytest.raises(OffsetGapError, match=r"orders: .*its id was first, now it is second"):
        may_be_of_another(OWNED, {"orders": ids})


@pytest.mark.parametrize(
    "ids", [("second", "first"), ("first", "second", "first"), ("first", "second"), ("", "second")], ids=str
)
def test_records_that_came_while_the_client_heard_of_both_are_fetched_again(ids: tuple[str, ...]) -> None:
    """Whichever came last: a broker that is behind may be asked behind one that is not."""
    assert may_be_of_another(OWNED, {"orders": ids})


def test_topic_of_which_no_partition_is_owned_any_more_is_not_looked_at() -> None:
    assert not may_be_of_another(OWNED, {"given-up": ("second",)})


def test_offsets_that_name_no_topic_are_taken_for_those_of_any() -> None:
    owned = OffsetVector({Partition("orders", 0): 100}, topic_ids={"orders": ""})
    assert not may_be_of_another(owned, {"orders": ("second",)})
