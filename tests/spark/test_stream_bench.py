"""The benchmark's sink behind the shuffle: what it says of that shuffle holds only if Spark makes all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from bench.spark import unmarked
from eos.spark.session.jvm import items, kind_of
from eos.spark.stream.division import sharded
from eos.spark.write.output import OutputColumns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def test_its_rows_are_shuffled_with_every_column_and_sorted_as_those_of_the_exactly_once_sink(
    spark: SparkSession,
) -> None:
    given = spark.createDataFrame([(b"a", b"1"), (b"b", b"2"), (None, b"3")], "key BINARY, value BINARY")
    with_marks = sharded(given, OutputColumns.of(given, ["out"]), 2)
    rows = unmarked(with_marks)
    assert steps(rows) == steps(with_marks)
    assert sorted(bytes(row.value) for row in rows.collect()) == [b"1", b"2", b"3"]


def steps(frame: DataFrame) -> list[tuple[str, list[str]]]:
    """From the last step down to the shuffle: its kind, and the names of the columns that come out of it."""
    found: list[tuple[str, list[str]]] = []
    node: Any = frame._jdf.queryExecution().optimizedPlan()
    while not found or not found[-1][0].startswith("Repartition"):
        found.append((kind_of(node), [column.name() for column in items(node.output())]))
        [node] = items(node.children())
    return found
