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
_ADAPTIVE = "AdaptiveSparkPlanExec"
_SCAN_KIND = "RowDataSourceScanExec"
_LOGICAL_SCAN_KIND = "LogicalRelation"
_SCAN = "Scan"  # its own name in the UI has every offset in it


class RowWise(NamedTuple):
    """A row-wise DataFrame as Spark will run it: its JVM RDD, and the shard number of each task."""

    java_rdd: Any
    shards: tuple[int, ...]


class Moved(NamedTuple):
    """A DataFrame whose rows may leave their task: the name of the operator that is why."""

    operator: str


def row_wise(frame: DataFrame, source: DataFrame, plan: InputPlan) -> RowWise | Moved:
    """How ``frame`` runs, if it is made row by row from ``source``; if it is not, or that cannot be known, what moves rows.

    Args:
        frame: what the transform returned, or a projection of it.
        source: what the transform was given.
        plan: the ranges behind ``source``.

    Raises:
        UnclassifiedError: Spark would read other ranges than planned.
    """
    if operator := moved_by(frame, source):
        return Moved(operator)
    rdd = frame._jdf.queryExecution().toRdd()  # noqa: SLF001 - PySpark shows no plan objects
    found = _ranges_by_task(rdd)
    if found is None:
        return Moved(_SCAN)
    _require_planned(found, plan)
    return RowWise(rdd, tuple(plan.shard_of(one.partition) for one in found))


def moved_by(frame: DataFrame, source: DataFrame) -> str:
    """The operator of the physical plan that may take rows out of their task, as Spark's UI names it; "" if none does.

    It is the one nearest to the output. Arguments as of `row_wise`.
    """
    relation = _kafka_relation(source)
    if relation is None:
        return _SCAN
    return _moving(frame._jdf.queryExecution().executedPlan(), relation)  # noqa: SLF001 - PySpark shows no plan objects


# --- inside ----------------------------------------------------------------------------------------------


def _moving(node: Any, relation: Any) -> str:
    """The first operator on the way down that is not known, or a scan of anything but the input itself."""
    while children := items(node.children()):
        if len(children) > 1 or kind_of(node) not in _ROW_WISE:
            return _name_of(node, relation)
        [node] = children
    scanned = _relation_of(node)
    return "" if scanned is not None and scanned.equals(relation) else _name_of(node, relation)


def _name_of(node: Any, relation: Any) -> str:
    """What the UI calls an operator. An adaptive plan is a leaf around the plan as it was before its exchanges."""
    if kind_of(node) == _ADAPTIVE:
        return _moving(node.inputPlan(), relation) or "Subquery"
    return _SCAN if kind_of(node) == _SCAN_KIND else str(node.nodeName())


def _kafka_relation(frame: DataFrame) -> Any | None:
    """The connector's own object behind the input; None if the plan shows none."""
    # Of the analysed plan: to have the input planned by itself took 36 ms of each run.
    leaves = items(frame._jdf.queryExecution().analyzed().collectLeaves())  # noqa: SLF001 - PySpark shows no plan objects
    return next((relation for relation in map(_relation_of, leaves) if relation is not None), None)


def _relation_of(node: Any) -> Any | None:
    """The Kafka relation that a leaf of a plan reads; None for any other node."""
    if kind_of(node) not in (_SCAN_KIND, _LOGICAL_SCAN_KIND):
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
