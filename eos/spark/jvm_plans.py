"""Spark's logical plans, which live in the JVM, walked from Python: PySpark shows no plan objects."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame


def plans_of(frame: DataFrame) -> list[Any]:
    """The analysed plan of a frame, and those of the subqueries in its expressions.

    In the analysed plan nothing is optimised away, and a cached frame still shows what it is made of.
    """
    plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - see above
    return [plan, *items(plan.subqueriesAll())]


def kind_of(node: Any) -> str:
    """The name of a Java object's class, without its package."""
    return str(node.getClass().getSimpleName())


def items(found: Any) -> list[Any]:
    """What is in a Scala sequence."""
    return [found.apply(place) for place in range(found.size())]
