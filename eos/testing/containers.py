"""Kafka of one or three brokers in containers, at addresses on loopback that hold over restarts."""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from docker.errors import APIError, ImageNotFound, NotFound
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import DockerClient
from testcontainers.core.network import Network

from eos.base.deadline import Deadline
from eos.errors import ConfigError, RetriableError, UsageError
from eos.local.ports import HOST, free_port
from eos.local.properties import check_extra, heap_mb_for, small_cluster
from eos.local.readiness import wait_until_ready
from eos.local.storage import new_cluster_id
from eos.testing.reaper import Reaper, remove_labelled

if TYPE_CHECKING:
    from docker.models.containers import Container

LABEL = "eos-kafka.testing"  # its value is unique per cluster
_START_TIMEOUT_S = 90.0  # 4 s for one broker, 15 s for three on two cores; a loaded machine needs more
_STOP_GRACE_S = 10
_PORT_ATTEMPTS = 3
_PORT_TAKEN = ("port is already allocated", "address already in use")
_INSIDE, _OUTSIDE, _CONTROLLER = 9092, 19092, 9093  # in the container
_LOGS = "/tmp/kraft-combined-logs"  # noqa: S108 - in the container: any user may write there, in either image
_SHOWN_LINES = 15
_ryuk = threading.Lock()

log = logging.getLogger("eos.testing")


class ContainerKafka:
    """Brokers in containers, each of them also a controller. Brokers see each other in a network of their own.

    Everything is removed by stop(), by its id; and, by the label of this cluster, when this process ends without one.

    Args:
        image: an image with the interface of ``apache/kafka``. It is pulled if the engine lacks it.
        brokers: 1, or 3.
        properties: broker properties that override those chosen here.
        heap_mb: the heap of each broker in MiB; default 512, with three brokers 384.
    """

    def __init__(
        self,
        image: str,
        brokers: int = 1,
        *,
        properties: Mapping[str, str] | None = None,
        heap_mb: int | None = None,
    ) -> None:
        extra = dict(properties or {})
        check_extra(extra)
        self._image = image
        self._ids = range(1, brokers + 1)
        self._properties = small_cluster(brokers) | extra
        self._heap_mb = heap_mb or heap_mb_for(brokers)
        self._cluster_id = new_cluster_id()
        self._label = (LABEL, uuid.uuid4().hex)
        self._ports: dict[int, int] = {}
        self._containers: dict[int, Container] = {}
        self._network: Network | None = None
        self._reaper: Reaper | None = None
        self._mutex = threading.RLock()  # tests stop brokers from one thread and restart them from another

    def __repr__(self) -> str:
        return f"ContainerKafka({self._image!r}, {len(self._ids)} broker(s))"

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, also of those that are down."""
        self._check_started()
        return ",".join(f"{HOST}:{port}" for port in self._ports.values())

    def start(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Start what is not running, and wait until it serves clients. A pull of the image comes on top.

        Raises:
            ConfigError: the image is not there and cannot be pulled, or a broker ended while starting. It shows its last lines.
            RetriableError: the brokers were not ready in time.
        """
        with self._mutex:
            deadline = Deadline(timeout_s)
            if not self._containers:
                self._create()
                self._wait_until_ready(self._ids, deadline)
            elif down := [i for i in self._ids if self._status(i) != "running"]:
                for broker_id in down:
                    self._containers[broker_id].start()
                self._wait_until_ready(down, deadline)

    def stop(self) -> None:
        """Remove containers, volumes and network. The records are gone."""
        with self._mutex:
            gone = False
            try:
                for container in self._containers.values():
                    with contextlib.suppress(NotFound):
                        container.remove(force=True, v=True)
                if self._network is not None:
                    self._network.remove()
                gone = True
            except APIError:
                log.warning(
                    "%r: not everything could be removed; the reaper tries again", self, exc_info=True
                )
            finally:
                self._containers.clear()
                self._ports.clear()
                self._network = None
                if self._reaper is not None:
                    self._reaper.close(all_gone=gone)
                    self._reaper = None

    def kill_broker(self, broker_id: int) -> None:
        """SIGKILL: no controlled shutdown, the log is recovered at the next start."""
        container = self._unfrozen(broker_id)
        with _explained(broker_id, "killed"):
            container.kill()

    def stop_broker(self, broker_id: int) -> None:
        """SIGTERM: leaders are moved first; SIGKILL after 10 s."""
        self._unfrozen(broker_id).stop(timeout=_STOP_GRACE_S)

    def pause_broker(self, broker_id: int) -> None:
        """Freeze every process of the container: its connections stay open and it does not answer."""
        with _explained(broker_id, "paused"):
            self._known(broker_id).pause()

    def resume_broker(self, broker_id: int) -> None:
        """End a pause."""
        with _explained(broker_id, "resumed"):
            self._known(broker_id).unpause()

    def restart_broker(self, broker_id: int, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Start the container again (after stopping it, if it runs): same data, same address.

        Its replicas may still be catching up when it serves clients.

        Raises:
            ConfigError: it ended while starting. The message shows its last lines.
            RetriableError: it was not ready in time.
        """
        with self._mutex:
            self.stop_broker(broker_id)
            self._known(broker_id).start()
            self._wait_until_ready([broker_id], Deadline(timeout_s))

    # -- inside

    def _create(self) -> None:
        self._reaper = Reaper("=".join(self._label))
        try:
            self._have_image()
            if len(self._ids) > 1:
                self._network = Network(docker_network_kw={"labels": dict([self._label])}).create()
            for attempt in range(1, _PORT_ATTEMPTS + 1):
                # Known before the start: an address that the engine chose would change with each restart.
                self._ports = {}
                for broker_id in self._ids:
                    self._ports[broker_id] = free_port(self._ports.values())
                try:
                    with _without_ryuk():
                        for broker_id in self._ids:
                            container = self._container(broker_id).start()
                            self._containers[broker_id] = container.get_wrapped_container()
                except APIError as error:
                    if attempt == _PORT_ATTEMPTS or not any(text in str(error) for text in _PORT_TAKEN):
                        raise
                    self._containers.clear()
                    # By label: the one that was created but not started is known by nothing else.
                    remove_labelled("=".join(self._label), networks=False)
                else:
                    return
        except BaseException as error:  # Ctrl-C too: nothing half-started stays
            remove_labelled("=".join(self._label), networks=False)
            self.stop()
            if isinstance(error, APIError):
                raise ConfigError(
                    f"the container engine refused {self._image}: {error.explanation or error}"
                ) from error
            raise

    def _have_image(self) -> None:
        client = DockerClient().client
        try:
            client.images.get(self._image)
        except ImageNotFound:
            try:
                client.images.pull(self._image)
            except APIError as error:
                raise ConfigError(
                    f"the engine has no image {self._image!r} and cannot pull it: {error.explanation or error}. "
                    "Fix: build or load it, or name one that is there (docker images)"
                ) from error
        finally:
            client.close()

    def _host(self, broker_id: int) -> str:
        return "localhost" if self._network is None else f"broker-{broker_id}"

    def _container(self, broker_id: int) -> DockerContainer:
        container = (
            DockerContainer(self._image)
            .with_envs(**self._environment(broker_id))
            .with_kwargs(labels=dict([self._label]))
        )
        # with_bind_ports takes no address, and without one a port would be open to the whole network.
        container.ports[f"{_OUTSIDE}/tcp"] = (HOST, self._ports[broker_id])  # type: ignore[assignment] # docker's own form
        if self._network is not None:
            container.with_network(self._network).with_network_aliases(self._host(broker_id))
        return container

    def _environment(self, broker_id: int) -> dict[str, str]:
        host = self._host(broker_id)
        properties = {
            **self._properties,
            "node.id": str(broker_id),
            "process.roles": "broker,controller",
            "controller.quorum.voters": ",".join(f"{i}@{self._host(i)}:{_CONTROLLER}" for i in self._ids),
            "listeners": f"INSIDE://:{_INSIDE},OUTSIDE://:{_OUTSIDE},CONTROLLER://:{_CONTROLLER}",
            "advertised.listeners": (f"INSIDE://{host}:{_INSIDE},OUTSIDE://{HOST}:{self._ports[broker_id]}"),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "INSIDE",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": _LOGS,
        }
        return {
            **{_variable(name): value for name, value in properties.items()},
            "CLUSTER_ID": self._cluster_id,
            # Ready in about half the time, and slower once it is warm: tests are short.
            "KAFKA_HEAP_OPTS": f"-Xmx{self._heap_mb}m -XX:TieredStopAtLevel=1 -XX:+ExitOnOutOfMemoryError",
        }

    def _wait_until_ready(self, broker_ids: Iterable[int], deadline: Deadline) -> None:
        ports = {broker_id: self._ports[broker_id] for broker_id in broker_ids}
        late = wait_until_ready(ports, self._cluster_id, check_alive=self._check_alive, deadline=deadline)
        if late is not None:
            raise RetriableError(
                f"broker {late} does not answer at {HOST}:{ports[late]}. {self._last_lines(late)}"
            )

    def _check_alive(self, broker_id: int) -> None:
        if self._status(broker_id) != "running":
            raise ConfigError(f"broker {broker_id} ended while starting. {self._last_lines(broker_id)}")

    def _last_lines(self, broker_id: int) -> str:
        lines = self._containers[broker_id].logs(tail=_SHOWN_LINES).decode(errors="replace").splitlines()
        return f"The last lines of its container ({self._image}):\n" + "\n".join(f"  {one}" for one in lines)

    def _unfrozen(self, broker_id: int) -> Container:
        """The broker's container; a paused one takes no signal, so the pause ends."""
        container = self._known(broker_id)
        if self._status(broker_id) == "paused":
            container.unpause()
        return container

    def _status(self, broker_id: int) -> str:
        container = self._known(broker_id)
        container.reload()
        return str(container.status)

    def _known(self, broker_id: int) -> Container:
        self._check_started()
        if broker_id not in self._containers:
            raise UsageError(f"broker {broker_id} is unknown: the brokers are {list(self._ids)}")
        return self._containers[broker_id]

    def _check_started(self) -> None:
        if not self._containers:
            raise UsageError(f"{self!r} is not running: call start()")


def _variable(name: str) -> str:
    """How the image's environment spells a property."""
    return "KAFKA_" + name.replace("_", "__").replace("-", "___").replace(".", "_").upper()


@contextlib.contextmanager
def _explained(broker_id: int, what: str) -> Iterator[None]:
    try:
        yield
    except APIError as error:
        raise UsageError(f"broker {broker_id} cannot be {what}: {error.explanation}") from error


@contextlib.contextmanager
def _without_ryuk() -> Iterator[None]:
    """Our own reaper cleans up; testcontainers' needs an image. What else a suite starts keeps its setting."""
    with _ryuk:
        before = testcontainers_config.ryuk_disabled
        testcontainers_config.ryuk_disabled = True
        try:
            yield
        finally:
            testcontainers_config.ryuk_disabled = before
