"""OffsetVector: the laws that commits, rewinds and comparisons rely on."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eos.offsets import OffsetVector, Partition, next_offset

CASES = settings(max_examples=25, deadline=None)

partitions = st.builds(Partition, st.sampled_from(["in", "in.b"]), st.integers(0, 3))
offsets = st.integers(0, 2**62)
vectors = st.dictionaries(partitions, offsets, max_size=5).map(OffsetVector)
some_partitions = st.frozensets(partitions, max_size=5)

_A, _B = Partition("a", 0), Partition("b", 0)


@given(vectors, vectors, vectors)
@CASES
def test_merging_is_associative_and_the_newer_entry_wins(
    a: OffsetVector, b: OffsetVector, c: OffsetVector
) -> None:
    assert a.merged(b).merged(c) == a.merged(b.merged(c))
    assert all(a.merged(b)[p] == offset for p, offset in b.items())
    assert set(a.merged(b)) == set(a) | set(b)


@given(vectors)
@CASES
def test_empty_vector_changes_nothing(a: OffsetVector) -> None:
    assert a.merged(OffsetVector()) == a == OffsetVector().merged(a)
    assert a.advanced([]) == a


@given(vectors, some_partitions)
@CASES
def test_only_and_without_split_a_vector(a: OffsetVector, chosen: frozenset[Partition]) -> None:
    kept, dropped = a.only(chosen), a.without(chosen)
    assert set(kept) == set(a) & chosen
    assert set(dropped) == set(a) - chosen
    assert kept.merged(dropped) == a


@given(vectors, st.lists(st.tuples(partitions, offsets), max_size=5))
@CASES
def test_position_after_records_is_one_behind_the_last_of_each_partition(
    a: OffsetVector, read: list[tuple[Partition, int]]
) -> None:
    assert a.advanced(read) == a.merged({p: next_offset(offset) for p, offset in read})
    assert all(a.advanced(read)[p] == offset + 1 for p, offset in dict(read).items())


@given(vectors)
@CASES
def test_vector_is_a_value(a: OffsetVector) -> None:
    again: OffsetVector = pickle.loads(pickle.dumps(a))  # noqa: S301 - our own bytes
    reordered = OffsetVector(dict(reversed(list(a.items()))))
    assert again == a == reordered
    assert hash(again) == hash(a) == hash(reordered)
    assert repr(again) == repr(reordered)


@given(vectors, vectors)
@CASES
def test_no_operation_changes_its_operands(a: OffsetVector, b: OffsetVector) -> None:
    before = dict(a), dict(b)
    a.merged(b)
    a.advanced([(p, o) for p, o in b.items()])
    a.only(b)
    a.without(b)
    assert (dict(a), dict(b)) == before


def test_vector_does_not_follow_the_dict_it_was_made_from() -> None:
    source = {Partition("in", 0): 5}
    vector = OffsetVector(source)
    source[Partition("in", 0)] = 6
    assert vector == {Partition("in", 0): 5}


@pytest.mark.parametrize("offset", [-1, -1001])
def test_what_librdkafka_would_ignore_silently_is_refused(offset: int) -> None:
    with pytest.raises(ValueError, match=r"in\[0\]: -1"):
        OffsetVector({Partition("in", 0): offset})


def test_vector_is_a_mapping_without_a_partition_it_does_not_hold() -> None:
    vector = OffsetVector({Partition("in", 0): 5})
    assert isinstance(vector, Mapping)
    assert vector.get(Partition("in", 1)) is None
    assert not OffsetVector()
    assert repr(vector) == "OffsetVector(in[0]=5)"


def test_an_epoch_goes_with_the_offset_that_it_belongs_to() -> None:
    """An epoch left behind a newer offset would be that of another record."""
    old = OffsetVector({_A: 1, _B: 2}, {_A: 10, _B: 20})
    assert old.merged({_A: 5}).epoch_of(_A) is None
    assert old.merged({_A: 5}).epoch_of(_B) == 20
    assert old.merged(OffsetVector({_A: 5})).epoch_of(_A) is None
    assert old.merged(OffsetVector({_A: 5}, {_A: 11})).epoch_of(_A) == 11


def test_the_first_of_several_negative_offsets_is_named() -> None:
    with pytest.raises(ValueError, match=r"b\[0\]: -1001 is not an offset"):
        OffsetVector({_A: 3, _B: -1001})


def test_only_those_of_a_few_are_kept_with_their_epochs() -> None:
    many = OffsetVector(
        {Partition("t", n): n for n in range(100)}, {Partition("t", n): n for n in range(100)}
    )
    few = many.only({Partition("t", 7), Partition("other", 1)})
    assert dict(few) == {Partition("t", 7): 7}
    assert few.epoch_of(Partition("t", 7)) == 7
    assert Partition("t", 7) in few
    assert Partition("t", 8) not in few
