"""The state file of a local cluster: what runs where, for this process and for others."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from eos.errors import ConfigError
from eos.local.ports import HOST, NodePorts
from eos.local.process import Identity


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node: its ports, and its process (which may have ended since)."""

    ports: NodePorts
    process: Identity | None = None

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.alive


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A cluster as it was last started.

    Args:
        cluster_id: Kafka's id of the cluster.
        java: the java executable.
        libs: the directory of the jars.
        jvm_options: the options of each broker's Java machine.
        nodes: by node id.
        owner: the process whose end is the cluster's end; None for a cluster in the background.
    """

    cluster_id: str
    java: str
    libs: Path
    jvm_options: tuple[str, ...]
    nodes: dict[int, NodeState]
    owner: Identity | None = None

    @property
    def running(self) -> list[int]:
        """The ids of the nodes whose processes are alive."""
        return [node_id for node_id, node in sorted(self.nodes.items()) if node.alive]

    @property
    def lost(self) -> dict[int, int]:
        """The last process ids of the nodes that ended without being stopped, by node id."""
        nodes = sorted(self.nodes.items())
        return {node_id: node.process.pid for node_id, node in nodes if node.process and not node.alive}

    def stopped(self) -> ClusterState:
        """The same state without processes."""
        nodes = {node_id: NodeState(node.ports) for node_id, node in self.nodes.items()}
        return replace(self, nodes=nodes, owner=None)

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{HOST}:{node.ports.client}" for _, node in sorted(self.nodes.items()))

    def with_process(self, node_id: int, process: Identity) -> ClusterState:
        """The same state with a node's new process."""
        return replace(self, nodes=self.nodes | {node_id: replace(self.nodes[node_id], process=process)})


def save(path: Path, state: ClusterState) -> None:
    """Write the state in one step: readers see the old or the new one."""
    data = {**asdict(state), "libs": str(state.libs)}
    partial = path.with_name(f".{path.name}.tmp")
    partial.write_text(json.dumps(data, indent=2) + "\n")
    partial.replace(path)


def load(path: Path) -> ClusterState | None:
    """The state in the file, or None if there is no file.

    Raises:
        ConfigError: the file is not one of ours.
    """
    try:
        data = json.loads(path.read_text())
        return ClusterState(
            cluster_id=data["cluster_id"],
            java=data["java"],
            libs=Path(data["libs"]),
            jvm_options=tuple(data["jvm_options"]),
            nodes={
                int(node_id): NodeState(NodePorts(**node["ports"]), _identity(node["process"]))
                for node_id, node in data["nodes"].items()
            },
            owner=_identity(data["owner"]),
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        msg = f"{path} is not a state file of local Kafka ({error!r}). Fix: end its brokers by hand and delete it."
        raise ConfigError(msg) from error


def _identity(fields: list[object] | None) -> Identity | None:
    if fields is None:
        return None
    pid, started = fields
    return Identity(int(str(pid)), float(str(started)))
