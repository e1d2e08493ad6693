"""Steps: the names that the jobs of a run have in Spark's UI."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count

from pyspark.sql import SparkSession

from eos.spark.failures import JVM_GONE

_counts: dict[tuple[str, str], count[int]] = {}
# Local properties of a thread (SparkContext.setJobGroup).
_GROUP, _DESCRIPTION = "spark.jobGroup.id", "spark.job.description"


@contextmanager
def step(spark: SparkSession, job: str, what: str) -> Iterator[None]:
    """Jobs of the block are described as ``eos JOB: WHAT``, and are in the group ``eos JOB`` if the thread has none.

    A group that is there stays: a query is stopped by its own one, and a caller may mean to cancel by theirs.

    Args:
        spark: the session.
        job: who works, ``run 3 of refunds`` for example.
        what: the step.
    """
    context = spark.sparkContext
    before = {name: context.getLocalProperty(name) for name in (_GROUP, _DESCRIPTION)}
    try:
        context.setLocalProperty(_DESCRIPTION, f"eos {job}: {what}")
        if before[_GROUP] is None:
            context.setLocalProperty(_GROUP, f"eos {job}")
        yield
    finally:
        # What the block has committed stands, whether the Java machine is still there or not.
        with suppress(*JVM_GONE):
            for name, value in before.items():
                context.setLocalProperty(name, value)  # type: ignore[arg-type] # None takes it away


def run_name(spark: SparkSession, name: str) -> str:
    """``run 3 of NAME``: the application's third run of that batch."""
    application = str(spark.sparkContext.applicationId)
    return f"run {next(_counts.setdefault((application, name), count(1)))} of {name}"
