"""Division: the rows of a batch divided into shards, in place by input partition, or by the hash of the key behind a shuffle.

Either way a shard is in one task, and what decides on it is the same for whoever runs the batch again: in place the batch's
plan in Spark's checkpoint, behind the shuffle a row's content.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from eos.deadletter import ERROR_HEADER
from eos.spark.analysis.placement import Placement
from eos.spark.analysis.query_tasks import QueryTasks, moved_above, tasks_of
from eos.spark.analysis.row_wise import unable
from eos.spark.plan import SHARD
from eos.spark.session.jvm import rdd_of
from eos.spark.stream.log_entry import Division
from eos.spark.write.endmarks import END, ShardsByTask, mark_by_shuffle, mark_in_place
from eos.spark.write.output import OutputColumns

DIGEST = "eos_digest"
_BESIDE_TOPIC = ("partition", "key", "value", "headers", "timestamp")


@dataclass(frozen=True, slots=True)
class Divided:
    """Rows that can be written, every shard's in one task and followed by its end marks.

    Attributes:
        rows: the DataFrame.
        shards_by_task: whose the tasks are, if that is known.
    """

    rows: DataFrame
    shards_by_task: ShardsByTask | None = None


class BatchRows:
    """The rows of a batch, and how they may be divided: into at most ``most`` shards, if the batch is not begun.

    Attributes:
        wanted: how they would be divided.
        digest: of the input's offsets, if the rows are in the tasks that read them; else "".
        gathered: whether a shuffle brings the rows of an input partition to a task that writes them, though they are in place. So
            they are computed before its transaction begins.
    """

    def __init__(
        self, frame: DataFrame, columns: OutputColumns, execution: Any, most: int, *, gathered: bool = False
    ) -> None:
        self._frame, self._columns, self.gathered = frame, columns, gathered
        operator = unable(frame.sparkSession)
        self._tasks = QueryTasks(operator) if operator else tasks_of(execution)
        self._in_place = _in_place(frame, columns, self._tasks.by_task)
        moved = self._tasks.moved_by or moved_above(self._in_place, execution)
        partitions = 0 if moved else self._tasks.partitions
        self.digest = "" if moved else self._tasks.digest
        if partitions > most:
            # A transaction takes a tenth of a second and more of its executor's time, so the user's number is an upper limit.
            moved = f"sink_shards={most}"
        shards = most if moved else partitions
        self.wanted = Division(shards, not moved, moved, partitions)

    def divided(self, division: Division) -> Divided:
        """The rows as the plan of the batch has them divided: ``wanted``, or as the batch was begun."""
        spark, shards = self._frame.sparkSession, division.shards
        if not division.in_place:
            return Divided(sharded(self._frame, self._columns, shards))
        by_task = with_idle(self._tasks.by_task, shards)
        if self.gathered or not by_task:  # no task: the batch has no rows
            return Divided(mark_by_shuffle(spark, self._in_place, range(shards), tasks=shards))
        rows = mark_in_place(spark, rdd_of(self._in_place), self._in_place.schema, by_task)
        return Divided(rows, by_task)

    def placement(self, division: Division) -> Placement:
        """Where the rows are written that are divided so, for a person."""
        if not division.in_place:
            return Placement(False, division.shards, self.wanted.moved_by or "an earlier try")
        if self.gathered:
            return Placement(False, division.shards, "an expired transaction")
        return Placement(True, len(self._tasks.by_task))


def with_idle(by_task: Sequence[int], shards: int) -> ShardsByTask:
    """The shards that each task writes: that of its rows, and then those of partitions with nothing new, which no task reads.

    An entry of each is written all the same: so the commit log says of all shards that they are written.
    """
    written = [[shard] for shard in by_task]
    for place, idle in enumerate(sorted(set(range(shards)) - set(by_task)) if written else ()):
        written[place % len(written)].append(idle)
    return tuple(map(tuple, written))


def sharded(frame: DataFrame, columns: OutputColumns, shards: int) -> DataFrame:
    """The rows of each shard in a task of its own, in the order of the frame's tasks, with end marks behind them."""
    rows = _numbered(frame, columns, F.pmod(_hash(columns), F.lit(shards)).cast("int"))
    return mark_by_shuffle(frame.sparkSession, rows, range(shards), tasks=shards)


# --- inside ----------------------------------------------------------------------------------------------


def _in_place(frame: DataFrame, columns: OutputColumns, by_task: Sequence[int]) -> DataFrame:
    """The rows where they are, each with the shard of its task."""
    shards = F.array(*map(F.lit, by_task or [0]))
    return _numbered(frame, columns, F.get(shards, F.spark_partition_id()).cast("int"))


def _numbered(frame: DataFrame, columns: OutputColumns, number: Column) -> DataFrame:
    return columns.select(frame).withColumns({DIGEST: _digest(columns), SHARD: number, END: F.lit(False)})


def _hash(columns: OutputColumns) -> Column:
    """The hash that divides rows into shards: of the key alone where there is one, so that its records keep their order."""
    names = set(columns.names)
    whose = ["topic"] if "topic" in names else []
    place = F.xxhash64(*whose, "value")
    if "partition" in names:
        place = F.when(F.isnotnull("partition"), F.xxhash64(*whose, "partition")).otherwise(place)
    if "key" in names:
        place = F.when(F.isnotnull("key"), F.xxhash64("key")).otherwise(place)
    return place


def _digest(columns: OutputColumns) -> Column:
    """The hash of all that a record is made of, so that one that came out otherwise is seen; but for the text of a dead letter's error.

    xxhash64 passes over NULLs: a key without a value would have the hash of a value without a key. So it is also said
    which are NULL, and of headers too. A topic that is no column is the only output.
    """
    names = columns.names
    nulls = [F.isnull(name) if name in names else F.lit(True) for name in _BESIDE_TOPIC]
    whole = [F.col("topic") if "topic" in names else F.lit(columns.outputs[0])]
    whole += [F.col(name) for name in _BESIDE_TOPIC if name in names and name != "headers"]
    if "headers" in names:
        # That text may name an object by its address.
        headers = F.filter("headers", lambda header: header["key"] != ERROR_HEADER)
        whole.append(headers)
        nulls.append(F.transform(headers, lambda header: F.isnull(header["value"])))
    return F.xxhash64(*nulls, *whole)
