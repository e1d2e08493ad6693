"""Decide where the brokers of a test cluster run: in containers, or as processes of this machine; and say why."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from enum import StrEnum

from eos.errors import ConfigError
from eos.local.versions import KAFKA_VERSION
from eos.testing import engine

# The official image, and the one that eos builds where that cannot be pulled; both take the same environment.
IMAGES = (f"apache/kafka:{KAFKA_VERSION}", f"eos-kafka:{KAFKA_VERSION}")
_INSTALL = "pip install 'eos-kafka[testing]'"
_OR_PROCESSES = "choose processes (--eos-kafka=process, kind='process')"


class Kind(StrEnum):
    """Where brokers run; AUTO decides between the other two."""

    AUTO = "auto"
    DOCKER = "docker"
    PROCESS = "process"


@dataclass(frozen=True, slots=True)
class Choice:
    """What was decided.

    Attributes:
        kind: DOCKER or PROCESS.
        image: the image of the containers.
        why: the reason, for people.
    """

    kind: Kind
    image: str | None
    why: str

    def __str__(self) -> str:
        where = f"containers of {self.image}" if self.image else f"processes (Apache Kafka {KAFKA_VERSION})"
        return f"Kafka from {where}: {self.why}"


def choose(wanted: str = Kind.AUTO, image: str | None = None) -> Choice:
    """Decide, by what there is. Nothing is started or pulled.

    Args:
        wanted: ``auto`` takes containers if an engine answers and has the image, else processes.
        image: an image with the interface of ``apache/kafka``. One that was named is pulled at the start if the
            engine lacks it; without a name, the official image or eos's own is taken if it is there.

    Raises:
        ConfigError: ``docker`` was asked for and no engine or image is there, or ``wanted`` is unknown. It names the fix.
    """
    try:
        kind = Kind(wanted)
    except ValueError:
        raise ConfigError(
            f"{wanted!r} is no place for brokers. Fix: one of {', '.join(map(str, Kind))}"
        ) from None
    if kind is Kind.PROCESS:
        return Choice(Kind.PROCESS, None, "asked for")
    try:
        found, why = _image(image)
    except ConfigError as error:
        if kind is Kind.DOCKER:
            raise
        return Choice(Kind.PROCESS, None, f"auto, because {str(error).partition(' Fix:')[0].rstrip('.')}")
    return Choice(Kind.DOCKER, found, "asked for" if kind is Kind.DOCKER else f"auto, because {why}")


def _image(named: str | None) -> tuple[str, str]:
    """The image to take, and why it can be."""
    if importlib.util.find_spec("testcontainers") is None:
        raise ConfigError(f"testcontainers is not installed. Fix: {_INSTALL}, or {_OR_PROCESSES}")
    try:
        found = engine.find_image(*([named] if named else IMAGES))
    except engine.NoEngineError as error:
        raise ConfigError(f"{error}. Fix: start Docker, or {_OR_PROCESSES}") from error
    if named is not None:
        return named, f"an engine answers; it {'has' if found else 'will pull'} the image"
    if found is not None:
        return found, "an engine answers and has the image"
    raise ConfigError(
        f"the engine has neither {' nor '.join(IMAGES)}. Fix: docker pull {IMAGES[0]}, or name an image "
        f"(--eos-kafka-image, image=), or {_OR_PROCESSES}"
    )
