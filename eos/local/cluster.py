"""LocalKafka: a real Apache Kafka of one or three brokers on this machine, and the accidents it can have."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from eos.errors import ConfigError, RetriableError, UsageError
from eos.local import state as state_file
from eos.local.jars import jars_root
from eos.local.java import find_java
from eos.local.kafka_jars import provide_kafka
from eos.local.launch import Launch, PortTakenError, write_configuration
from eos.local.layout import Layout
from eos.local.ports import HOST, choose_ports
from eos.local.process import Guard, Identity, end, identity_of, pause, send
from eos.local.properties import check_extra
from eos.local.state import ClusterState, NodeState
from eos.local.storage import existing_cluster_id, format_missing, new_cluster_id
from eos.local.versions import KAFKA_JARS, KAFKA_VERSION
from eos.local.waiting import Deadline, locked

_START_TIMEOUT_S = 90.0  # 2 to 3 s for one broker, 10 s for three on two cores; a loaded machine needs more
_STOP_GRACE_S = 10.0  # one broker's controlled shutdown takes 0.5 s; it moves its leaders first
# Of three brokers that stop together, the last waits in vain for a quorum. Nothing is lost by ending it then.
_STOP_ALL_GRACE_S = 5.0
_LOCK_TIMEOUT_S = _START_TIMEOUT_S + 30.0  # the process that holds the lock is starting or stopping
_PORT_ATTEMPTS = 3
_TOOL_TIMEOUT_S = 60.0
_OWNER_GONE_TIMEOUT_S = 10.0  # its guards need some milliseconds to kill the brokers

# For tests: the broker is ready in about half the time, and is slower once it is warm.
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_TOOL_OPTIONS = ("-Xmx256m", *QUICK_START)


class Broker(NamedTuple):
    """One broker as it is now. ``pid`` is None while it is down."""

    id: int
    pid: int | None
    host: str
    port: int
    log_path: Path


def _ignore(line: str) -> None:
    """The default listener for progress."""


class LocalKafka:
    """Apache Kafka on loopback: each node is broker and KRaft controller at once.

    Data, logs and the state file are in ``directory/kafka``. One directory holds one cluster.

    Args:
        directory: where the cluster keeps its files.
        brokers: 1; or 3, with 3 replicas of which 2 must be in sync.
        properties: broker properties that go over those chosen here.
        kafka_home: an unpacked Kafka, instead of downloaded jars; default: ``EOS_LOCAL__KAFKA_HOME``.
        jars: where downloaded jars are kept (in ``kafka-<version>`` below it), for several clusters to share;
            default: ``EOS_LOCAL__JARS``, else ``directory/jars``.
        heap_mb: the heap of each broker in MiB; default 512, with three brokers 384.
        jvm_options: further options of each broker's Java machine, QUICK_START for example.
        port: the first client port, the others follow it; default: ports that are free.
        proxy_port: for a proxy between clients and the one broker: a second listener is bound at a free port
            (``proxied_listener_address``), but the broker advertises this port to its clients.
        listeners: further listeners for clients, each at a free port: name (capitals) to security protocol. What
            they need beside it goes into ``properties``, as ``listener.name.<name in small letters>.…``.
        owned: whether the brokers are killed when this process ends, however it ends, or drops this object
            without stop(). If not, they stay.
        progress: called with one line before each long step.
    """

    def __init__(
        self,
        directory: Path | str,
        brokers: int = 1,
        *,
        properties: Mapping[str, str] | None = None,
        kafka_home: Path | str | None = None,
        jars: Path | str | None = None,
        heap_mb: int | None = None,
        jvm_options: Sequence[str] = (),
        port: int | None = None,
        proxy_port: int | None = None,
        listeners: Mapping[str, str] | None = None,
        owned: bool = True,
        progress: Callable[[str], None] = _ignore,
    ) -> None:
        if brokers not in (1, 3):
            msg = f"brokers = {brokers}: a local cluster has 1 broker, or 3"
            raise ConfigError(msg)
        if proxy_port is not None and brokers != 1:
            msg = "proxy_port: one proxy stands before one broker. Fix: brokers = 1"
            raise ConfigError(msg)
        self._properties = dict(properties or {})
        check_extra(self._properties)
        self._layout = Layout(Path(directory).absolute())
        self._node_ids = range(1, brokers + 1)
        home = kafka_home or os.environ.get("EOS_LOCAL__KAFKA_HOME")
        self._kafka_home = Path(home).absolute() if home else None
        self._jars = jars_root(self._layout.directory, jars) / KAFKA_JARS.directory
        heap = heap_mb or (512 if brokers == 1 else 384)
        # A broker that has run out of memory limps on; one that ends says so.
        self._jvm_options = (f"-Xmx{heap}m", "-XX:+ExitOnOutOfMemoryError", *jvm_options)
        self._port = port
        self._proxy_port = proxy_port
        self._listeners = dict(listeners or {})
        self._owned = owned
        self._progress = progress
        self._guards: dict[int, Guard] = {}
        self._mutex = threading.RLock()  # tests stop brokers from one thread and restart them from another

    def __repr__(self) -> str:
        return f"LocalKafka({str(self._layout.directory)!r}, {len(self._node_ids)} broker(s))"

    @classmethod
    def attach(cls, directory: Path | str, *, progress: Callable[[str], None] = _ignore) -> Self | None:
        """The cluster that runs in that directory, of this process or another; None if none does.

        Brokers restarted through it stay when this process ends.

        Raises:
            ConfigError: the state file is not one of ours.
        """
        state = state_file.load(Layout(Path(directory).absolute()).state)
        if state is None or not state.running:
            return None
        first = state.nodes[min(state.nodes)].ports
        return cls(directory, len(state.nodes), proxy_port=first.proxy, owned=False, progress=progress)

    # -- the life of the cluster

    def start(self, timeout_s: float = _START_TIMEOUT_S) -> Self:
        """Start what is not running, and wait until it serves clients. Records of earlier runs are there again.

        A download of the jars comes on top of ``timeout_s``.

        Raises:
            ConfigError: the machine, the directory or a setting does not allow it; the message says which.
            RetriableError: the download failed, or the brokers were not ready in time.
        """
        try:
            with self._mutex, self._locked("starting"):
                found = self._last_state()
                if found is None or found.running != sorted(found.nodes):
                    java = found.java if found is not None and found.running else find_java()
                    libs = self._provide(java)
                    deadline = Deadline(timeout_s)
                    self._start_all(found, java, libs, deadline)
        except OSError as error:
            msg = f"cannot run Kafka in {self._layout.root}: {error}. Fix: choose a writable directory."
            raise ConfigError(msg) from error
        return self

    def stop(self, grace_s: float = _STOP_ALL_GRACE_S) -> None:
        """End every broker, also those that another process has started: SIGTERM, and SIGKILL after ``grace_s`` (0: at once).

        Raises:
            RetriableError: a process survived even SIGKILL, or another process is starting the cluster.
        """
        with self._mutex:
            if self._state() is None:
                return
            with self._locked("stopping"):
                state = self._state()
                processes = [node.process for node in state.nodes.values() if node.process] if state else []
                survivors = end(processes, grace_s=grace_s)
                for guard in self._guards.values():
                    guard.join()
                self._guards.clear()
            if survivors:
                msg = (
                    f"processes {[identity.pid for identity in survivors]} of {self._layout.root} do not end"
                )
                raise RetriableError(msg)

    def wipe(self) -> None:
        """Delete the records, topics, logs and state of the stopped cluster; the jars stay.

        Raises:
            UsageError: a broker is running.
        """
        with self._mutex:
            if not self._layout.root.exists():
                return
            with self._locked("wiping"):
                if self.running:
                    msg = f"{self!r}: stop() it before wipe()"
                    raise UsageError(msg)
                for node in self._layout.nodes():
                    shutil.rmtree(node)
                self._layout.state.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- what it is

    @property
    def running(self) -> bool:
        """Whether any broker's process is alive."""
        state = self._state()
        return state is not None and bool(state.running)

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, also of those that are down."""
        return self._started().bootstrap_servers

    @property
    def cluster_id(self) -> str:
        return self._started().cluster_id

    @property
    def brokers(self) -> Sequence[Broker]:
        """Every broker, by id; empty if the cluster was never started."""
        state = self._state()
        return [
            Broker(
                node_id,
                node.process.pid if node.process and node.process.alive else None,
                HOST,
                node.ports.client,
                self._layout.log(node_id),
            )
            for node_id, node in sorted(state.nodes.items() if state is not None else ())
        ]

    @property
    def proxied_listener_address(self) -> tuple[str, int]:
        """Where a proxy that listens on ``proxy_port`` must forward to.

        Raises:
            UsageError: there is no such listener.
        """
        proxied = self._started().nodes[1].ports.proxied
        if proxied is None:
            msg = "there is no listener for a proxy: give LocalKafka a proxy_port"
            raise UsageError(msg)
        return HOST, proxied

    def servers_at(self, listener: str) -> str:
        """The addresses of all brokers at one of the further ``listeners``.

        Raises:
            UsageError: there is no such listener.
        """
        nodes = self._started().nodes
        if any(listener not in node.ports.others for node in nodes.values()):
            msg = f"there is no listener {listener!r}: give LocalKafka listeners={{{listener!r}: 'SASL_SSL'}}"
            raise UsageError(msg)
        return ",".join(f"{HOST}:{node.ports.others[listener]}" for _, node in sorted(nodes.items()))

    @property
    def classpath(self) -> str:
        """The jars, as an argument of ``java -cp``. Fetches them if need be."""
        return f"{self._provide(find_java())}/*"

    def data_dir(self, broker_id: int) -> Path:
        """Where a broker keeps its partitions (``<topic>-<partition>/``)."""
        return self._layout.data(self._known(broker_id))

    # -- accidents

    def kill_broker(self, broker_id: int) -> None:
        """SIGKILL: no controlled shutdown, the log is recovered at the next start."""
        self._end(broker_id, grace_s=0)

    def stop_broker(self, broker_id: int, grace_s: float = _STOP_GRACE_S) -> None:
        """SIGTERM: leaders are moved first; SIGKILL after ``grace_s``."""
        self._end(broker_id, grace_s=grace_s)

    def pause_broker(self, broker_id: int) -> None:
        """SIGSTOP: from then on its connections stay open and it does not answer."""
        self._signal(broker_id, pause)

    def resume_broker(self, broker_id: int) -> None:
        """SIGCONT."""
        self._signal(broker_id, lambda process: send(process, signal.SIGCONT))

    def restart_broker(self, broker_id: int, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Start a broker again at its ports (after stopping it, if it runs) and wait until it serves clients.

        Its replicas may still be catching up then.

        Raises:
            ConfigError: it ended while starting. The message shows its last log lines.
            RetriableError: it was not ready in time.
        """
        self.stop_broker(broker_id)
        with self._mutex, self._locked("restarting"):
            self._bring_up(self._started(), [broker_id], Deadline(timeout_s))

    def tool(
        self, main_class: str, *arguments: str, timeout_s: float = _TOOL_TIMEOUT_S
    ) -> subprocess.CompletedProcess[str]:
        """Run a command line tool of Kafka, ``kafka.tools.DumpLogSegments`` for example.

        Returns:
            Its exit code and what it printed; a code that is not 0 raises nothing.

        Raises:
            subprocess.TimeoutExpired: it took longer than ``timeout_s`` and was killed.
        """
        java = find_java()
        command = [java, *_TOOL_OPTIONS, "-cp", f"{self._provide(java)}/*", main_class, *arguments]
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    # -- inside

    def _start_all(self, found: ClusterState | None, java: str, libs: Path, deadline: Deadline) -> None:
        if found is not None and found.running:  # some of its brokers failed
            down = [node_id for node_id in found.nodes if node_id not in found.running]
            self._bring_up(found, down, deadline)
            return
        existing = existing_cluster_id(self._layout, self._node_ids)
        last = {} if found is None else {node_id: node.ports for node_id, node in found.nodes.items()}
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            ports = choose_ports(
                self._node_ids, last=last, first=self._port, proxy=self._proxy_port, listeners=self._listeners
            )
            state = ClusterState(
                cluster_id=existing or new_cluster_id(),
                java=java,
                libs=libs,
                jvm_options=self._jvm_options,
                nodes={node_id: NodeState(node_ports) for node_id, node_ports in ports.items()},
                owner=identity_of(os.getpid()) if self._owned else None,
            )
            write_configuration(self._layout, state, self._properties, self._listeners)
            if existing is None:
                self._progress("Formatting the data directories")
            format_missing(self._layout, state.cluster_id, self._node_ids, _tool_command(java, libs))
            existing = state.cluster_id
            try:
                self._bring_up(state, list(self._node_ids), deadline)
            except PortTakenError:
                if self._port is not None or attempt == _PORT_ATTEMPTS:
                    raise
                last = {}
            else:
                return

    def _bring_up(self, state: ClusterState, node_ids: Sequence[int], deadline: Deadline) -> None:
        self._progress(f"Starting {len(node_ids)} broker(s) of Apache Kafka {KAFKA_VERSION}")
        launch = Launch(self._layout, owned=self._owned)
        try:
            for node_id in node_ids:
                state = state.with_process(node_id, launch.start(state, node_id))
                state_file.save(self._layout.state, state)
            launch.wait_until_ready(state, deadline)
        except BaseException:  # Ctrl-C too: nothing half-started stays
            launch.end()
            raise
        self._guards |= launch.guards

    def _last_state(self) -> ClusterState | None:
        """What the last start in this directory left, once it is clear that we may go on from it."""
        state = self._state()
        if state is None:
            return None
        for node_id, pid in state.lost.items():
            self._progress(
                f"Broker {node_id} (process id {pid}) ended without being stopped; its log is recovered"
            )
        if not state.running:
            return state
        where = (
            f"a Kafka cluster is running in {self._layout.root} (process ids {[b.pid for b in self.brokers]})"
        )
        if state.owner is not None and not state.owner.alive:
            if Deadline(_OWNER_GONE_TIMEOUT_S).wait_for(lambda: not state.running):
                return state
            msg = f"{where}, but the process that owned it is gone. Fix: `eos local stop`"
            raise ConfigError(msg)
        ours = identity_of(os.getpid()) if self._owned else None
        if state.owner != ours:
            msg = f"{where} and is not ours. Fix: `eos local stop`, or choose another directory."
            raise ConfigError(msg)
        if len(state.nodes) != len(self._node_ids):
            msg = (
                f"{where} with {len(state.nodes)} broker(s), not {len(self._node_ids)}. Fix: `eos local stop`"
            )
            raise ConfigError(msg)
        return state

    def _end(self, broker_id: int, *, grace_s: float) -> None:
        with self._mutex:
            if (process := self._process(broker_id)) is not None and end([process], grace_s=grace_s):
                msg = f"broker {broker_id} (process id {process.pid}) does not end"
                raise RetriableError(msg)
            if (guard := self._guards.pop(broker_id, None)) is not None:
                guard.join()

    def _signal(self, broker_id: int, send_to: Callable[[Identity], bool]) -> None:
        process = self._process(broker_id)
        if process is None or not send_to(process):
            msg = f"broker {broker_id} is down: it cannot be paused or resumed"
            raise UsageError(msg)

    def _process(self, broker_id: int) -> Identity | None:
        return self._started().nodes[self._known(broker_id)].process

    def _known(self, broker_id: int) -> int:
        if broker_id not in self._node_ids:
            msg = f"broker {broker_id} is unknown: the brokers are {list(self._node_ids)}"
            raise UsageError(msg)
        return broker_id

    def _provide(self, java: str) -> Path:
        return provide_kafka(self._jars, java=java, kafka_home=self._kafka_home, progress=self._progress)

    def _state(self) -> ClusterState | None:
        return state_file.load(self._layout.state)

    def _started(self) -> ClusterState:
        if (state := self._state()) is None:
            msg = f"{self._layout.root} holds no cluster yet: call start()"
            raise UsageError(msg)
        return state

    @contextmanager
    def _locked(self, purpose: str) -> Iterator[None]:
        self._layout.root.mkdir(parents=True, exist_ok=True)
        with locked(self._layout.lock, timeout_s=_LOCK_TIMEOUT_S, purpose=purpose):
            yield


def _tool_command(java: str, libs: Path) -> list[str]:
    return [java, *_TOOL_OPTIONS, "-cp", f"{libs}/*"]
