"""Origin: whose input a DataFrame is made of, decided by its logical plan before anything runs.

A frame of an earlier run (a notebook's global) or of another batch of a stream (one that was kept, a view of it) would have
its records written a second time, and those of this run, whose offsets are committed or whose batch counts as done, never.
It does not show later: the rows do not say whose they are.

A batch's input has a name of its own in every plan that is made of it. A stream's is the RDD of the execution that runs the
batch: what ForeachBatchSink gives its function is a LogicalRDD over its SQLExecutionRDD, with rows or without (Spark 4.2). The
id of that is unique in the SparkContext; a self-join, a view and a cached frame keep it, and what is made of it through an RDD
has it in its lineage. In plans no other LogicalRDD is over a SQLExecutionRDD, so one that is not this batch's is another's.

The plan is the analysed one, in which nothing is optimised away and a cached frame still shows what it is made of. What is in
an RDD shows nothing of a batch's input; rows that were collected, and an eager checkpoint, show nothing of a stream's either. So
they may be a lookup but not all of the frame.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame

from eos.errors import UsageError
from eos.spark.session.checkpoint import RunningQuery
from eos.spark.session.jvm import items, kind_of, plans_of

_MARK = "eos_input_"
_OF_A_BATCH = "SQLExecutionRDD"
_WITH_RDD = frozenset({"ExternalRDD", "LogicalRDD"})


def as_input(frame: DataFrame) -> DataFrame:
    """A run's input with a name of its own in every plan that is made of it."""
    return frame.alias(f"{_MARK}{secrets.token_hex(6)}")


def require_own_input(frame: DataFrame, source: DataFrame) -> None:
    """Refuse a ``frame`` that is not made of ``source``, this run's input from :func:`as_input`, or also of another run's.

    Raises:
        UsageError: says which, and the way out.
    """
    mine = mark_of(source)
    marks = {mark for plan in plans_of(frame) for mark in marks_in(plan)}
    _require_own_alone(
        mine in marks,
        bool(marks - {mine}),
        foreign="the DataFrame that the transform returned reads the input of another run, whose records would be written "
        "again with this run's offsets. Fix: make it of the DataFrame that the transform is given alone, not of "
        "one that was kept (a global of a notebook, a temporary view); for another topic, a snapshot (read_snapshot)",
        missing="the DataFrame that the transform returned does not read this run's input, as far as its plan shows: the "
        "run's offsets would be committed and its records not processed. Fix: make it of the DataFrame that the "
        "transform is given; without collect(), toPandas(), .rdd and checkpoint(), which hide what a frame is made "
        "of (mapInArrow, applyInPandas and cache() do not)",
    )


def require_running_batch(frame: DataFrame, batch: int, query: RunningQuery) -> None:
    """Refuse a ``frame`` that is not made of the batch that runs, or also of another one; the sink was called with ``batch``.

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
    _require_own_alone(
        any(_comes_from(rdd, mine) for rdd in read),
        any(kind_of(rdd) == _OF_A_BATCH and rdd.id() != mine for rdd in read),
        foreign=f"the DataFrame that the sink was called with reads another batch than batch {batch}, which runs: its rows would "
        "be written as rows of this batch. Fix: make it of the DataFrame that foreachBatch gives its function, not of one "
        "that was kept or that a view of an earlier batch reads; what a query keeps for another one is a table, or a topic",
        missing=f"the DataFrame that the sink was called with does not read batch {batch}, which runs, as far as its plan shows: "
        "the batch would count as written, and its rows would be lost. Fix: make it of the DataFrame that foreachBatch "
        "gives its function; without collect(), toPandas(), checkpoint() and localCheckpoint(), which hide what a frame "
        "is made of (cache(), persist(), mapInArrow and applyInPandas do not). To write nothing of a batch: frame.limit(0)",
    )


# --- inside ----------------------------------------------------------------------------------------------


def _require_own_alone(own: bool, others: bool, *, foreign: str, missing: str) -> None:
    if others:
        raise UsageError(foreign)
    if not own:
        raise UsageError(missing)


def mark_of(source: DataFrame) -> str:
    """The name that :func:`as_input` gave a run's input."""
    return next(marks_in(plans_of(source)[0]))


def marks_in(node: Any, shared: Mapping[int, Any] | None = None) -> Iterator[str]:
    """The names of the runs' inputs in a plan; also behind its references to ``shared``, common table expressions by id."""
    kind = kind_of(node)
    if kind == "SubqueryAlias" and str(node.alias()).startswith(_MARK):
        yield str(node.alias())
    if kind == "CTERelationRef" and shared is not None and node.cteId() in shared:
        others = {number: one for number, one in shared.items() if number != node.cteId()}
        yield from marks_in(shared[node.cteId()], others)
    for child in items(node.children()):
        yield from marks_in(child, shared)


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
