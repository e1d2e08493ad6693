"""Shuffle: does the task that read a row write it, or does Spark shuffle the rows of a batch first? It is decided here.

A task may commit what it has only if it has every row of its shard. So rows stay in place only where a frame is made row by
row from the input, and its tasks are the input partitions. Two proofs are asked for: every operator of the physical plan is
one that keeps a row in its task, over a single scan of the input; and every task of the resulting RDD is one range of the
plan. Whatever is unknown is not row-wise: the shuffle is slower and always right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from eos.errors import UnclassifiedError
from eos.offsets import Partition
from eos.spark.analysis.placement import Placement
from eos.spark.analysis.row_wise import SCAN, SCAN_KIND, moved_by, unable
from eos.spark.plan import SHARD, WHOLE_INPUT, InputPlan, OffsetRange
from eos.spark.session.jvm import analysed, executed, items, kind_of, rdd_of
from eos.spark.write.endmarks import END, ShardsByTask, known_shard, mark_by_shuffle, mark_in_place
from eos.spark.write.output import OutputColumns

_KAFKA_RELATION = "org.apache.spark.sql.kafka010.KafkaRelation"
_KAFKA_TASK = "org.apache.spark.sql.kafka010.KafkaSourceRDDPartition"
_LOGICAL_SCAN_KIND = "LogicalRelation"


@dataclass(frozen=True, slots=True)
class Placed:
    """Rows to write, every shard's in one task and followed by its end marks.

    Attributes:
        rows: the DataFrame.
        shards_by_task: whose the tasks are, if that is known; a task in place has one shard.
        placement: what a person is told of it.
    """

    rows: DataFrame
    shards_by_task: ShardsByTask | None
    placement: Placement


def place(frame: DataFrame, source: DataFrame, columns: OutputColumns, plan: InputPlan) -> Placed:
    """Bring the rows of ``frame``, made of ``source``, to the tasks that write them. The plan's ranges are behind ``source``."""
    rows = _rows(frame, columns, plan)
    placement = _placement(rows, source, plan)
    if placement.in_place:
        rdd = rdd_of(rows)
        if (by_task := _shards_by_task(rdd, plan)) is not None:
            return Placed(mark_in_place(frame.sparkSession, rdd, rows.schema, by_task), by_task, placement)
        placement = _shuffled(rows, plan, SCAN)
    shards = list(plan.by_shard)
    if plan.commit == "partition":
        rows = rows.withColumn(SHARD, known_shard(shards))
    return Placed(mark_by_shuffle(frame.sparkSession, rows, shards, tasks=placement.tasks), None, placement)


def placement_of(frame: DataFrame, source: DataFrame, columns: OutputColumns, plan: InputPlan) -> Placement:
    """What `place` would do, by the physical plan alone: nothing is read."""
    return _placement(_rows(frame, columns, plan), source, plan)


# --- inside ----------------------------------------------------------------------------------------------


def _rows(frame: DataFrame, columns: OutputColumns, plan: InputPlan) -> DataFrame:
    shard = F.col(SHARD) if plan.commit == "partition" else F.lit(WHOLE_INPUT)
    return columns.select(frame, shard.cast("int").alias(SHARD), F.lit(False).alias(END))


def _placement(rows: DataFrame, source: DataFrame, plan: InputPlan) -> Placement:
    if plan.commit == "batch":
        return Placement(False, 1, "commit='batch'")
    operator = unable(rows.sparkSession) or _moved_by(rows, source)
    return _shuffled(rows, plan, operator) if operator else Placement(True, len(plan))


def _shuffled(rows: DataFrame, plan: InputPlan, operator: str) -> Placement:
    # As many as cores; spark.default.parallelism says another.
    tasks = rows.sparkSession.sparkContext.defaultParallelism
    return Placement(False, min(tasks, len(plan)), operator)


def _moved_by(rows: DataFrame, source: DataFrame) -> str:
    relation = _kafka_relation(source)
    if relation is None:
        return SCAN
    return moved_by(executed(rows), lambda leaf: relation.equals(_relation_of(leaf)))


def _kafka_relation(frame: DataFrame) -> Any | None:
    """The connector's own object behind the input; None if the plan shows none."""
    # Of the analysed plan: to have the input planned by itself took 36 ms of each run.
    leaves = items(analysed(frame).collectLeaves())
    return next((relation for relation in map(_relation_of, leaves) if relation is not None), None)


def _relation_of(node: Any) -> Any | None:
    """The Kafka relation that a leaf of a plan reads; None for any other node."""
    if kind_of(node) not in (SCAN_KIND, _LOGICAL_SCAN_KIND):
        return None
    relation = node.relation()
    return relation if relation.getClass().getName() == _KAFKA_RELATION else None


def _shards_by_task(java_rdd: Any, plan: InputPlan) -> ShardsByTask | None:
    """The shard that each task of a JVM RDD reads; None unless every task is one Kafka range.

    Raises:
        UnclassifiedError: Spark would read other ranges than planned.
    """
    found = []
    for task in java_rdd.partitions():
        if task.getClass().getName() != _KAFKA_TASK:
            return None
        one = task.offsetRange()
        of = one.topicPartition()
        found.append(OffsetRange(Partition(of.topic(), of.partition()), one.fromOffset(), one.untilOffset()))
    listed = sorted(found, key=lambda one: (one.partition, one.start))
    if listed != list(plan.ranges):
        odd = next((one for one in listed if one not in plan.ranges), None) or "one range less"
        raise UnclassifiedError(f"Spark's Kafka source would read {odd}, which is not what was planned")
    return tuple((plan.shard_of(one.partition),) for one in found)
