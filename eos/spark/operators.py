"""Operators: is a DataFrame made row by row from the input, so that its tasks are the input partitions?

Only then may each task commit what it has, without a shuffle that gathers the rows of a shard. Two proofs are
asked for: every operator of the physical plan is one that keeps a row in its task, over a single scan of the
input; and every task of the resulting RDD is one range of the plan. Whatever is unknown is not row-wise: the
shuffle is slower and always right.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pyspark.sql import DataFrame

from eos.spark.plan import InputPlan
from eos.spark.source import kafka_relation, ranges_by_task, relation_of, require_planned

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
    """How ``frame`` runs, if it is made row by row from ``source``; None if it is not, or nobody knows.

    Args:
        frame: what the transform returned, or a projection of it.
        source: what the transform was given.
        plan: the ranges behind ``source``.

    Raises:
        UnclassifiedError: Spark would read other ranges than planned.
    """
    relation = kafka_relation(source)
    execution = frame._jdf.queryExecution()  # noqa: SLF001 - PySpark shows no plan objects
    if relation is None or not _keeps_rows(execution.executedPlan(), relation):
        return None
    rdd = execution.toRdd()
    found = ranges_by_task(rdd)
    if found is None:
        return None
    require_planned(found, plan)
    return RowWise(rdd, tuple(plan.shard_of(one.partition) for one in found))


def _keeps_rows(node: Any, relation: Any) -> bool:
    """Whether each operator down to the scan is known, and the scan is the input itself and no other topic."""
    while True:
        children = node.children()
        if children.isEmpty():
            scanned = relation_of(node)
            return scanned is not None and bool(scanned.equals(relation))
        if children.size() > 1 or node.getClass().getSimpleName() not in _ROW_WISE:
            return False
        node = children.apply(0)
