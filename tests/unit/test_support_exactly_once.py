"""The invariant's check passes what is exact and names every kind of damage."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from eos.ops.verifier.placement import partition_of
from tests.support.exactly_once import Comparison, Output, SeenRecord, compare

Damage = Callable[[list[SeenRecord]], list[SeenRecord]]

INPUTS = [SeenRecord("in", p, offset, b"k", b"%d-%d" % (p, offset)) for p in (0, 1) for offset in range(10)]
PLACE = partition_of(b"k", 3)
COMMITTED: dict[tuple[str, int], int | None] = {("in", 0): 6, ("in", 1): None}


def transform(record: SeenRecord) -> list[Output]:
    assert record.value is not None
    return [("out", record.key, record.value), ("audit", None, b"saw " + record.value)]


def outputs_of(count: int) -> list[SeenRecord]:
    """What a right job writes for the first records of in[0]; odd offsets are skipped, as markers are."""
    return [
        SeenRecord(topic, PLACE if key else 0, 2 * i, key, value)
        for i, record in enumerate(INPUTS[:count])
        for topic, key, value in transform(record)
    ]


def check(outputs: list[SeenRecord]) -> Comparison:
    return compare(INPUTS, COMMITTED, outputs, transform, partitions={"out": 3})


def test_exact_output_passes_and_is_counted() -> None:
    comparison = check(outputs_of(6))
    assert comparison.exact
    assert (comparison.processed, comparison.produced) == (6, 12)


def test_nothing_committed_and_nothing_written_is_exact_but_counts_nothing() -> None:
    comparison = compare(INPUTS, {}, [], transform)
    assert comparison.exact
    assert comparison.processed == 0


def test_equal_records_of_the_transform_are_counted_not_merged() -> None:
    def twice(record: SeenRecord) -> list[Output]:
        return [("out", None, b"same"), ("out", None, b"same")]

    found = [SeenRecord("out", 0, i, None, b"same") for i in range(12)]
    assert compare(INPUTS, COMMITTED, found, twice).exact
    assert len(compare(INPUTS, COMMITTED, found[:-1], twice).lost) == 1
    assert len(compare(INPUTS, COMMITTED, [*found, found[0]], twice).surplus) == 1


def test_equal_records_of_one_input_partition_keep_their_order() -> None:
    def sign(record: SeenRecord) -> list[Output]:
        return [("out", None, b"odd" if record.offset % 2 else b"even")]

    found = [SeenRecord("out", 0, i, None, b"odd" if i % 2 else b"even") for i in range(6)]
    assert compare(INPUTS, COMMITTED, found, sign).exact
    assert compare(INPUTS, COMMITTED, [found[1], found[0], *found[2:]], sign).disordered


def test_other_partitions_may_interleave() -> None:
    committed: dict[tuple[str, int], int | None] = {("in", 0): 2, ("in", 1): 2}

    def out(record: SeenRecord) -> list[Output]:
        return [("out", None, record.value)]

    interleaved = [b"1-0", b"0-0", b"0-1", b"1-1"]
    found = [SeenRecord("out", 0, i, None, value) for i, value in enumerate(interleaved)]
    assert compare(INPUTS, committed, found, out).exact


DAMAGED: dict[str, tuple[Damage, set[str]]] = {
    "a record lost": (lambda o: o[:4] + o[6:], {"lost"}),
    "half of a record lost": (lambda o: o[:5] + o[6:], {"lost", "torn"}),
    "a record doubled": (lambda o: [*o, *o[-2:]], {"surplus"}),
    "a foreign record": (lambda o: [*o, o[0]._replace(value=b"foreign")], {"surplus"}),
    "a changed value": (lambda o: [*o[:-1], o[-1]._replace(value=b"x")], {"lost", "surplus", "torn"}),
    "a changed key": (lambda o: [*o[:-2], o[-2]._replace(key=b"x"), o[-1]], {"lost", "surplus", "torn"}),
    "two records in the wrong order": (lambda o: [*o[2:4], *o[:2], *o[4:]], {"disordered"}),
    "a record in another partition": (lambda o: [o[0]._replace(partition=PLACE + 1), *o[1:]], {"misplaced"}),
    "input skipped by the offset": (lambda _: outputs_of(5), {"lost"}),
    "output ahead of the offset": (lambda _: outputs_of(7), {"surplus"}),
    "nothing written": (lambda _: [], {"lost"}),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_found_and_named(name: str) -> None:
    damage, kinds = DAMAGED[name]
    comparison = check(damage(outputs_of(6)))
    assert not comparison.exact
    assert {
        kind for kind in ("lost", "surplus", "disordered", "misplaced", "torn") if getattr(comparison, kind)
    } == kinds
    assert all(f"{kind}: " in str(comparison) for kind in kinds)
