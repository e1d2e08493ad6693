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
    """The directory that holds the jars: that of ``kafka_home``, an unpacked Kafka, if given; else as `provide_jars`."""
    if kafka_home is None:
        return provide_jars(KAFKA_JARS, directory, java=java, progress=progress)
    libs = kafka_home / "libs"
    if not any(libs.glob(f"kafka_{SCALA_VERSION}-*.jar")):
        raise ConfigError(
            f"{kafka_home} is not an unpacked Kafka: there is no libs/kafka_{SCALA_VERSION}-<version>.jar in it. "
            f"Fix: point EOS_LOCAL__KAFKA_HOME to the unpacked kafka_{SCALA_VERSION}-{KAFKA_VERSION}.tgz."
        )
    return libs
