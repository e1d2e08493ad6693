"""Provide the jars that let Spark read Kafka, for ``spark.jars``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from eos.local.jars import jars_root, provide_jars
from eos.local.pyspark_home import pyspark_version
from eos.local.versions import connector_jars


def provide_connector(
    directory: Path | str, *, java: str, progress: Callable[[str], None], jars: Path | str | None = None
) -> list[Path]:
    """The jars of Spark's Kafka connector of the installed PySpark's version, fetched if need be.

    They are kept in ``spark-kafka-<version>`` below `jars_root`. Otherwise as `provide_jars`.

    Returns:
        Absolute paths, by name.

    Raises:
        ConfigError: PySpark is not installed, too.
    """
    wanted = connector_jars(pyspark_version())
    kept = jars_root(directory, jars) / wanted.directory
    return sorted(provide_jars(wanted, kept, java=java, progress=progress).glob("*.jar"))
