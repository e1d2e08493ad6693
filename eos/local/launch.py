"""Bring nodes of a cluster up and wait until each of them answers and knows the others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from eos.base.deadline import Deadline
from eos.errors import ConfigError, RetriableError
from eos.local.layout import Layout
from eos.local.process import Guard, Identity, end, spawn
from eos.local.properties import log4j_properties, render, server_properties
from eos.local.readiness import wait_until_ready
from eos.local.state import ClusterState

_SHOWN_LINES = 15
_PORT_TAKEN = "Address already in use"


class PortTakenError(ConfigError):
    """Another process took a port between its choice and the start of what was to listen there."""


def ended(who: str, lines: str) -> ConfigError:
    """The error of a process that ended while starting, by the last lines that it wrote."""
    kind = PortTakenError if _PORT_TAKEN in lines else ConfigError
    return kind(f"{who} ended while starting. {lines}")


def last_lines(log: Path, since: Mapping[Path, int] | None = None) -> str:
    """The last lines of a process, for an error.

    Args:
        log: the file to name.
        since: the files to show, each from a byte on; default: ``log``.
    """
    parts = [_since(path, start).splitlines()[-_SHOWN_LINES:] for path, start in (since or {log: 0}).items()]
    return f"The last lines of its log ({log}):\n" + "\n".join(f"  {line}" for part in parts for line in part)


def write_configuration(
    layout: Layout, state: ClusterState, extra: Mapping[str, str], protocols: Mapping[str, str]
) -> None:
    """Write server.properties and log4j2.properties of every node."""
    ports = {node_id: node.ports for node_id, node in state.nodes.items()}
    for node_id in state.nodes:
        layout.node(node_id).mkdir(parents=True, exist_ok=True)
        properties = server_properties(node_id, ports, layout.data(node_id), extra, protocols)
        layout.properties(node_id).write_text(render(properties))
        layout.log4j(node_id).write_text(log4j_properties(layout.log(node_id)))


class Launch:
    """One start of some nodes: end() undoes it, wait_until_ready() completes it."""

    def __init__(self, layout: Layout, *, owned: bool) -> None:
        self._layout = layout
        self._owned = owned
        self._starts: dict[int, dict[Path, int]] = {}
        self.identities: dict[int, Identity] = {}
        self.guards: dict[int, Guard] = {}

    def start(self, state: ClusterState, node_id: int) -> Identity:
        """Start a node's process."""
        files = (self._layout.console(node_id), self._layout.log(node_id))
        self._starts[node_id] = {path: path.stat().st_size if path.exists() else 0 for path in files}
        command = [
            state.java,
            *state.jvm_options,
            f"-Dlog4j2.configurationFile={self._layout.log4j(node_id)}",
            "-Dlog4j2.disableJmx=true",
            "-cp",
            f"{state.libs}/*",
            "kafka.Kafka",
            str(self._layout.properties(node_id)),
        ]
        self.identities[node_id], self.guards[node_id] = spawn(
            command,
            directory=self._layout.node(node_id),
            output=self._layout.console(node_id),
            owned=self._owned,
        )
        return self.identities[node_id]

    def wait_until_ready(self, state: ClusterState, deadline: Deadline) -> None:
        """Wait until each broker that was started serves clients and sees all of them registered and unfenced.

        Raises:
            PortTakenError: a node ended because one of its ports is occupied.
            ConfigError: a node ended. The message shows its last log lines.
            RetriableError: the deadline passed. The message shows the last log lines.
        """
        ports = {node_id: state.nodes[node_id].ports.client for node_id in self.identities}
        late = wait_until_ready(ports, state.cluster_id, check_alive=self._check_alive, deadline=deadline)
        if late is not None:
            raise RetriableError(f"broker {late} was not ready in time. {self._last_lines(late)}")

    def end(self) -> None:
        """Kill what was started."""
        end(self.identities.values(), grace_s=0)
        for guard in self.guards.values():
            guard.join()

    def _last_lines(self, node_id: int) -> str:
        return last_lines(self._layout.log(node_id), self._starts[node_id])

    def _check_alive(self, node_id: int) -> None:
        if not self.identities[node_id].alive:
            raise ended(f"broker {node_id}", self._last_lines(node_id))


def _since(path: Path, start: int) -> str:
    """What is in a file from byte ``start`` on; a file that has been rolled since is read whole."""
    try:
        with path.open("rb") as file:
            file.seek(start if path.stat().st_size >= start else 0)
            return file.read().decode(errors="replace")
    except OSError:
        return ""
