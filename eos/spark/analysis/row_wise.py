"""Row-wise: does every operator of a physical plan keep a row in the task that read it? Asked for batches and for streams.

Whatever is unknown is not row-wise: the shuffle is slower and always right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from eos.spark.session.jvm import can_append_tasks, items, kind_of

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
SCAN = "Scan"  # its own name in the UI has every offset in it
SCAN_KIND = "RowDataSourceScanExec"


def moved_by(plan: Any, is_input: Callable[[Any], bool]) -> str:
    """The operator of a physical plan that may take rows out of their task, as Spark's UI names it; "" if none does.

    It is the one nearest to the output, or a leaf that is not the input itself.
    """
    node = plan
    while children := items(node.children()):
        if len(children) > 1 or kind_of(node) not in _ROW_WISE:
            return _name_of(node, is_input)
        [node] = children
    return "" if is_input(node) else _name_of(node, is_input)


def unable(spark: SparkSession) -> str:
    """The Spark that can write in no other way than behind a shuffle, for a person; "" if this one can."""
    return "" if can_append_tasks(spark) else "Spark " + ".".join(spark.version.split(".")[:2])


# --- inside ----------------------------------------------------------------------------------------------


def _name_of(node: Any, is_input: Callable[[Any], bool]) -> str:
    """What the UI calls an operator. An adaptive plan is a leaf around the plan as it was before its exchanges."""
    if kind_of(node) == _ADAPTIVE:
        return moved_by(node.inputPlan(), is_input) or "Subquery"
    return SCAN if kind_of(node) == SCAN_KIND else str(node.nodeName())
