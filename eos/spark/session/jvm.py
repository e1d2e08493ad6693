"""What PySpark has no public way to: the plans and RDDs of a frame, which live in the JVM, and the classes of Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession


def jvm_of(spark: SparkSession) -> Any:
    """The session's JVM: its attributes are Java's packages and classes."""
    return spark.sparkContext._jvm


def has_class(spark: SparkSession, name: str) -> bool:
    """Whether a class is on the session's class path."""
    loader = jvm_of(spark).java.lang.Thread.currentThread().getContextClassLoader()
    return loader.getResource(name.replace(".", "/") + ".class") is not None


def analysed(frame: DataFrame) -> Any:
    """The analysed plan of a frame. Nothing is optimised away in it, and a cached frame still shows what it is made of."""
    return frame._jdf.queryExecution().analyzed()


def executed(frame: DataFrame) -> Any:
    """The physical plan of a frame."""
    return frame._jdf.queryExecution().executedPlan()


def rdd_of(frame: DataFrame) -> Any:
    """The RDD of internal rows that a frame is run as."""
    return frame._jdf.queryExecution().toRdd()


def plans_of(frame: DataFrame) -> list[Any]:
    """The analysed plan of a frame, and those of the subqueries in its expressions."""
    plan = analysed(frame)
    return [plan, *items(plan.subqueriesAll())]


def kind_of(node: Any) -> str:
    """The name of a Java object's class, without its package."""
    return str(node.getClass().getSimpleName())


def nodes(plan: Any) -> Iterator[Any]:
    """A plan, and all below it."""
    yield plan
    for child in items(plan.children()):
        yield from nodes(child)


def items(found: Any) -> list[Any]:
    """What is in a Scala sequence."""
    return [found.apply(place) for place in range(found.size())]


def inputs_of(task: Any) -> list[Any]:
    """What a task of an RDD reads of a source; [] if it is no task of one."""
    if kind_of(task) != "DataSourceRDDPartition":
        return []
    # An Option, and in Spark 4.1 a Seq.
    held = task.inputPartition() if "inputPartition" in dir(task) else task.inputPartitions()
    return items(held.toList())


def can_append_tasks(spark: SparkSession) -> bool:
    """Whether this Spark has what `append_tasks` needs (4.1 and newer)."""
    # What is no class is a package to Py4J, whatever its name.
    return type(_side_by_side(spark)).__name__ == "JavaClass"


def append_tasks(spark: SparkSession, java_rdd: Any, frame: DataFrame, tasks: int) -> DataFrame:
    """A frame whose task i is task i of an RDD of internal rows, and then task i of ``frame``; both have the same columns.

    Spark's own unions have twice the tasks.
    """
    context: Any = spark.sparkContext
    both = jvm_of(spark).PythonUtils.toSeq([java_rdd, rdd_of(frame)])
    rdd = _side_by_side(spark)(context._jsc.sc(), both, tasks, java_rdd.elementClassTag())
    return DataFrame(spark._jsparkSession.internalCreateDataFrame(rdd, frame._jdf.schema(), False), spark)


def _side_by_side(spark: SparkSession) -> Any:
    return jvm_of(spark).org.apache.spark.rdd.SQLPartitioningAwareUnionRDD
