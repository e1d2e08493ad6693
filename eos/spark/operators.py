"""Operators: is a DataFrame made row by row from the input, so that its tasks are the input partitions?

Only then may each task commit what it has, without a shuffle that gathers the rows of a shard. Two proofs are
asked for: every operator of the physical plan is one that keeps a row in its task, over a single scan of the
input; and every task of the resulting RDD is one range of the plan. Whatever is unknown is not row-wise: the
shuffle is slower and always right.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from pyspark.sql import DataFrame

from eos.errors import UnclassifiedError
from eos.offsets import Partition
from eos.spark.jvm_plans import items, kind_of
from eos.spark.plan import InputPlan, OffsetRange

_KAFKA_RELATION = "org.apache.spark.sql.kafka010.KafkaRelation"
_KAFKA_TASK = "org.apache.spark.sql.kafka010.KafkaSourceRDDPartition"
# Names of Spark's physical operators whose output rows stay in the task of their input row. A plan with an
# exchange, a broadcast or a subquery is wrapped into AdaptiveSparkPlan, or has an operator that is not here:
# a union puts a shard's rows into several tasks (8 of 8 shards, measured), coalesce puts several into one.
# CollectMetricsExec keeps rows in their task and is left out: what runs in place is the RDD of the plan, and Spark gives an
# observation its figures from a plan that ran (Observation.get waited for ever).
_ROW_WISE = frozenset(
    {
        "WholeStageCodegenExec",
        "InputAdapter",
        "ColumnarToRowExec",
        "ProjectExec",
        "FilterExec",
        "GenerateExec",
        "SampleExec",
        "SortExec",  # without an exchange below it sorts inside the task
        "DeserializeToObjectExec",
        "MapElementsExec",
        "MapPartitionsExec",
        "SerializeFromObjectExec",
        "BatchEvalPythonExec",
        "ArrowEvalPythonExec",
        "BatchEvalPythonUDTFExec",
        "ArrowEvalPythonUDTFExec",
        "MapInArrowExec",
        "MapInPandasExec",
    }
)


class RowWise(NamedTuple):
    """A row-wise DataFrame as Spark will run it: its JVM RDD, and the shard number of each task."""

    java_rdd: Any
    shards: tuple[int, ...]


def row_wise(frame: DataFrame, source: DataFrame, plan: InputPlan) -> RowWise | None:
    """How ``frame`` runs, if it is made row by row from ``source``; None if it is not, or that cannot be known.

    Args:
        frame: what the transform returned, or a projection of it.
        source: what the transform was given.
        plan: the ranges behind ``source``.

    Raises:
        UnclassifiedError: Spark would read other ranges than planned.
    """
    relation = _kafka_relation(source)
    execution = frame._jdf.queryExecution()  # noqa: SLF001 - PySpark shows no plan objects
    if relation is None or not _keeps_rows(execution.executedPlan(), relation):
        return None
    rdd = execution.toRdd()
    found = _ranges_by_task(rdd)
    if found is None:
        return None
    _require_planned(found, plan)
    return RowWise(rdd, tuple(plan.shard_of(one.partition) for one in found))


# --- inside ----------------------------------------------------------------------------------------------


def _keeps_rows(node: Any, relation: Any) -> bool:
    """Whether each operator down to the scan is known, and the scan is the input itself and no other topic."""
    while children := items(node.children()):
        if len(children) > 1 or kind_of(node) not in _ROW_WISE:
            return False
        [node] = children
    scanned = _relation_of(node)
    return scanned is not None and bool(scanned.equals(relation))


def _kafka_relation(frame: DataFrame) -> Any | None:
    """The connector's own object behind the input; None if the plan shows none."""
    physical = frame._jdf.queryExecution().executedPlan()  # noqa: SLF001 - PySpark shows no plan objects
    return next((r for r in map(_relation_of, _leaves(physical)) if r is not None), None)


def _leaves(node: Any) -> Iterable[Any]:
    children = items(node.children())
    if not children:
        yield node
    for child in children:
        yield from _leaves(child)


def _relation_of(node: Any) -> Any | None:
    """The Kafka relation that a leaf of a physical plan scans; None for any other node."""
    if kind_of(node) != "RowDataSourceScanExec":
        return None
    relation = node.relation()
    return relation if relation.getClass().getName() == _KAFKA_RELATION else None


def _ranges_by_task(java_rdd: Any) -> list[OffsetRange] | None:
    """The range that each task of a JVM RDD reads; None unless every task is one Kafka range."""
    found = []
    for task in java_rdd.partitions():
        if task.getClass().getName() != _KAFKA_TASK:
            return None
        one = task.offsetRange()
        of = one.topicPartition()
        found.append(OffsetRange(Partition(of.topic(), of.partition()), one.fromOffset(), one.untilOffset()))
    return found


def _require_planned(found: Iterable[OffsetRange], plan: InputPlan) -> None:
    """Hold what Spark is about to read, of which nothing was read yet, against the plan."""
    listed = sorted(found, key=lambda one: (one.partition, one.start))
    if listed != list(plan.ranges):
        odd = next((one for one in listed if one not in plan.ranges), None) or "one range less"
        raise UnclassifiedError(f"Spark's Kafka source would read {odd}, which is not what was planned")
