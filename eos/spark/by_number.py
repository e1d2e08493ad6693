"""Repartition rows so that each goes to the task whose number it carries."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

_PLACE = "__eos_place"
_SEED = 42  # of Spark's hash partitioning: Murmur3Hash in org.apache.spark.sql.catalyst.expressions


def by_number(frame: DataFrame, tasks: int, number: str) -> DataFrame:
    """The rows in so many tasks, each in that of its number.

    Args:
        frame: the rows.
        tasks: how many tasks.
        number: an int column: 0 to tasks - 1, never NULL.
    """
    if hasattr(frame, "repartitionById"):  # Spark 4.1 and newer
        return frame.repartitionById(tasks, F.col(number))
    # `repartition` takes the task by a hash, and two numbers may fall on one task. So each number is given a value
    # that falls on its own task.
    places = F.array(*map(F.lit, _falling_on_each(frame.sparkSession.sparkContext._jvm, tasks)))  # noqa: SLF001 - the hash is Spark's own
    return frame.withColumn(_PLACE, F.get(places, F.col(number))).repartition(tasks, _PLACE).drop(_PLACE)


@lru_cache
def _falling_on_each(jvm: Any, tasks: int) -> list[int]:
    """For each task a value that hash partitioning sends there.

    About tasks * (ln(tasks) + 1) values are looked at. The hash maps ints one to one, so none of the tasks is missed.
    """
    hashed = jvm.org.apache.spark.unsafe.hash.Murmur3_x86_32.hashInt
    found: dict[int, int] = {}
    value = 0
    while len(found) < tasks:
        found.setdefault(
            hashed(value, _SEED) % tasks, value
        )  # Python's %, as Spark's pmod, is never negative
        value += 1
    return [found[task] for task in range(tasks)]
