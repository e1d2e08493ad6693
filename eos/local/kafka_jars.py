"""Provide the jars of a broker: those of an unpacked Kafka, or fetched ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from eos.errors import ConfigError
from eos.local.jars import provide_jars
from eos.local.versions import KAFKA_JARS, KAFKA_VERSION, SCALA_VERSION


def provide_kafka(
    directory: Path, *, java: str, kafka_home: Path | None, progress: Callable[[str], None]
) -> Path:
    """The directory that holds the jars, filled if need be.

    Args:
        directory: where downloaded jars are kept; several clusters may share it.
        java: the java executable, for Ivy.
        kafka_home: an unpacked Kafka to take instead of a download. An explicit choice, so it comes first.
        progress: called with one line before each long step.

    Raises:
        ConfigError: no source at hand, a jar is not what was pinned, or the directory is not writable.
        RetriableError: the download failed.
    """
    if kafka_home is not None:
        return _unpacked(kafka_home)
    return provide_jars(KAFKA_JARS, directory, java=java, progress=progress)


def _unpacked(kafka_home: Path) -> Path:
    libs = kafka_home / "libs"
    if not any(libs.glob(f"kafka_{SCALA_VERSION}-*.jar")):
        raise ConfigError(
            f"{kafka_home} is not an unpacked Kafka: there is no libs/kafka_{SCALA_VERSION}-<version>.jar in it. "
            f"Fix: point EOS_LOCAL__KAFKA_HOME to the unpacked kafka_{SCALA_VERSION}-{KAFKA_VERSION}.tgz."
        )
    return libs
