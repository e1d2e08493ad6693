"""The secured cluster of docker/compose.yaml for tests: brought up on free ports under a name of its own, and removed.

It is brought up and removed by the scripts behind ``make up`` and ``make down``, so these are tested too. Every wait
has a deadline in seconds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from eos.local.ports import free_port
from eos.settings import Settings
from tests.support import docker_cli
from tests.support.docker_cli import docker, wait_for

KAFKA_IMAGE = os.environ.get("KAFKA_IMAGE", docker_cli.KAFKA_IMAGE)
APP_IMAGE = os.environ.get("APP_IMAGE", docker_cli.APP_IMAGE)

_SCRIPTS = Path(__file__).parents[2] / "docker" / "cluster"
CERTIFICATES = _SCRIPTS / "certificates"

_BROKERS = (1, 2, 3)
_STEP_S = 240.0  # until a step of the start is healthy: it takes 20 s on an idle machine
_UP_S = 3 * _STEP_S
_DOWN_S = 120.0
_COMMAND_S = 60.0


def missing(*images: str) -> str:
    """Why the cluster cannot be brought up here with these images; "" if it can."""
    if why := docker_cli.missing(*images):
        return why
    if not (_succeeds("docker", "compose", "version") or _succeeds("docker-compose", "version")):
        return "there is neither docker compose nor docker-compose here"
    return "" if shutil.which("openssl") else "there is no openssl here"


def _succeeds(*command: str) -> bool:
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=_COMMAND_S)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


class SecuredCluster:
    """A running cluster; made by `secured_cluster`.

    Attributes:
        name: the Compose project.
        directory: its certificates and passwords.
        loaded: input records so far; whoever loads some counts them.
    """

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory
        self.loaded = 0
        names = [f"{kind}_PORT_{i}" for kind in ("SCRAM", "MTLS") for i in _BROKERS]
        names += ["METRICS_PORT_0", "METRICS_PORT_1"]
        self.ports: dict[str, int] = {}
        for variable in names:
            self.ports[variable] = free_port(self.ports.values())

    @property
    def scram_servers(self) -> str:
        """Where SASL_SSL with SCRAM is spoken."""
        return ",".join(f"127.0.0.1:{self.ports[f'SCRAM_PORT_{i}']}" for i in _BROKERS)

    @property
    def mtls_servers(self) -> str:
        """Where a client's certificate is asked for."""
        return ",".join(f"127.0.0.1:{self.ports[f'MTLS_PORT_{i}']}" for i in _BROKERS)

    def up(self, *what: str) -> str:
        """Bring it up, or what of it is missing; returns what the script has printed."""
        return self._script("up", *what, timeout_s=_UP_S)

    def down(self) -> None:
        """Remove it, its data included."""
        self._script("down", timeout_s=_DOWN_S)

    def environment(self, user: str, *, mtls: bool = False) -> dict[str, str]:
        """The variables that eos connects with as a user."""
        folder = self.directory / "clients" / user
        common = {"EOS_KAFKA__SSL_CA_FILE": str(folder / "ca.pem")}
        if mtls:
            return common | {
                "EOS_KAFKA__BOOTSTRAP_SERVERS": self.mtls_servers,
                "EOS_KAFKA__SECURITY_PROTOCOL": "SSL",
                "EOS_KAFKA__SSL_CERTIFICATE_FILE": str(folder / "certificate.pem"),
                "EOS_KAFKA__SSL_KEY_FILE": str(folder / "key.pem"),
            }
        return common | {
            "EOS_KAFKA__BOOTSTRAP_SERVERS": self.scram_servers,
            "EOS_KAFKA__SECURITY_PROTOCOL": "SASL_SSL",
            "EOS_KAFKA__SASL_MECHANISM": "SCRAM-SHA-512",
            "EOS_KAFKA__SASL_USERNAME": user,
            "EOS_KAFKA__SASL_PASSWORD_FILE": str(folder / "password"),
        }

    def settings(self, user: str, *, mtls: bool = False, without: int | None = None) -> Settings:
        """The settings of a client that connects as a user, and does not begin with a broker that is down."""
        environment = self.environment(user, mtls=mtls)
        if without is not None:
            down = f"127.0.0.1:{self.ports[f'SCRAM_PORT_{without}']}"
            servers = environment["EOS_KAFKA__BOOTSTRAP_SERVERS"].split(",")
            environment["EOS_KAFKA__BOOTSTRAP_SERVERS"] = ",".join(one for one in servers if one != down)
        return Settings.load(environ=environment)

    def container(self, service: str) -> str:
        """The id of a service's container, running or not."""
        return docker(
            "ps",
            "--all",
            "--quiet",
            "--filter",
            f"label=com.docker.compose.project={self.name}",
            "--filter",
            f"label=com.docker.compose.service={service}",
        )

    def kill_broker(self, number: int) -> None:
        """SIGKILL."""
        docker("kill", self.container(f"kafka-{number}"))

    def restart_broker(self, number: int, *, timeout_s: float = _STEP_S) -> None:
        """Start it again on its disk, and wait until it is healthy."""
        found = self.container(f"kafka-{number}")
        docker("start", found)

        def state() -> str:
            return docker("inspect", "--format", "{{.State.Health.Status}}", found)

        wait_for(lambda: state() == "healthy", timeout_s, lambda: f"kafka-{number} is {state()}")

    def leftovers(self) -> list[str]:
        """Containers, volumes and networks of the project that exist."""
        of_project = ("--quiet", "--filter", f"label=com.docker.compose.project={self.name}")
        listings = (("ps", "--all"), ("volume", "ls"), ("network", "ls"))
        return [one for listing in listings for one in docker(*listing, *of_project).split()]

    def _script(self, name: str, *arguments: str, timeout_s: float) -> str:
        variables: Mapping[str, str] = {
            "KAFKA_IMAGE": KAFKA_IMAGE,
            "APP_IMAGE": APP_IMAGE,
            "CLUSTER_NAME": self.name,
            "CLUSTER_DIRECTORY": str(self.directory),
            "UP_DEADLINE_S": f"{_STEP_S:.0f}",
            "DOWN_TIMEOUT_S": "1",  # nothing of it is looked at any more
            **{variable: str(port) for variable, port in self.ports.items()},
        }
        done = subprocess.run(
            [str(_SCRIPTS / name), *arguments],
            capture_output=True,
            check=False,
            text=True,
            env={**os.environ, **variables},
            timeout=timeout_s,
        )
        assert done.returncode == 0, f"docker/cluster/{name}: {done.stderr}{done.stdout}"
        return done.stdout


@contextmanager
def secured_cluster(directory: Path) -> Iterator[SecuredCluster]:
    """Three brokers with topics and grants; removed at the end, whatever state they are in.

    Args:
        directory: for its certificates and passwords.
    """
    cluster = SecuredCluster(f"eos-test-{free_port()}", directory)
    try:
        cluster.up("brokers")
        yield cluster
    finally:
        cluster.down()
