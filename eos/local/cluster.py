"""LocalKafka: a real Apache Kafka of one or three brokers on this machine, and the accidents it can have."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from eos.base.deadline import Deadline
from eos.base.listing import counted
from eos.errors import ConfigError, UsageError
from eos.local import state as state_file
from eos.local.class_archive import class_archive
from eos.local.jars import jars_root
from eos.local.java import find_java
from eos.local.kafka_jars import provide_kafka
from eos.local.launch import Launch, PortTakenError, write_configuration
from eos.local.layout import Layout
from eos.local.local_cluster import START_TIMEOUT_S, LocalCluster, ignore
from eos.local.ports import HOST, choose_ports
from eos.local.process import Guard, Identity, live_pid, pause, send
from eos.local.properties import check_extra, heap_mb_for
from eos.local.state import ClusterState, NodeState
from eos.local.storage import existing_cluster_id, format_missing, new_cluster_id
from eos.local.versions import KAFKA_JARS, KAFKA_VERSION

_STOP_GRACE_S = 10.0  # one broker's controlled shutdown takes 0.5 s; it moves its leaders first
# Of three brokers that stop together, the last waits in vain for a quorum. Nothing is lost by ending it then.
_STOP_ALL_GRACE_S = 5.0
_ARCHIVE_GRACE_S = 60.0  # it takes 4 s
_PORT_ATTEMPTS = 3
_TOOL_TIMEOUT_S = 60.0

QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For tests: the broker is ready in a third of the time, and is slower once it is warm. The first one with these options
archives Kafka's classes beside the jars (50 MB)."""
_TOOL_OPTIONS = ("-Xmx256m", *QUICK_START)


class Broker(NamedTuple):
    """One broker as it is now. ``pid`` is None while it is down."""

    id: int
    pid: int | None
    host: str
    port: int
    log_path: Path


class LocalKafka(LocalCluster[ClusterState, Layout]):
    """Apache Kafka on loopback: each node is broker and KRaft controller at once.

    Data, logs and the state file are in ``directory/kafka``. One directory holds one cluster.

    Args:
        directory: where the cluster keeps its files.
        brokers: 1; or 3, with 3 replicas of which 2 must be in sync.
        properties: broker properties that override those chosen here.
        kafka_home: an unpacked Kafka, instead of downloaded jars; default: ``EOS_LOCAL__KAFKA_HOME``.
        jars: where downloaded jars are kept (in ``kafka-<version>`` below it), for several clusters to share;
            default: ``EOS_LOCAL__JARS``, else ``directory/jars``.
        heap_mb: the heap of each broker in MiB; default 512, with three brokers 384.
        jvm_options: further options of each broker's Java machine, QUICK_START for example.
        port: the first client port, the others follow it; default: ports that are free.
        proxy_ports: for a proxy between clients and each broker: a second listener is bound at a free port
            (``proxied_listeners``), but the broker advertises its one of these ports to its clients.
        listeners: further listeners for clients, each at a free port: name (capitals) to security protocol. What
            they need beside it goes into ``properties``, as ``listener.name.<name in small letters>.…``.
        owned: whether the brokers are killed when this process ends, however it ends, or drops this object
            without stop(). If not, they stay.
        progress: called with one line before each long step.
    """

    title, _part, start_command, _stop_command = "Kafka", "broker", "eos local start", "eos local stop"

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
        proxy_ports: Sequence[int] = (),
        listeners: Mapping[str, str] | None = None,
        owned: bool = True,
        progress: Callable[[str], None] = ignore,
    ) -> None:
        if brokers not in (1, 3):
            raise ConfigError(f"brokers = {brokers}: a local cluster has 1 broker, or 3")
        if proxy_ports and len(proxy_ports) != brokers:
            raise ConfigError(
                f"proxy_ports: one proxy stands before one broker. Fix: {brokers} ports, not {len(proxy_ports)}"
            )
        layout = Layout(Path(directory).absolute())
        super().__init__(layout, ClusterState, brokers, owned=owned, progress=progress)
        self._properties = dict(properties or {})
        check_extra(self._properties)
        self._node_ids = range(1, brokers + 1)
        home = kafka_home or os.environ.get("EOS_LOCAL__KAFKA_HOME")
        self._kafka_home = Path(home).absolute() if home else None
        self._jars = jars_root(layout.directory, jars) / KAFKA_JARS.directory
        # A broker that has run out of memory limps on; one that ends says so.
        heap = f"-Xmx{heap_mb or heap_mb_for(brokers)}m"
        self._jvm_options = (heap, "-XX:+ExitOnOutOfMemoryError", *jvm_options)
        self._port = port
        self._proxy_ports = tuple(proxy_ports)
        self._listeners = dict(listeners or {})
        self._guards: dict[int, Guard] = {}

    @classmethod
    def attach(cls, directory: Path | str, *, progress: Callable[[str], None] = ignore) -> Self | None:
        """The cluster that runs in that directory, of this process or another; None if none does.

        Brokers restarted through it stay when this process ends.

        Raises:
            ConfigError: the state file is not one of ours.
        """
        state = state_file.load(Layout(Path(directory).absolute()).state, ClusterState)
        if state is None or not state.running:
            return None
        proxies = [
            node.ports.proxy for _, node in sorted(state.nodes.items()) if node.ports.proxy is not None
        ]
        return cls(directory, state.size, proxy_ports=proxies, owned=False, progress=progress)

    # -- the life of the cluster

    def start(self, timeout_s: float = START_TIMEOUT_S) -> Self:
        """Start what is not running, and wait until it serves clients. Records of earlier runs are there again.

        A download of the jars comes on top of ``timeout_s``.

        Raises:
            ConfigError: the machine, the directory or a setting does not allow it; the message says which.
            RetriableError: the download failed, or the brokers were not ready in time.
        """
        with self._locked("starting"):
            state = self._last_state()
            if state is None or state.running != sorted(state.nodes):
                java = state.java if state is not None and state.running else find_java()
                libs = self._provide(java)
                self._start_all(state, java, libs, Deadline(timeout_s))
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
                self._end_processes(processes, grace_s=grace_s)
                for guard in self._guards.values():
                    guard.join()
                self._guards.clear()

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
                    raise UsageError(f"{self!r}: stop() it before wipe()")
                for node in self._layout.nodes():
                    shutil.rmtree(node)
                self._layout.state.unlink(missing_ok=True)

    # -- what it is

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
        nodes = sorted(state.nodes.items()) if state is not None else ()
        return [
            Broker(node_id, live_pid(node.process), HOST, node.ports.client, self._layout.log(node_id))
            for node_id, node in nodes
        ]

    @property
    def proxied_listeners(self) -> dict[int, tuple[str, int]]:
        """Per port of ``proxy_ports``, where the proxy that listens there must forward to."""
        ports = [node.ports for node in self._started().nodes.values()]
        return {one.proxy: (HOST, one.proxied) for one in ports if one.proxy and one.proxied}

    def servers_at(self, listener: str) -> str:
        """The addresses of all brokers at one of the further ``listeners``.

        Raises:
            UsageError: there is no such listener.
        """
        nodes = self._started().nodes
        if any(listener not in node.ports.others for node in nodes.values()):
            raise UsageError(
                f"there is no listener {listener!r}: give LocalKafka listeners={{{listener!r}: 'SASL_SSL'}}"
            )
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

    def restart_broker(self, broker_id: int, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start a broker again at its ports (after stopping it, if it runs) and wait until it serves clients.

        Its replicas may still be catching up then.

        Raises:
            ConfigError: it ended while starting. The message shows its last log lines.
            RetriableError: it was not ready in time.
        """
        self.stop_broker(broker_id)
        with self._locked("restarting"):
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
        return subprocess.run(
            [*_tool_command(java, self._provide(java)), main_class, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    # -- inside

    def _start_all(self, last: ClusterState | None, java: str, libs: Path, deadline: Deadline) -> None:
        if last is not None and last.running:  # some of its brokers failed
            self._bring_up(last, [node_id for node_id in last.nodes if node_id not in last.running], deadline)
            return
        archive = self._archive(java, libs)
        existing = existing_cluster_id(self._layout, self._node_ids)
        last_ports = {} if last is None else {node_id: node.ports for node_id, node in last.nodes.items()}
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            ports = choose_ports(
                self._node_ids,
                last=last_ports,
                first=self._port,
                proxies=self._proxy_ports,
                listeners=self._listeners,
            )
            state = ClusterState(
                cluster_id=existing or new_cluster_id(),
                java=java,
                libs=libs,
                jvm_options=(*self._jvm_options, *archive),
                nodes={node_id: NodeState(node_ports) for node_id, node_ports in ports.items()},
                owner=self._owner,
            )
            write_configuration(self._layout, state, self._properties, self._listeners)
            if existing is None:
                self._progress("Formatting the data directories")
            format_missing(self._layout, state.cluster_id, self._node_ids, _tool_command(java, libs, archive))
            existing = state.cluster_id
            try:
                self._bring_up(state, list(self._node_ids), deadline)
            except PortTakenError:
                if self._port is not None or attempt == _PORT_ATTEMPTS:
                    raise
                last_ports = {}
            else:
                return

    def _archive(self, java: str, libs: Path) -> tuple[str, ...]:
        """The options by which a short-lived broker has Kafka's classes from an archive; none for other brokers."""
        if self._kafka_home is not None or not set(QUICK_START) <= set(self._jvm_options):
            return ()

        def record(option: str) -> None:
            self._progress("Archiving Kafka's classes, for quicker starts (once, 10 s)")
            with (
                tempfile.TemporaryDirectory() as directory,
                LocalKafka(directory, jars=libs.parent, heap_mb=256, jvm_options=[option]) as recorded,
            ):
                recorded.stop(_ARCHIVE_GRACE_S)

        return class_archive(libs, java, record)

    def _bring_up(self, state: ClusterState, node_ids: Sequence[int], deadline: Deadline) -> None:
        self._progress(f"Starting {counted(len(node_ids), 'broker')} of Apache Kafka {KAFKA_VERSION}")
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
        for node_id, node in state.nodes.items():
            if node.process and not node.alive and not self._layout.shut_down_cleanly(node_id):
                self._progress(
                    f"Broker {node_id} (process id {node.process.pid}) did not shut down cleanly; its log is recovered"
                )
        if state.running:
            self._check_ours(state, f"process ids {[broker.pid for broker in self.brokers]}")
        return state

    def _end(self, broker_id: int, *, grace_s: float) -> None:
        with self._mutex:
            if (process := self._process(broker_id)) is not None:
                self._end_processes([process], grace_s=grace_s)
            if (guard := self._guards.pop(broker_id, None)) is not None:
                guard.join()

    def _signal(self, broker_id: int, send_to: Callable[[Identity], bool]) -> None:
        process = self._process(broker_id)
        if process is None or not send_to(process):
            raise UsageError(f"broker {broker_id} is down: it cannot be paused or resumed")

    def _process(self, broker_id: int) -> Identity | None:
        return self._started().nodes[self._known(broker_id)].process

    def _known(self, broker_id: int) -> int:
        if broker_id not in self._node_ids:
            raise UsageError(f"broker {broker_id} is unknown: the brokers are {list(self._node_ids)}")
        return broker_id

    def _provide(self, java: str) -> Path:
        return provide_kafka(self._jars, java=java, kafka_home=self._kafka_home, progress=self._progress)


def _tool_command(java: str, libs: Path, options: Sequence[str] = ()) -> list[str]:
    return [java, *_TOOL_OPTIONS, *options, "-cp", f"{libs}/*"]
