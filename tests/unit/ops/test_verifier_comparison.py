"""Outputs damaged on purpose: each damage is found and named; an undamaged output passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eos.deadletter import dead_letter
from eos.errors import UsageError
from eos.offsets import Partition
from eos.ops.verifier.comparison import Comparison
from eos.ops.verifier.report import Compared, Difference, InputCount, VerificationReport
from eos.records import InputRecord, OutputRecord

ONE_EACH = {"audit": 1, "emitted": 1, "dlq": 1}


def record(offset: int, partition: int = 0, key: bytes | None = b"m1") -> InputRecord:
    return InputRecord("in", partition, offset, key, b"v%d-%d" % (partition, offset))


def transform(one: InputRecord) -> list[OutputRecord]:
    """Two outputs per record in two topics, with a header; every fifth offset is poison and becomes a dead letter."""
    if one.offset % 5 == 4:
        return [dead_letter(one, "ValueError: poison", topic="dlq")]
    return [
        OutputRecord("emitted", one.value, one.key, (("h", b"1"),)),
        OutputRecord("audit", one.value, one.key),
    ]


def written(inputs: Sequence[InputRecord]) -> list[InputRecord]:
    """The outputs as a reader finds them: partition 0 of their topics, in the order of the input."""
    ends: dict[str, int] = {}
    found = []
    for one in inputs:
        for output in transform(one):
            offset = ends.get(output.topic, 0)
            ends[output.topic] = offset + 1
            found.append(
                InputRecord(
                    output.topic,
                    0,
                    offset,
                    output.key,
                    output.value,
                    output.headers,
                    output.timestamp_ms or 77,
                )
            )
    return found


def compared(
    inputs: Sequence[InputRecord],
    found: Sequence[InputRecord],
    function: Callable[[InputRecord], list[OutputRecord]] = transform,
    broker_timestamps: Sequence[str] = (),
    **partitions: int,
) -> VerificationReport:
    with Comparison(ONE_EACH | partitions, broker_timestamps=broker_timestamps) as comparison:
        for one in inputs:
            comparison.expect(one, function(one))
        for one in found:
            comparison.found(one)
        return report(comparison.result())


def report(differences: Compared) -> VerificationReport:
    processed = InputCount(Partition("in", 0), 0, 1, records=1)
    return VerificationReport(
        "g", (processed,), differences.outputs, torn=differences.torn, examples=differences.examples
    )


def kinds(result: VerificationReport) -> dict[Difference, int]:
    return {kind: count for kind, count in result.differences.items() if count}


INPUTS = [record(offset, partition, b"m%d" % partition) for partition in (0, 1) for offset in range(10)]


@pytest.fixture
def found() -> list[InputRecord]:
    return written(INPUTS)


def at(found: list[InputRecord], topic: str, nth: int) -> int:
    return [index for index, one in enumerate(found) if one.topic == topic][nth]


def test_an_undamaged_output_passes(found: list[InputRecord]) -> None:
    result = compared(INPUTS, found)
    assert result.exactly_once
    assert (result.expected, result.found) == (36, 36)
    assert {one.topic: one.found for one in result.outputs} == {"audit": 16, "emitted": 16, "dlq": 4}


def test_nothing_expected_and_nothing_found_is_equal() -> None:
    result = compared([], [])
    assert result.exactly_once
    assert [one.topic for one in result.outputs] == sorted(ONE_EACH)


def test_a_missing_output_of_two_is_lost_and_torn(found: list[InputRecord]) -> None:
    del found[at(found, "emitted", 3)]
    result = compared(INPUTS, found)
    assert kinds(result) == {Difference.LOST: 1, Difference.TORN: 1}
    assert {(one.kind, str(one.partition), one.offset) for one in result.examples} == {
        (Difference.LOST, "in[0]", 3),
        (Difference.TORN, "in[0]", 3),
    }


def test_a_record_without_any_of_its_outputs_is_lost_but_not_torn(found: list[InputRecord]) -> None:
    gone = INPUTS[2].value
    result = compared(INPUTS, [one for one in found if one.value != gone])
    assert kinds(result) == {Difference.LOST: 2}


def test_a_missing_dead_letter_is_lost(found: list[InputRecord]) -> None:
    del found[at(found, "dlq", 1)]
    result = compared(INPUTS, found)
    assert kinds(result) == {Difference.LOST: 1}
    assert {one.topic: one.differences[Difference.LOST] for one in result.outputs} == {
        "audit": 0,
        "emitted": 0,
        "dlq": 1,
    }


def test_an_output_written_twice_is_duplicated(found: list[InputRecord]) -> None:
    again = found[at(found, "audit", 5)].__replace__(offset=99)
    result = compared(INPUTS, [*found, again])
    assert kinds(result) == {Difference.DUPLICATED: 1}
    assert [(str(one.partition), one.offset) for one in result.examples] == [("audit[0]", 99)]


def test_an_output_that_no_input_makes_is_unexpected(found: list[InputRecord]) -> None:
    result = compared(INPUTS, [*found, InputRecord("audit", 0, 99, b"m1", b"forged")])
    assert kinds(result) == {Difference.UNEXPECTED: 1}


def test_output_of_a_topic_without_any_expected_is_unexpected() -> None:
    assert kinds(compared([], [InputRecord("dlq", 0, 0, None, b"x")])) == {Difference.UNEXPECTED: 1}


def test_an_offset_committed_too_high_makes_its_records_lost(found: list[InputRecord]) -> None:
    result = compared([*INPUTS, record(10, 1, b"m1"), record(11, 1, b"m1")], found)
    assert kinds(result) == {Difference.LOST: 4}


def test_an_offset_committed_too_low_makes_outputs_unexpected(found: list[InputRecord]) -> None:
    result = compared(INPUTS[:-2], found)
    assert kinds(result) == {Difference.UNEXPECTED: 3}


def test_a_batch_written_twice_is_duplicated() -> None:
    found = written([*INPUTS, *INPUTS[-5:]])
    assert kinds(compared(INPUTS, found)) == {Difference.DUPLICATED: 9}


def test_two_outputs_of_a_key_in_the_wrong_order_are_reordered(found: list[InputRecord]) -> None:
    first, second = at(found, "emitted", 1), at(found, "emitted", 2)
    found[first], found[second] = found[second], found[first]
    result = compared(INPUTS, found)
    assert kinds(result) == {Difference.REORDERED: 1}
    assert {one.topic: one.differences[Difference.REORDERED] for one in result.outputs} == {
        "audit": 0,
        "emitted": 1,
        "dlq": 0,
    }


def test_values_swapped_between_keys_are_lost_and_unexpected(found: list[InputRecord]) -> None:
    first, second = at(found, "audit", 0), at(found, "audit", -1)
    one, other = found[first], found[second]
    assert one.key != other.key
    found[first], found[second] = one.__replace__(value=other.value), other.__replace__(value=one.value)
    assert kinds(compared(INPUTS, found)) == {
        Difference.LOST: 2,
        Difference.TORN: 2,
        Difference.UNEXPECTED: 2,
    }


@pytest.mark.parametrize(
    "damage",
    [
        lambda one: one.__replace__(headers=(("h", b"2"),)),
        lambda one: one.__replace__(headers=()),
        lambda one: one.__replace__(headers=(("h", b"1"), ("h", b"1"))),
        lambda one: one.__replace__(headers=(("h", None),)),
        lambda one: one.__replace__(key=None),
        lambda one: one.__replace__(key=b""),
        lambda one: one.__replace__(value=None),
        lambda one: one.__replace__(value=b""),
        lambda one: one.__replace__(key=one.key + one.value[:1], value=one.value[1:]),
    ],
)
def test_a_record_that_differs_in_any_field_is_lost_and_unexpected(
    found: list[InputRecord], damage: Callable[[InputRecord], InputRecord]
) -> None:
    index = at(found, "emitted", 2)
    found[index] = damage(found[index])
    assert kinds(compared(INPUTS, found)) == {
        Difference.LOST: 1,
        Difference.TORN: 1,
        Difference.UNEXPECTED: 1,
    }


@pytest.mark.parametrize(
    ("nothing", "empty"),
    [
        ({"key": None}, {"key": b""}),
        ({"value": None}, {"value": b""}),
        ({"headers": (("h", None),)}, {"headers": (("h", b""),)}),
    ],
    ids=["key", "value", "header"],
)
def test_nothing_is_not_empty(nothing: dict[str, Any], empty: dict[str, Any]) -> None:
    """A tombstone is no empty value, and a record without a key is not one with an empty key."""
    made = OutputRecord("audit", b"v", b"k")
    for expected, written in ((nothing, empty), (empty, nothing), (nothing, nothing), (empty, empty)):
        there = replace(made, **written)
        with Comparison({"audit": 1}) as comparison:
            comparison.expect(record(0), [replace(made, **expected)])
            comparison.found(InputRecord("audit", 0, 0, there.key, there.value, there.headers, 77))
            (counted,) = comparison.result().outputs
        assert counted.differences == (
            {} if expected == written else {Difference.LOST: 1, Difference.UNEXPECTED: 1}
        )


def test_the_text_of_an_error_counts_outside_of_the_dead_letters() -> None:
    """A job may pass the headers of a dead letter on that it has read."""
    (letter,) = transform(record(4))
    passed_on = replace(letter, topic="audit")
    headers = tuple((name, value and value.replace(b"poison", b"another")) for name, value in letter.headers)
    for output, differences in (
        (letter, {}),
        (passed_on, {Difference.LOST: 1, Difference.UNEXPECTED: 1}),
    ):
        with Comparison(ONE_EACH, dead_letters="dlq") as comparison:
            comparison.expect(record(4), [output])
            comparison.found(InputRecord(output.topic, 0, 0, output.key, output.value, headers, 77))
            counted = {one.topic: one.differences for one in comparison.result().outputs}
        assert counted[output.topic] == differences


def test_a_record_in_the_wrong_topic_is_lost_and_unexpected(found: list[InputRecord]) -> None:
    index = at(found, "audit", 2)
    found[index] = found[index].__replace__(topic="dlq")
    assert kinds(compared(INPUTS, found)) == {
        Difference.LOST: 1,
        Difference.TORN: 1,
        Difference.UNEXPECTED: 1,
    }


def test_interleaving_of_keys_and_partitions_is_no_difference(found: list[InputRecord]) -> None:
    by_partition = sorted(found, key=lambda one: (one.key, one.topic))
    assert compared(INPUTS, by_partition).exactly_once
    interleaved = [one for pair in zip(found[:18], found[18:], strict=True) for one in pair]
    assert compared(INPUTS, interleaved).exactly_once


def test_the_same_key_from_two_partitions_may_interleave_in_any_way() -> None:
    inputs = [record(offset, partition, b"k") for partition in (0, 1) for offset in range(3)]
    outputs = written(inputs)
    zero, one = outputs[:6], outputs[6:]
    assert compared(inputs, [*one, *zero]).exactly_once
    assert compared(inputs, [x for pair in zip(zero, one, strict=True) for x in pair]).exactly_once
    assert kinds(compared(inputs, [*one[2:], *one[:2], *zero])) == {Difference.REORDERED: 2}


def same_for_all(_: InputRecord) -> list[OutputRecord]:
    return [OutputRecord("audit", b"1", b"k"), OutputRecord("audit", b"2", b"k")]


def test_alike_outputs_of_several_inputs_are_counted() -> None:
    inputs = [record(offset, partition) for partition in (0, 1) for offset in range(2)]
    alike = [
        InputRecord("audit", 0, i, output.key, output.value)
        for i, output in enumerate(out for one in inputs for out in same_for_all(one))
    ]
    assert compared(inputs, alike, same_for_all).exactly_once
    assert kinds(compared(inputs, alike[2:], same_for_all)) == {Difference.LOST: 2}
    assert kinds(compared(inputs, alike[1:], same_for_all)) == {Difference.LOST: 1, Difference.TORN: 1}
    assert kinds(compared(inputs, [*alike, alike[0]], same_for_all)) == {Difference.DUPLICATED: 1}


def test_alike_outputs_of_one_partition_keep_their_order() -> None:
    values = [b"up", b"down", b"up", b"up", b"down"]
    inputs = [InputRecord("in", 0, i, b"k", value) for i, value in enumerate(values)]

    def copy(one: InputRecord) -> list[OutputRecord]:
        return [OutputRecord("audit", one.value, one.key)]

    def seen(order: Sequence[bytes]) -> list[InputRecord]:
        return [InputRecord("audit", 0, i, b"k", value) for i, value in enumerate(order)]

    assert compared(inputs, seen(values), copy).exactly_once
    assert kinds(compared(inputs, seen([b"up", b"up", b"down", b"up", b"down"]), copy)) == {
        Difference.REORDERED: 1
    }


def timed(one: InputRecord) -> list[OutputRecord]:
    """Some outputs with a timestamp, some without, in one topic."""
    timestamp_ms = 1_000 + one.offset if one.offset % 2 else None
    return [OutputRecord("audit", one.value, one.key, timestamp_ms=timestamp_ms)]


def test_a_timestamp_that_the_transform_sets_is_compared() -> None:
    inputs = [record(offset) for offset in range(4)]
    found = [InputRecord("audit", 0, i, one.key, one.value, (), 1_000 + i) for i, one in enumerate(inputs)]
    assert compared(inputs, found, timed).exactly_once
    found[2] = found[2].__replace__(timestamp_ms=5)
    assert compared(inputs, found, timed).exactly_once
    found[3] = found[3].__replace__(timestamp_ms=5)
    assert kinds(compared(inputs, found, timed)) == {Difference.LOST: 1, Difference.UNEXPECTED: 1}
    assert compared(inputs, found, timed, broker_timestamps=["audit"]).exactly_once


def test_expecting_after_finding_is_refused(found: list[InputRecord]) -> None:
    with Comparison(ONE_EACH) as comparison:
        comparison.found(found[0])
        with pytest.raises(UsageError, match="come before"):
            comparison.expect(INPUTS[0], [])


def test_the_scratch_database_is_gone_afterwards(tmp_path: Path) -> None:
    with Comparison(ONE_EACH, directory=tmp_path) as comparison:
        comparison.expect(INPUTS[0], transform(INPUTS[0]))
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())


def test_the_report_shows_its_figures(found: list[InputRecord]) -> None:
    rows = compared(INPUTS, found[1:]).rows()
    assert ("output emitted", "16 expected, 15 found") in rows
    assert ("lost", "1") in rows
    assert rows[-1] == ("exactly once", "NO")


# Values and keys from small sets, so that alike outputs, shared keys and null keys are common.
KEYS = st.sampled_from([None, b"", b"a", b"b"])
CASES = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def logs(draw: st.DrawFn) -> list[InputRecord]:
    per_partition = draw(st.lists(st.lists(KEYS, max_size=8), min_size=1, max_size=3))
    return [
        InputRecord("in", partition, offset, key, draw(st.sampled_from([b"x", b"y", b"%d" % offset])))
        for partition, keys in enumerate(per_partition)
        for offset, key in enumerate(keys)
    ]


def merged(data: st.DataObject, found: Sequence[Sequence[InputRecord]]) -> list[InputRecord]:
    queues = [list(one) for one in found if one]
    result = []
    while queues:
        queue = data.draw(st.sampled_from(queues))
        result.append(queue.pop(0))
        queues = [one for one in queues if one]
    return result


@CASES
@given(st.data())
def test_whatever_the_interleaving_an_exact_output_passes(data: st.DataObject) -> None:
    inputs = data.draw(logs())
    partitions = {one.partition for one in inputs}
    streams = [written([one for one in inputs if one.partition == p]) for p in sorted(partitions)]
    assert compared(inputs, merged(data, streams)).exactly_once


def damages(found: list[InputRecord], data: st.DataObject) -> Iterator[list[InputRecord]]:
    index = data.draw(st.integers(0, len(found) - 1))
    one = found[index]
    yield found[:index] + found[index + 1 :]
    yield [*found, one]
    yield [*found[:index], one.__replace__(value=(one.value or b"") + b"!"), *found[index + 1 :]]
    yield [*found[:index], one.__replace__(headers=(*one.headers, ("n", None))), *found[index + 1 :]]
    yield [*found[:index], one.__replace__(key=b"other"), *found[index + 1 :]]


@CASES
@given(st.data())
def test_whatever_the_damage_to_a_record_it_is_found(data: st.DataObject) -> None:
    inputs = data.draw(logs().filter(bool))
    for damaged in damages(written(inputs), data):
        result = compared(inputs, damaged)
        assert not result.exactly_once
        counts = result.differences
        surplus = counts[Difference.DUPLICATED] + counts[Difference.UNEXPECTED] - counts[Difference.LOST]
        assert result.found - result.expected == surplus


@CASES
@given(st.data())
def test_whatever_is_moved_within_its_partition_it_is_found(data: st.DataObject) -> None:
    keys = data.draw(st.lists(KEYS, min_size=2, max_size=12))
    inputs = [record(offset, 0, key) for offset, key in enumerate(keys)]
    found = written(inputs)
    pairs = [
        (i, j)
        for i, one in enumerate(found)
        for j, other in enumerate(found[i + 1 :], i + 1)
        if one.topic == other.topic
    ]
    i, j = data.draw(st.sampled_from(pairs))
    found[i], found[j] = found[j], found[i]
    assert kinds(compared(inputs, found)).keys() == {Difference.REORDERED}


def test_a_header_whose_name_is_given_in_bytes_is_the_header_of_that_name() -> None:
    one = record(0)
    named = [OutputRecord("emitted", one.value, one.key, ((b"h", b"1"),))]  # type: ignore[arg-type] # the client takes it
    found = [InputRecord("emitted", 0, 0, one.key, one.value, (("h", b"1"),), 77)]
    assert compared([one], found, lambda _: named).examples == ()
