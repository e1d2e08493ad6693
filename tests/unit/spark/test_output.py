"""Arrow rows become output batches per topic, in order, without anything lost of what a record may be."""

from __future__ import annotations

import pytest

from eos.errors import UsageError

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa

from eos.spark.write.output import OutputColumns

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def rows(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def test_tombstones_null_keys_and_absent_columns() -> None:
    [batch] = OutputColumns(("out",), ("key", "value")).batches(
        rows(key=pa.array([b"k", None], pa.binary()), value=pa.array([None, b"v"], pa.binary()))
    )
    assert (batch.topic, batch.keys, batch.values) == ("out", [b"k", None], [None, b"v"])
    assert (batch.headers, batch.partitions, batch.timestamps_ms) == (None, None, None)


def test_a_column_of_nothing_but_nulls_costs_nothing() -> None:
    [batch] = OutputColumns(("out",), ("key", "value", "partition", "timestamp")).batches(
        rows(
            key=pa.nulls(2, pa.binary()),
            value=pa.nulls(2, pa.binary()),
            partition=pa.nulls(2, pa.int32()),
            timestamp=pa.nulls(2, pa.int64()),
        )
    )
    assert (batch.keys, batch.values, batch.partitions, batch.timestamps_ms) == (
        None,
        [None, None],
        None,
        None,
    )


def test_rows_of_several_topics_keep_their_order_per_topic() -> None:
    columns = OutputColumns(("a", "b"), ("topic", "value"))
    found = columns.batches(rows(topic=pa.array(["a", "b", "a"]), value=pa.array([b"1", b"2", b"3"])))
    assert {batch.topic: batch.values for batch in found} == {"a": [b"1", b"3"], "b": [b"2"]}


def test_headers_of_a_slice_stay_with_their_rows() -> None:
    headers = pa.array(
        [[{"key": "x", "value": b"0"}], None, [], [{"key": "a", "value": None}, {"key": "b", "value": b"1"}]],
        _HEADERS,
    )
    part = rows(value=pa.array([b"0", b"1", b"2", b"3"]), headers=headers).slice(1)
    [batch] = OutputColumns(("out",), ("value", "headers")).batches(part)
    assert batch.headers == [(), (), (("a", None), ("b", b"1"))]


@pytest.mark.parametrize("topic", [None, "other"])
def test_a_topic_that_is_not_declared_is_refused(topic: str | None) -> None:
    columns = OutputColumns(("a", "b"), ("topic", "value"))
    with pytest.raises(UsageError, match="not declared"):
        list(columns.batches(rows(topic=pa.array([topic], pa.string()), value=pa.array([b"1"]))))


def test_a_header_without_a_name_is_refused() -> None:
    headers = pa.array([[{"key": None, "value": b"1"}]], _HEADERS)
    with pytest.raises(UsageError, match="no name"):
        list(
            OutputColumns(("a",), ("value", "headers")).batches(rows(value=pa.array([b"1"]), headers=headers))
        )
