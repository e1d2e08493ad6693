"""End marks: the last rows of a shard, without which no writer may take its input for complete.

The end of what Spark hands to a Python function proves nothing. When an operator below fails, Spark closes the
worker's socket, which Arrow reads as an end of the stream; when the task is killed, Spark itself ends the stream
in order (org.apache.spark.ContextAwareIterator). In both cases the function sees an ordinary end (measured: 12
of 12, after 30,000 to 330,000 of 400,000 rows), and would commit a part of the shard's output with all of its
input. So every shard's rows are followed by marks that the JVM adds behind the last row.

Two marks, because the JVM looks whether the task was killed *before* it asks the operators below for the next
row: a kill while they work on it ends their input early and still lets one more row through, never two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.types import StructField, StructType

from eos.errors import RetriableError, UsageError
from eos.spark.plan import SHARD
from eos.spark.session.jvm import append_tasks, jvm_of
from eos.spark.write.failures import WORD, marker

END = "__eos_end"
_ORDER = "__eos_order"
_PLACE = "__eos_place"
_MARKS = 2
ShardsByTask = Sequence[
    tuple[int, ...]
]  # the shards that each task writes, in their order; the rows are of the first one
_SEED = 42  # of Spark's hash partitioning: Murmur3Hash in org.apache.spark.sql.catalyst.expressions


def mark_in_place(
    spark: SparkSession, java_rdd: Any, schema: StructType, shards_by_task: ShardsByTask
) -> DataFrame:
    """The rows of a JVM RDD, whose task i holds those of its first shard, with the end marks of all its shards behind them.

    The RDD is of internal rows, as ``queryExecution().toRdd()`` gives it; their ``schema`` has the column END.
    """
    tasks, most = len(shards_by_task), max(map(len, shards_by_task))
    # Marks come in tasks of equal size: those of no shard, in the place of what a task has less, are left out.
    padded = [[*shards, *[None] * (most - len(shards))] for shards in shards_by_task]
    marks = _marks(spark, schema, [shard for shards in padded for shard in shards], tasks=tasks)
    if any(None in shards for shards in padded):
        marks = marks.where(F.isnotnull(SHARD))
    return append_tasks(spark, java_rdd, marks, tasks)


def mark_by_shuffle(spark: SparkSession, rows: DataFrame, shards: Sequence[int], *, tasks: int) -> DataFrame:
    """Rows from anywhere, gathered so that a shard is in one of ``tasks`` tasks, followed by its end marks.

    The first shard is in the first task, and so on, round. Rows of a shard keep the order in which the transform's last
    stage had them, task by task: after a union the rows of the first part come first, each in input order; after a join or
    an aggregate that order is Spark's own, and another at every try.
    """
    ordered = rows.withColumn(_ORDER, F.monotonically_increasing_id())
    marked = ordered.unionByName(_marks(spark, ordered.schema, shards, tasks=1))
    by_number = hasattr(marked, "repartitionById")  # Spark 4.1 and newer
    places = range(tasks) if by_number else _hashed_to_each(jvm_of(spark), tasks)
    place_of = {shard: places[index % tasks] for index, shard in enumerate(shards)}
    listed = F.array(*[F.lit(place_of.get(shard, 0)) for shard in range(max(shards) + 1)])
    placed = marked.withColumn(_PLACE, F.get(listed, F.col(SHARD)))
    # An explicit number: adaptive execution then neither joins nor splits the tasks.
    gathered = (
        placed.repartitionById(tasks, F.col(_PLACE)) if by_number else placed.repartition(tasks, _PLACE)
    )
    return gathered.sortWithinPartitions(SHARD, END, _ORDER).drop(_ORDER, _PLACE)


def known_shard(shards: Sequence[int]) -> Column:
    """The column ``shard`` if it is one of these.

    A row of no shard of the run fails the tasks *before* the shuffle, and so before anything is committed. Later
    it would be too late: the shard that lost the row has its end marks all the same.
    """
    error = UsageError(
        "a row has the shard @, which this run does not read. The transform must carry the column 'shard' through "
        "unchanged, also for rows that an outer join or an aggregate made. Fix: filter them, or commit='batch'"
    )
    before, _, after = marker(error, WORD).partition("@")
    shown = F.coalesce(F.col(SHARD).cast("string"), F.lit("NULL"))
    text = F.concat(F.lit(before), shown, F.lit(after))
    return F.when(F.col(SHARD).isin(list(shards)), F.col(SHARD)).otherwise(F.raise_error(text))


@lru_cache
def _hashed_to_each(jvm: Any, tasks: int) -> list[int]:
    """For each task a value that Spark's hash partitioning sends there.

    About tasks * (ln(tasks) + 1) values are looked at. The hash maps ints one to one, so none of the tasks is missed.
    """
    # Of an instance: the class has a static hashInt, too, and py4j finds only the first method of a name, in an order that differs
    # from one Java process to the next. "hashInt does not exist in the JVM" was seen once in hundreds.
    hashed = jvm.org.apache.spark.unsafe.hash.Murmur3_x86_32(_SEED).hashInt
    found: dict[int, int] = {}
    value = 0
    while len(found) < tasks:
        # Python's %, as Spark's pmod, is never negative
        found.setdefault(hashed(value) % tasks, value)
        value += 1
    return [found[task] for task in range(tasks)]


def _marks(spark: SparkSession, schema: StructType, shards: Sequence[int | None], *, tasks: int) -> DataFrame:
    """Rows of nothing but a shard number and the mark, in so many tasks of equal size, in the order of the shards."""
    numbers = ", ".join("NULL" if shard is None else str(shard) for shard in shards)

    def column(field: StructField) -> str:
        value = "NULL"
        if field.name == SHARD:
            value = f"get(array({numbers}), CAST(id DIV {_MARKS} AS INT))"
        elif field.name == END:
            value = "true"
        return f"CAST({value} AS {field.dataType.simpleString()}) AS `{field.name}`"

    # As text: of columns made one by one, each is several calls into the JVM.
    return spark.range(0, _MARKS * len(shards), 1, tasks).selectExpr(*map(column, schema))


class ShardRows:
    """A task's rows, shard by shard. Iterating a shard's rows ends only behind its end marks.

    >>> for shard, rows in ShardRows(batches):  # doctest: +SKIP
    ...     for part in rows: ...

    Args:
        batches: what Spark hands to the function of mapInArrow.

    Raises (from iterating):
        RetriableError: the input ended before a shard's end marks: Spark has ended the task.
        UsageError: rows of a shard whose end is elsewhere: the transform changed the column ``shard``.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._parts = _parts(batches)
        self._next: tuple[int, int, pa.RecordBatch] | None = None

    def __iter__(self) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
        self._advance()
        while self._next is not None:
            shard = self._next[0]
            rows = self._rows_of(shard)
            yield shard, rows
            for _ in rows:  # what the caller has not read
                pass

    def _rows_of(self, shard: int) -> Iterator[pa.RecordBatch]:
        marks = 0
        while marks < _MARKS:
            if self._next is None:
                raise RetriableError(
                    "the input of the task ended before its end marks: Spark has ended the task, or an operator "
                    "below has failed"
                )
            found, marked, part = self._next
            if found != shard:
                raise UsageError(
                    f"rows of shard {shard} came to the task of shard {found}. The transform must carry the column "
                    "'shard' through unchanged. Fix: .select('shard', …)"
                )
            marks += marked
            if not marked:
                yield part
            self._advance()

    def _advance(self) -> None:
        self._next = next(self._parts, None)


def _parts(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, int, pa.RecordBatch]]:
    """Runs of rows: (shard, how many of them are end marks: all or none, the rows)."""
    for batch in batches:
        if not batch.num_rows:
            continue
        shards, ends = batch.column(SHARD), batch.column(END)
        if shards.null_count:
            raise UsageError(
                "a row's 'shard' is NULL. The transform must carry the column through, also for rows that an outer "
                "join made. Fix: filter them, or commit='batch'"
            )
        extent = pc.min_max(shards).as_py()
        if extent["min"] == extent["max"] and not pc.any(ends).as_py():
            yield extent["min"], 0, batch
            continue
        runs = pc.run_end_encode(pc.add(pc.multiply(shards.cast(pa.int64()), 2), ends.cast(pa.int64())))
        start = 0
        for end, code in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
            marks = end - start if code % 2 else 0
            yield code // 2, marks, batch.slice(start, end - start)
            start = end
