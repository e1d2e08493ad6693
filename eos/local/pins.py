"""Jars that are pinned by coordinates and checksum, in lists that are checked in beside this module."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import NamedTuple

from eos.errors import ConfigError


class Jar(NamedTuple):
    """One pinned jar. ``sha256`` is in lower-case hexadecimal; empty if nothing is known to compare it with."""

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


@dataclass(frozen=True, slots=True)
class JarSet:
    """Jars that are fetched, verified and kept together.

    Args:
        title: what they are, for messages: "Apache Kafka 4.2.1".
        pins: the name of their list.
        directory: the name of the directory that holds them, and nothing else.
        megabytes: their size, for the line that says what is fetched.
        otherwise: how to do without fetching them, the end of "Fix: …".
        instead: takes the place of the list's jar of that artifact.
    """

    title: str
    pins: str
    directory: str
    megabytes: int
    otherwise: str
    instead: Jar | None = None

    def jars(self) -> tuple[Jar, ...]:
        """Every jar of the list.

        Raises:
            ConfigError: the list is damaged, so the installation is.
        """
        listed = parse_pins(files("eos.local").joinpath(self.pins).read_text(), self.pins)
        other = self.instead
        return tuple(other if other and other.artifact == jar.artifact else jar for jar in listed)


def parse_pins(text: str, name: str) -> tuple[Jar, ...]:
    """The jars of the list ``name``, with lines ``SHA-256  group:artifact:version``.

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
            raise ConfigError(f"{name}, line {number}: {line!r} is not 'SHA-256  group:artifact:version'")
        group, artifact, version = parts
        jars.append(Jar(group, artifact, version, checksum))
    return tuple(jars)
