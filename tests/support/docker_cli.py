"""Containers of this project's images for tests: started, watched and removed by id, through the ``docker`` command.

What a test starts is removed when its block ends, whatever state it is in. Every wait has a deadline in seconds.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from eos.base.deadline import Deadline
from eos.local.ports import free_port
from eos.local.versions import KAFKA_VERSION

KAFKA_IMAGE = f"eos-kafka:{KAFKA_VERSION}"
APP_IMAGE = "eos-app:dev"
SPARK_IMAGE = "eos-spark:dev"

_COMMAND_S = 60.0
_START_S = (
    180.0  # a broker answers in 5 s; 90 s were seen on a machine with 30 times the load that it can bear
)
_SHOWN_LINES = 60


def docker(*arguments: str, timeout_s: float = _COMMAND_S) -> str:
    """The standard output of a docker command.

    Raises:
        AssertionError: it failed; the message holds what it said.
    """
    done = subprocess.run(
        ["docker", *arguments], capture_output=True, check=False, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr or done.stdout}"
    return done.stdout.strip()


def missing(*images: str) -> str:
    """Why tests of these images cannot run here; "" if they can."""
    if shutil.which("docker") is None:
        return "there is no docker command here"
    asked = subprocess.run(["docker", "info"], capture_output=True, check=False, timeout=_COMMAND_S)
    if asked.returncode != 0:
        return "no Docker engine answers"
    absent = [
        image
        for image in images
        if subprocess.run(
            ["docker", "image", "inspect", image], capture_output=True, check=False, timeout=_COMMAND_S
        ).returncode
    ]
    return f"no image {', '.join(absent)}: make images" if absent else ""


def wait_for(condition: Callable[[], bool], timeout_s: float, what: Callable[[], str]) -> None:
    """Wait until the condition holds.

    Raises:
        AssertionError: it did not in time; the message says what was waited for.
    """
    assert Deadline(timeout_s).wait_for(condition), f"after {timeout_s:g} s: {what()}"


class Container:
    """A container; made by `container`."""

    def __init__(self, name: str) -> None:
        self.id = name

    def inspect(self, path: str) -> Any:
        """A part of ``docker inspect``, for example ``.State.ExitCode``."""
        return json.loads(docker("inspect", "--format", f"{{{{json {path}}}}}", self.id))

    @property
    def running(self) -> bool:
        return bool(self.inspect(".State.Running"))

    @property
    def exit_code(self) -> int:
        return int(self.inspect(".State.ExitCode"))

    def logs(self) -> str:
        """What it has written so far, standard output and standard error together."""
        done = subprocess.run(
            ["docker", "logs", self.id],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_COMMAND_S,
        )
        return done.stdout

    def run(self, *command: str) -> str:
        """The output of a command inside it."""
        return docker("exec", self.id, *command)

    def stop(self, grace_s: int) -> tuple[int, float]:
        """SIGTERM, and SIGKILL after the grace period; returns the exit code and the seconds that it took."""
        began = time.monotonic()
        docker("stop", "--time", str(grace_s), self.id, timeout_s=grace_s + _COMMAND_S)
        return self.exit_code, time.monotonic() - began

    def wait(self, timeout_s: float) -> int:
        """The exit code, once it has ended by itself."""
        wait_for(lambda: not self.running, timeout_s, lambda: f"it still runs\n{self.last_words()}")
        return self.exit_code

    def wait_line(self, part: str, timeout_s: float) -> None:
        """Wait until its log holds a text, or fail as soon as it has ended without."""

        def there() -> bool:
            alive = self.running
            found = part in self.logs()
            assert alive or found, f"it ended without {part!r}\n{self.last_words()}"
            return found

        wait_for(there, timeout_s, lambda: f"no {part!r}\n{self.last_words()}")

    def wait_healthy(self, timeout_s: float) -> None:
        """Wait until its health check has passed."""

        def healthy() -> bool:
            assert self.running, f"it has ended with {self.exit_code}\n{self.last_words()}"
            return bool(self.inspect(".State.Health.Status") == "healthy")

        wait_for(healthy, timeout_s, lambda: f"{self.inspect('.State.Health')}\n{self.last_words()}")

    def last_words(self) -> str:
        return "\n".join(self.logs().splitlines()[-_SHOWN_LINES:])


@contextmanager
def container(
    image: str, *command: str, options: tuple[str, ...] = (), environment: Mapping[str, str] | None = None
) -> Iterator[Container]:
    """Run an image in the background.

    Args:
        image: as it is; nothing is pulled.
        command: instead of the image's own.
        options: of ``docker run``.
        environment: variables, by name.
    """
    variables = [word for name, value in (environment or {}).items() for word in ("--env", f"{name}={value}")]
    name = docker("create", "--pull", "never", *options, *variables, image, *command)
    try:
        docker("start", name)
        yield Container(name)
    finally:
        docker("rm", "--force", "--volumes", name)


@contextmanager
def network() -> Iterator[str]:
    """A bridge of its own, on which containers find each other by name; yields its id."""
    name = f"eos-test-{free_port()}"
    found = docker("network", "create", name)
    try:
        yield found
    finally:
        docker("network", "rm", found)


class Broker(NamedTuple):
    """A broker in a container.

    Attributes:
        outside: its address on this machine's loopback, for the observer.
        inside: its address for containers of the same network.
    """

    container: Container
    outside: str
    inside: str


@contextmanager
def broker(on: str) -> Iterator[Broker]:
    """One broker on a network; its records are gone at the end."""
    port = free_port()
    environment = {
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:29093",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_INTER_BROKER_LISTENER_NAME": "INSIDE",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "KAFKA_LISTENERS": "INSIDE://:19092,OUTSIDE://:9092,CONTROLLER://localhost:29093",
        "KAFKA_ADVERTISED_LISTENERS": f"INSIDE://kafka:19092,OUTSIDE://127.0.0.1:{port}",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        "KAFKA_HEAP_OPTS": "-Xmx512m",
    }
    options = ("--network", on, "--network-alias", "kafka", "--publish", f"127.0.0.1:{port}:9092")
    health = ("--health-interval", "1s")
    with container(KAFKA_IMAGE, options=(*options, *health), environment=environment) as running:
        running.wait_healthy(_START_S)
        yield Broker(running, f"127.0.0.1:{port}", "kafka:19092")
