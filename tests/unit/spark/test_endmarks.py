"""A shard's rows are complete only behind its two end marks, however the rows are cut into batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from eos.errors import RetriableError, UsageError

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa

from eos.spark.write.endmarks import END, ShardRows

Row = tuple[int | None, str | None]  # shard, value; None as the value is an end mark

_SCHEMA = pa.schema([("shard", pa.int32()), ("value", pa.string()), (END, pa.bool_())])


def batches(*cut: Sequence[Row]) -> Iterator[pa.RecordBatch]:
    for rows in cut:
        columns = [[shard for shard, _ in rows], [value for _, value in rows], [v is None for _, v in rows]]
        arrays = [pa.array(column, kind.type) for column, kind in zip(columns, _SCHEMA, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def read(*cut: Sequence[Row]) -> list[tuple[int, list[str]]]:
    found = []
    for shard, rows in ShardRows(batches(*cut)):
        found.append((shard, [value for part in rows for value in part.column("value").to_pylist()]))
    return found


A, B = (0, None), (7, None)


@pytest.mark.parametrize(
    "cut",
    [
        [[(0, "a"), (0, "b"), A, A, (7, "c"), B, B]],
        [[(0, "a")], [(0, "b")], [A, A], [(7, "c"), B, B]],
        [[(0, "a"), (0, "b"), A], [A, (7, "c")], [B], [], [B]],
    ],
)
def test_shards_come_one_after_another_however_they_are_cut(cut: list[Sequence[Row]]) -> None:
    assert read(*cut) == [(0, ["a", "b"]), (7, ["c"])]


def test_a_shard_without_rows_is_told_of_by_its_marks() -> None:
    assert read([A, A]) == [(0, [])]


@pytest.mark.parametrize("cut", [[[(0, "a")]], [[(0, "a"), A]], [[(0, "a")], [A]]])
def test_rows_without_both_marks_are_not_complete(cut: list[Sequence[Row]]) -> None:
    with pytest.raises(RetriableError, match="before its end marks"):
        read(*cut)


def test_nothing_at_all_is_no_shard() -> None:
    assert read() == []


def test_rows_that_nobody_read_are_passed_over() -> None:
    assert [shard for shard, _ in ShardRows(batches([(0, "a"), A, A, (7, "c"), B, B]))] == [0, 7]


def test_rows_of_a_shard_whose_end_is_elsewhere_are_refused() -> None:
    with pytest.raises(UsageError, match="shard 3 came to the task of shard 0"):
        read([(3, "a"), (0, "b"), A, A])


def test_a_row_without_a_shard_is_refused() -> None:
    with pytest.raises(UsageError, match="'shard' is NULL"):
        read([(None, "a"), A, A])
