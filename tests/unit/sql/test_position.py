"""Whether an owner may go on from what its table says, and what became of a COMMIT without an answer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eos.errors import EosError, FencedError, OffsetGapError, RebalancedError
from eos.group.metadata import OPERATOR, OffsetMetadata, OwnershipMode
from eos.offsets import Partition
from eos.sql.position import Move, Outcome, Position, outcome_of, refusal

CASES = settings(max_examples=200, deadline=None)
P0, P1 = Partition("in", 0), Partition("in", 1)
ME, OTHER = "me", "other"
OPERATORS = str(OffsetMetadata(OwnershipMode.GROUP, OPERATOR))

offsets = st.integers(0, 20)
owners = st.sampled_from([ME, OTHER])


def at(offset: int, owner: str = ME, metadata: str = "m1") -> Position:
    return Position(offset, None, "id", metadata, owner, "app")


def to(start: int, end: int, metadata: str = "m2") -> Move:
    return Move(start, end, None, "id", metadata)


@given(offsets, offsets, owners)
@CASES
def test_an_owner_goes_on_only_from_its_own_position(expected: int, found: int, owner: str) -> None:
    refused = refusal(P0, expected, at(found, owner), ME)
    assert (refused is None) == (found == expected and owner == ME)


@given(offsets, offsets, owners)
@CASES
def test_a_position_that_went_back_is_a_gap_whoever_owns_it_and_one_that_did_not_is_a_fence(
    expected: int, found: int, owner: str
) -> None:
    refused = refusal(P0, expected, at(found, owner), ME)
    if found < expected:
        assert isinstance(refused, OffsetGapError)
        assert f"from {expected} to {found}" in str(refused)
    elif refused is not None:
        assert isinstance(refused, FencedError)


def test_a_token_of_another_shard_is_another_member_and_one_of_the_same_shard_another_owner() -> None:
    mine = "#0 me"
    assert refusal(P0, 5, at(5, mine), mine) is None
    assert isinstance(refusal(P0, 5, at(7, "#0 other"), mine), FencedError)
    assert isinstance(refusal(P0, 5, at(7, "#1 other"), mine), RebalancedError)
    assert isinstance(refusal(P0, 5, at(4, "#1 other"), mine), OffsetGapError)


def test_a_row_that_is_gone_is_a_gap() -> None:
    assert isinstance(refusal(P0, 0, None, ME), OffsetGapError)


@given(
    st.dictionaries(st.sampled_from([P0, P1]), st.tuples(offsets, st.integers(0, 3)), min_size=1),
    st.booleans(),
)
@CASES
def test_a_transaction_is_committed_if_its_moves_are_there_and_rolled_back_if_none_is(
    moved: dict[Partition, tuple[int, int]], committed: bool
) -> None:
    """Also one that moves from an offset to itself: its metadata is another one."""
    moves = {partition: to(start, start + step) for partition, (start, step) in moved.items()}
    stored = {
        partition: at(move.end, metadata=move.metadata) if committed else at(move.start or 0)
        for partition, move in moves.items()
    }
    assert outcome_of(moves, stored, ME) == (Outcome.COMMITTED if committed else Outcome.ROLLED_BACK)


@pytest.mark.parametrize(
    ("stored", "error"),
    [
        ({P0: at(5, OTHER), P1: at(5)}, FencedError),
        ({P0: at(7, OTHER, "m2"), P1: at(7, ME, "m2")}, FencedError),
        ({P0: at(9), P1: at(5)}, FencedError),
        ({P0: at(4), P1: at(5)}, OffsetGapError),
        ({P0: None, P1: at(5)}, OffsetGapError),
        ({P0: at(7, ME, "m2"), P1: at(5)}, OffsetGapError),
        ({P0: at(6, ME, "m2"), P1: at(7, ME, "m2")}, OffsetGapError),
    ],
    ids=["other", "other-after", "further", "back", "gone", "torn", "back-after"],
)
def test_anything_else_has_no_outcome(
    stored: dict[Partition, Position | None], error: type[EosError]
) -> None:
    with pytest.raises(error):
        outcome_of({P0: to(5, 7), P1: to(5, 7)}, stored, ME)


@pytest.mark.parametrize(
    ("position", "says"),
    [
        (at(7, OTHER, "m2"), "The transaction .* not answered was written"),
        (at(5, OTHER), "Nothing of the transaction .* not answered was written"),
        (at(9, OTHER, "m3"), "Whether the transaction .* not answered was written"),
        (at(5, OTHER, OPERATORS), "Whether the transaction .* not answered was written"),
    ],
    ids=["it was", "it was not", "hidden", "set back by an operator"],
)
def test_fence_says_of_a_commit_without_an_answer_what_the_position_shows(
    position: Position, says: str
) -> None:
    """It said of one that was written that nothing of it was."""
    with pytest.raises(FencedError, match=says):
        outcome_of({P0: to(5, 7)}, {P0: position}, ME)
