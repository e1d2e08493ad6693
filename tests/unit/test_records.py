"""Records and batches: columns and records are two views of the same thing."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eos.headers import Header, Headers
from eos.records import InputBatch, InputRecord, OutputBatch, OutputRecord, by_topic

CASES = settings(max_examples=25, deadline=None)

payloads = st.none() | st.binary(max_size=8)
header_lists = st.lists(st.tuples(st.text(max_size=4), payloads), max_size=3).map(tuple)
times_ms = st.none() | st.integers(min_value=0, max_value=2**40)
input_records = st.builds(
    InputRecord,
    topic=st.sampled_from(["in", "in.other"]),
    partition=st.integers(0, 5),
    offset=st.integers(0, 2**60),
    key=payloads,
    value=payloads,
    headers=header_lists,
    timestamp_ms=times_ms,
)


@dataclass
class Message:
    """What a consumer hands over, with everything that may be absent absent."""

    given_headers: Sequence[Header] | Mapping[str, bytes | None] | None = None
    time: tuple[int, int] = (0, -1)

    def topic(self) -> str | None:
        return "in"

    def partition(self) -> int | None:
        return 0

    def offset(self) -> int | None:
        return 0

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes | None:
        return None

    def headers(self) -> Sequence[Header] | Mapping[str, bytes | None] | None:
        return self.given_headers

    def timestamp(self) -> tuple[int, int]:
        return self.time


@given(st.lists(input_records, max_size=5))
@CASES
def test_columns_hold_what_the_records_hold(records: list[InputRecord]) -> None:
    batch = InputBatch.of(records)
    columns = (
        batch.topics,
        batch.partitions,
        batch.offsets,
        batch.keys,
        batch.values,
        batch.headers,
        batch.timestamps_ms,
    )
    assert [InputRecord(*row) for row in zip(*columns, strict=True)] == records
    assert list(batch) == records
    assert [batch[i] for i in range(len(batch))] == records


@given(input_records)
@CASES
def test_records_are_pickled_whole(record: InputRecord) -> None:
    again = pickle.loads(pickle.dumps(record))  # noqa: S301 - our own bytes
    assert (again, repr(again), hash(again)) == (record, repr(record), hash(record))


def test_records_are_equal_if_every_field_is() -> None:
    fields: dict[str, Any] = {"topic": "in", "partition": 1, "offset": 2, "key": b"k", "value": b"v"}
    fields |= {"headers": (("h", b"1"),), "timestamp_ms": 5}
    record = InputRecord(**fields)
    others = ("else", 2, 3, None, None, (), None)
    for name, value in zip(fields, others, strict=True):
        other = record.__replace__(**{name: value})
        assert other != record
        assert getattr(other, name) == value
    assert record != tuple(fields.values())
    assert repr(record) == f"InputRecord({', '.join(f'{name}={value!r}' for name, value in fields.items())})"
    match record:
        case InputRecord(topic, partition, offset):
            assert (topic, partition, offset) == ("in", 1, 2)


def test_batch_can_be_read_more_than_once() -> None:
    """Poison handling goes through a batch again after its batch function has read it."""
    batch = InputBatch.of([InputRecord("in", 0, 0, b"k", b"v")])
    assert list(batch) == list(batch)
    assert batch.values is batch.values


@pytest.mark.parametrize("given_headers", [None, [], {}])
def test_message_without_headers_has_an_empty_tuple(given_headers: Any) -> None:
    assert InputBatch([Message(given_headers=given_headers)])[0].headers == ()


@pytest.mark.parametrize("given_headers", [[("a", b"1"), ("a", None)], {"a": b"1"}])
def test_headers_are_pairs_in_either_form_of_the_client(given_headers: Any) -> None:
    expected = tuple(given_headers.items() if isinstance(given_headers, dict) else given_headers)
    assert InputBatch([Message(given_headers=given_headers)])[0].headers == expected


def test_timestamp_that_is_not_available_is_none_and_not_minus_one() -> None:
    assert InputBatch([Message(time=(0, -1))])[0].timestamp_ms is None
    assert InputBatch([Message(time=(1, 0))])[0].timestamp_ms == 0
    assert InputBatch([Message(time=(2, 5))]).timestamps_ms == [5]


def test_record_is_found_by_its_place_from_either_end() -> None:
    records = [InputRecord("in", 0, offset, None, None) for offset in range(3)]
    batch = InputBatch.of(records)
    assert [batch[i] for i in (-3, -2, -1)] == records
    assert type(batch[0]) is InputRecord
    for outside in (3, -4):
        with pytest.raises(IndexError):
            batch[outside]


output_rows = st.tuples(payloads, payloads, header_lists, times_ms, st.none() | st.integers(0, 5))


@given(st.lists(st.tuples(st.sampled_from(["out", "audit", "dlq"]), output_rows), max_size=8))
@CASES
def test_records_by_topic_are_all_there_in_the_order_of_their_topic(
    rows: list[tuple[str, tuple[bytes | None, bytes | None, Headers, int | None, int | None]]],
) -> None:
    records = [OutputRecord(topic, *row) for topic, row in rows]
    batches = by_topic(records)
    assert [batch.topic for batch in batches] == list(dict.fromkeys(record.topic for record in records))
    for batch in batches:
        assert list(batch) == [record for record in records if record.topic == batch.topic]


@given(
    st.lists(output_rows, max_size=5),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
@CASES
def test_output_batch_is_its_records(
    rows: list[tuple[bytes | None, bytes | None, Headers, int | None, int | None]],
    with_keys: bool,
    with_headers: bool,
    with_times: bool,
    with_partitions: bool,
) -> None:
    batch = OutputBatch(
        "out",
        [row[0] for row in rows],
        keys=[row[1] for row in rows] if with_keys else None,
        headers=[row[2] for row in rows] if with_headers else None,
        timestamps_ms=[row[3] for row in rows] if with_times else None,
        partitions=[row[4] for row in rows] if with_partitions else None,
    )
    assert len(batch) == len(rows)
    assert list(batch) == [
        OutputRecord(
            "out",
            value,
            key if with_keys else None,
            headers if with_headers else (),
            timestamp_ms if with_times else None,
            partition if with_partitions else None,
        )
        for value, key, headers, timestamp_ms, partition in rows
    ]
    assert list(pickle.loads(pickle.dumps(batch))) == list(batch)  # noqa: S301 - our own bytes


@pytest.mark.parametrize("column", ["keys", "headers", "timestamps_ms", "partitions"])
def test_column_of_another_length_is_refused_by_name(column: str) -> None:
    columns: dict[str, Any] = {column: [None]}
    with pytest.raises(ValueError, match=f"{column} has 1 entries, values has 2"):
        OutputBatch("out", [b"a", b"b"], **columns)


def test_input_records_and_batches_cannot_be_changed() -> None:
    record: Any = InputRecord("in", 0, 7, b"k", b"v")
    batch: Any = OutputBatch("out", [b"v"])
    for name in ("value", "offset", "_message", "else"):
        with pytest.raises(AttributeError, match=f"{name} cannot be set"):
            setattr(record, name, b"w")
    with pytest.raises(AttributeError, match="value cannot be deleted"):
        del record.value
    assert record == InputRecord("in", 0, 7, b"k", b"v")
    with pytest.raises(AttributeError):
        batch.topic = "elsewhere"
    assert copy.copy(batch) == batch


def test_records_that_a_generator_uses_again_are_taken_as_they_come() -> None:
    def reused() -> Iterator[OutputRecord]:
        record = OutputRecord("out", b"0")
        for number in range(3):
            record.value = b"%d" % number
            yield record

    (made,) = by_topic(reused())
    assert made.values == [b"0", b"1", b"2"]
