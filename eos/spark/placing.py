"""Placing: which task writes which rows: the one that read them, where that is proved, else one that a shuffle brings them to."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from eos.settings import Settings
from eos.spark.done_ranges import WHOLE_INPUT
from eos.spark.endmarks import END, can_mark_in_place, known_shard, mark_by_shuffle, mark_in_place
from eos.spark.operators import Moved, moved_by, row_wise
from eos.spark.output import OutputColumns
from eos.spark.plan import InputPlan
from eos.spark.source import SHARD


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the rows of a run are written.

    Attributes:
        in_place: each input partition's rows are written by the task that read them; if not, Spark shuffles them first.
        tasks: how many write.
        moved_by: why they are shuffled: the operator that takes rows out of their task, by its name in Spark's physical plan
            (``"HashAggregate"``, ``"Union"``), ``"commit='batch'"``, or ``"Spark 4.0"``, which can write in no other way.
            ``""`` in place.
    """

    in_place: bool
    tasks: int
    moved_by: str = ""

    def __str__(self) -> str:
        tasks = f"{self.tasks} task{'' if self.tasks == 1 else 's'}"
        return f"in place, {tasks}" if self.in_place else f"shuffled to {tasks} by {self.moved_by}"


@dataclass(frozen=True, slots=True)
class Placed:
    """Rows to write, every shard's in one task and followed by its end marks.

    Attributes:
        rows: the DataFrame.
        shards_by_task: whose the tasks are, if known.
        placement: what a person is told of it.
    """

    rows: DataFrame
    shards_by_task: tuple[int, ...] | None
    placement: Placement


def place(
    frame: DataFrame, source: DataFrame, columns: OutputColumns, plan: InputPlan, settings: Settings
) -> Placed:
    """Bring the rows of a frame to the tasks that write them.

    Args:
        frame: what the transform returned.
        source: what it was given.
        columns: the output columns of ``frame``.
        plan: the ranges behind ``source``.
        settings: table ``[spark]``.
    """
    spark = frame.sparkSession
    if plan.commit == "batch":
        marked = mark_by_shuffle(spark, _rows(frame, columns, F.lit(WHOLE_INPUT)), [WHOLE_INPUT], tasks=1)
        return Placed(marked, None, _of_a_batch())
    rows = _rows(frame, columns, F.col(SHARD))
    found = row_wise(rows, source, plan) if can_mark_in_place(spark) else Moved(_line(frame))
    if not isinstance(found, Moved):
        marked = mark_in_place(spark, found.java_rdd, rows.schema, found.shards)
        return Placed(marked, found.shards, Placement(True, len(found.shards)))
    shards = [plan.shard_of(one.partition) for one in plan]
    placement = _shuffled(frame, plan, settings, found.operator)
    known = rows.withColumn(SHARD, known_shard(shards))
    return Placed(mark_by_shuffle(spark, known, shards, tasks=placement.tasks), None, placement)


def placement_of(
    frame: DataFrame, source: DataFrame, columns: OutputColumns, plan: InputPlan, settings: Settings
) -> Placement:
    """What `place` would do, by the physical plan alone: nothing is read. The arguments are those of `place`."""
    if plan.commit == "batch":
        return _of_a_batch()
    rows = _rows(frame, columns, F.col(SHARD))
    operator = moved_by(rows, source) if can_mark_in_place(frame.sparkSession) else _line(frame)
    return _shuffled(frame, plan, settings, operator) if operator else Placement(True, len(plan))


# --- inside ----------------------------------------------------------------------------------------------


def _rows(frame: DataFrame, columns: OutputColumns, shard: Column) -> DataFrame:
    return columns.select(frame, shard.cast("int").alias(SHARD), F.lit(False).alias(END))


def _of_a_batch() -> Placement:
    return Placement(False, 1, "commit='batch'")


def _shuffled(frame: DataFrame, plan: InputPlan, settings: Settings, operator: str) -> Placement:
    tasks = settings.spark.write_tasks or frame.sparkSession.sparkContext.defaultParallelism
    return Placement(False, min(tasks, len(plan)), operator)


def _line(frame: DataFrame) -> str:
    """Of Spark's release, ``Spark 4.0``."""
    return "Spark " + ".".join(frame.sparkSession.version.split(".")[:2])
