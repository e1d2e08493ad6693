"""The options of the Java machines of the tests' Spark, which live for seconds or minutes.

The second compiler took as much processor time as all of the rest (46 s against 26 s for one session), and would have
paid off later. With its classes from an archive, a session starts in 4.9 s instead of 7.9.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from eos.errors import RetriableError
from eos.local import QUICK_START
from eos.local.class_archive import class_archive
from eos.local.java import find_java
from eos.local.pyspark_home import pyspark_version

_RECORD_TIMEOUT_S = 120.0


def set_java_options(archive: tuple[str, ...] = ()) -> None:
    """Give every Spark that this process starts from now on, in children too, the options of a quick start.

    By the environment: a spark-defaults.conf would be a directory in front of the jars, and no archive fits then.
    """
    options = " ".join([*QUICK_START, *archive])
    os.environ["SPARK_SUBMIT_OPTS"] = f'{options} "-Dspark.executor.defaultJavaOptions={options}"'


def spark_archive(jars: Path) -> tuple[str, ...]:
    """The options by which Spark has its classes from an archive, kept in ``jars`` and made by the first who asks."""
    return class_archive(jars / f"spark-{pyspark_version()}", find_java(), _record)


def _record(option: str) -> None:
    environment = {**os.environ, "SPARK_SUBMIT_OPTS": " ".join([*QUICK_START, "-Xlog:cds*=off", option])}
    try:
        subprocess.run(
            [sys.executable, __file__],
            env=environment,
            timeout=_RECORD_TIMEOUT_S,
            check=True,
            capture_output=True,
        )
    except subprocess.SubprocessError as error:
        raise RetriableError(f"Spark's classes were not recorded: {error}") from error


def _load_classes() -> None:
    """Do a little of what the tests do, then let the Java machine end in order, for it writes the archive then."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    rows = spark.range(1000).selectExpr("id % 7 AS key", "cast(cast(id AS string) AS binary) AS value")
    rows.mapInArrow(lambda batches: batches, rows.schema).groupBy("key").count().collect()
    spark.stop()
    gateway: Any = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_RECORD_TIMEOUT_S)


if __name__ == "__main__":
    _load_classes()
