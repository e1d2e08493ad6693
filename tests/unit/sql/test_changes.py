"""A transform of a sink may use its rows, columns and changes again: what it does with them afterwards does not show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from sqlalchemy import JSON, Column, Integer, LargeBinary, MetaData, String, Table

from eos.records import InputBatch, InputRecord
from eos.sql import Insert, InsertBatch, SqlJob, Upsert
from eos.sql.changes import Rows

kept = Table(
    "kept",
    MetaData(),
    Column("number", Integer, primary_key=True),
    Column("tags", JSON),
    Column("raw", LargeBinary),
)
tags: dict[str, list[int]] = {"of": []}
raw = bytearray(1)
paid = Table("paid", MetaData(), Column("number", Integer, primary_key=True), Column("name", String(8)))
row: dict[str, Any] = {}
columns: dict[str, list[Any]] = {"number": [], "name": []}


def same_row(record: InputRecord) -> list[Upsert]:
    row.update(number=record.offset, name=(record.value or b"").decode())
    return [Upsert(paid, row)]


def same_row_yielded(record: InputRecord) -> Iterator[Upsert]:
    for times in (1, 10):
        row.update(number=times * record.offset, name="yielded")
        yield Upsert(paid, row)


def same_columns(batch: InputBatch) -> Iterator[InsertBatch]:
    for record in batch:
        columns["number"][:] = [record.offset]
        columns["name"][:] = [(record.value or b"").decode()]
        yield InsertBatch(paid, columns)


def same_values(record: InputRecord) -> list[Insert]:
    tags["of"][:] = [record.offset]
    raw[0] = record.offset
    return [Insert(kept, {"number": record.offset, "tags": tags, "raw": raw})]


def same_values_by_column(batch: InputBatch) -> Iterator[InsertBatch]:
    for record in batch:
        tags["of"][:] = [record.offset]
        raw[0] = record.offset
        yield InsertBatch(kept, {"number": [record.offset], "tags": [tags], "raw": [memoryview(raw)]})


OF_KEPT = [(n, {"of": [n]}, bytes([n])) for n in (1, 2, 3)]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ({"transform": same_row}, [(1, "a"), (2, "b"), (3, "c")]),
        ({"transform": same_row_yielded}, [(n * times, "yielded") for n in (1, 2, 3) for times in (1, 10)]),
        ({"transform_batch": same_columns}, [(1, "a"), (2, "b"), (3, "c")]),
        ({"transform": same_values}, OF_KEPT),
        ({"transform_batch": same_values_by_column}, OF_KEPT),
    ],
    ids=["a row", "a row that is yielded", "columns", "values", "values by column"],
)
def test_what_a_transform_uses_again_is_taken_as_it_comes(
    shape: dict[str, Any], expected: list[tuple[object, ...]]
) -> None:
    bound = SqlJob(name="s", inputs=["in"], tables=[paid, kept], **shape).bound()
    batch = InputBatch.of([InputRecord("in", 0, n, None, v) for n, v in enumerate([b"a", b"b", b"c"], 1)])

    def failed(_: InputRecord, error: Exception) -> Iterable[Any]:
        raise error

    (made,) = bound.batch(batch) if bound.takes_batches else bound.records(batch, failed)
    row.clear()
    for column in columns.values():
        column.clear()
    assert isinstance(made, Rows)
    assert made.rows == expected
