"""Origin in a stream: of which batch a frame is made that the sink is to write, decided before anything runs.

The rows of a frame do not say which batch they are of. One that was kept from an earlier batch, or a view of it, would be
written as the batch that runs, whose own rows were lost: Spark counts the batch as done when the sink returns.

What ForeachBatchSink gives its function is a LogicalRDD over the SQLExecutionRDD of the execution that runs the batch, with
rows or without (Spark 4.2). That RDD is the proof: its id is unique in the SparkContext, a self-join, a view and a cached
frame keep it, and what is made of it through an RDD has it in its lineage. In plans no other LogicalRDD is over a
SQLExecutionRDD, so one that is not this batch's is another's. An eager checkpoint() cuts the lineage, and rows that were
collected have none: they show nothing, so they may be a lookup but not all of the frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from eos.errors import UsageError
from eos.spark.checkpoint import RunningQuery
from eos.spark.jvm_plans import items, kind_of, plans_of

_OF_A_BATCH = "SQLExecutionRDD"
_WITH_RDD = frozenset({"ExternalRDD", "LogicalRDD"})


def require_running_batch(frame: DataFrame, batch: int, query: RunningQuery) -> None:
    """Refuse a frame that is not made of the batch that runs, or also of another one.

    Args:
        frame: what the sink is to write.
        batch: the number that it was called with.
        query: the query that runs the batch.

    Raises:
        UsageError: says which, and the way out.
    """
    running = query.execution.currentBatchId()
    if batch != running:
        raise UsageError(
            f"the sink was called for batch {batch}, and batch {running} runs: the ledger would count another batch than the "
            "one whose rows these are. Fix: pass on the frame and the number that foreachBatch gives its function"
        )
    mine = query.execution.toRdd().id()
    read = [rdd for plan in plans_of(frame) for rdd in _rdds(plan)]
    if any(kind_of(rdd) == _OF_A_BATCH and rdd.id() != mine for rdd in read):
        raise UsageError(
            f"the DataFrame that the sink was called with reads another batch than batch {batch}, which runs: its rows would "
            "be written as rows of this batch. Fix: make it of the DataFrame that foreachBatch gives its function, not of one "
            "that was kept or that a view of an earlier batch reads; what a query keeps for another one is a table, or a topic"
        )
    if not any(_comes_from(rdd, mine) for rdd in read):
        raise UsageError(
            f"the DataFrame that the sink was called with does not read batch {batch}, which runs, as far as its plan shows: "
            "the batch would count as written, and its rows would be lost. Fix: make it of the DataFrame that foreachBatch "
            "gives its function; without collect(), toPandas(), checkpoint() and localCheckpoint(), which hide what a frame "
            "is made of (cache(), persist(), mapInArrow and applyInPandas do not). To write nothing of a batch: frame.limit(0)"
        )


def _rdds(node: Any) -> Iterator[Any]:
    """The RDDs that a plan reads. What is behind a common table expression is in the plan too, where it is defined."""
    if kind_of(node) in _WITH_RDD:
        yield node.rdd()
    for child in items(node.children()):
        yield from _rdds(child)


def _comes_from(rdd: Any, wanted: int) -> bool:
    """Whether an RDD is the wanted one, or has it in its lineage. Ids only grow, so what is older is not made of it."""
    seen: set[int] = set()
    ahead = [rdd]
    while ahead:
        one = ahead.pop()
        number = one.id()
        if number == wanted:
            return True
        if number > wanted and number not in seen:
            seen.add(number)
            ahead += [dependency.rdd() for dependency in items(one.dependencies())]
    return False
