"""The one place that pins what a local Kafka is made of.

The three roots below were resolved once; their whole closure is kept in ``jars.sha256``, by coordinates
and checksum, and fetched without any resolving. Maven takes the nearest version of a dependency and Ivy the
newest (log4j 2.25.4 in place of 2.24.3, measured), so letting each tool resolve would give two brokers.

To move to another version: change it here, let ``mvn dependency:copy-dependencies
-DuseRepositoryLayout=true`` resolve a pom with the three roots, write every jar's SHA-256 and coordinates
into ``jars.sha256``, and run the broker tests once with Maven and once without.
"""

from __future__ import annotations

from importlib.resources import files
from typing import NamedTuple

from eos.errors import ConfigError

KAFKA_VERSION = "4.3.1"
SCALA_VERSION = "2.13"
LOG4J_VERSION = "2.24.3"
MAVEN_DEPENDENCY_PLUGIN_VERSION = "3.8.1"
MIN_JAVA_VERSION = 17  # Kafka 4 brokers: KIP-1013

ROOTS = (
    f"org.apache.kafka:kafka_{SCALA_VERSION}:{KAFKA_VERSION}",
    f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}",  # DumpLogSegments, TransactionsCommand, ProducerPerformance
    f"org.apache.logging.log4j:log4j-slf4j-impl:{LOG4J_VERSION}",
)


class Jar(NamedTuple):
    """One pinned jar. ``sha256`` is in lower-case hexadecimal."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    @property
    def coordinates(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"


def pinned_jars() -> tuple[Jar, ...]:
    """Every jar that a broker needs, as checked in beside this module.

    Raises:
        ConfigError: the list is damaged, so the installation is.
    """
    return parse_pins(files("eos.local").joinpath("jars.sha256").read_text())


def parse_pins(text: str) -> tuple[Jar, ...]:
    """The jars of a list with lines ``SHA-256  group:artifact:version``.

    Raises:
        ConfigError: a line is not of that form.
    """
    jars = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        checksum, _, coordinates = line.partition("  ")
        parts = coordinates.split(":")
        if len(checksum) != 64 or len(parts) != 3:  # noqa: PLR2004 - SHA-256 in hexadecimal; group, name, version
            msg = f"jars.sha256, line {number}: {line!r} is not 'SHA-256  group:artifact:version'"
            raise ConfigError(msg)
        group, artifact, version = parts
        jars.append(Jar(group, artifact, version, checksum))
    return tuple(jars)
