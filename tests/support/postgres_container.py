"""PostgreSQL in a container, with the face of `eos.local.LocalPostgres` that tests use."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

import psycopg

from eos.base.deadline import Deadline
from eos.errors import ConfigError, RetriableError
from eos.local.ports import HOST, free_port
from eos.testing import engine
from eos.testing.reaper import Reaper
from tests.support.patience import PATIENCE_S

if TYPE_CHECKING:
    from docker.models.containers import Container

IMAGE = "postgres:18"
_INSIDE = 5432
_STOP_GRACE_S = 10


def missing(image: str = IMAGE) -> str:
    """Why no container of it can run here; "" if one can. Nothing is pulled."""
    try:
        found = engine.find_image(image)
    except (ConfigError, ImportError) as error:
        return str(error)
    return "" if found else f"the engine has no image {image}: docker pull {image}"


class ContainerPostgres:
    """One server, at an address on loopback that holds over restarts. A context manager.

    Args:
        settings: of PostgreSQL.
        image: with the interface of the official one.
    """

    def __init__(self, *, settings: Mapping[str, str], image: str = IMAGE) -> None:
        self._settings, self._image = settings, image
        self._password = secrets.token_urlsafe(24)
        self._label = ("eos-kafka.testing", uuid.uuid4().hex)
        self._container: Container | None = None
        self._reaper: Reaper | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"postgresql://eos:{self._password}@{HOST}:{self.port}/postgres"

    def __enter__(self) -> Self:
        from testcontainers.core.config import testcontainers_config
        from testcontainers.core.container import DockerContainer

        self._reaper = Reaper("=".join(self._label))
        testcontainers_config.ryuk_disabled = True  # the reaper does its work, and needs no image
        container = (
            DockerContainer(self._image)
            .with_envs(POSTGRES_USER="eos", POSTGRES_PASSWORD=self._password, POSTGRES_DB="postgres")
            .with_kwargs(labels=dict([self._label]))
            .with_command(
                [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
            )
        )
        container.ports[f"{_INSIDE}/tcp"] = (HOST, self.port)  # type: ignore[assignment] # docker's own form
        try:
            self._container = container.start().get_wrapped_container()
            self._wait_until_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._container is not None:
            self._container.remove(force=True, v=True)
        if self._reaper is not None:
            self._reaper.close(all_gone=True)

    def start(self) -> Self:
        """After it was killed or stopped."""
        self._running.start()
        self._wait_until_ready()
        return self

    def stop(self) -> None:
        self._running.stop(timeout=_STOP_GRACE_S)

    def kill(self) -> None:
        """SIGKILL to all of its processes."""
        self._running.kill()

    def pause(self) -> bool:
        self._running.pause()
        return True

    def resume(self) -> None:
        """End a pause, if there is one."""
        self._running.reload()
        if self._running.status == "paused":
            self._running.unpause()

    @property
    def _running(self) -> Container:
        assert self._container is not None
        return self._container

    def _wait_until_ready(self) -> None:
        """The image starts a server for its setup first, which listens on no address."""
        if (
            not Deadline(PATIENCE_S).wait_for(lambda: self._has_ended() or self._answers())
            or self._has_ended()
        ):
            raise RetriableError(
                f"{self._image} was not ready in {PATIENCE_S:.0f} s: {self._running.logs(tail=15).decode(errors='replace')}"
            )

    def _has_ended(self) -> bool:
        self._running.reload()
        return bool(self._running.status == "exited")

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True
