"""Provide the jars that let Spark read Kafka, for ``spark.jars``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from eos.local.jars import jars_root, provide_jars
from eos.local.versions import CONNECTOR_JARS


def provide_connector(
    directory: Path | str, *, java: str, progress: Callable[[str], None], jars: Path | str | None = None
) -> list[Path]:
    """The jars of Spark's Kafka connector, fetched if need be.

    Args:
        directory: eos's directory on this machine (the setting ``local.directory``).
        java: the java executable, for Ivy.
        progress: told one line before each long step.
        jars: where fetched jars are kept, in ``spark-kafka-<version>`` below it, for several directories to
            share; default: ``EOS_LOCAL__JARS``, else ``directory/jars``.

    Returns:
        Absolute paths, by name.

    Raises:
        ConfigError: nothing here can fetch them, a jar is not what was pinned, or the directory is not writable.
        RetriableError: the download failed.
    """
    kept = jars_root(directory, jars) / CONNECTOR_JARS.directory
    return sorted(provide_jars(CONNECTOR_JARS, kept, java=java, progress=progress).glob("*.jar"))
