"""The state files of local clusters: what runs where, for this process and for others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from eos.errors import ConfigError
from eos.local.ports import HOST, NodePorts
from eos.local.process import Identity

StateT = TypeVar("StateT")


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
    """A Kafka cluster as it was last started.

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
    def size(self) -> int:
        return len(self.nodes)

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{HOST}:{node.ports.client}" for _, node in sorted(self.nodes.items()))

    def with_process(self, node_id: int, process: Identity) -> ClusterState:
        """The same state with a node's new process."""
        return replace(self, nodes=self.nodes | {node_id: replace(self.nodes[node_id], process=process)})


@dataclass(frozen=True, slots=True)
class SparkState:
    """A Spark cluster as it was last started.

    Args:
        token: the value that every process of this start carries in its environment.
        port: where drivers and workers reach the master.
        web_port: where the master shows its state.
        size: how many workers there should be.
        master: its process.
        workers: their processes.
        owner: the process whose end is the cluster's end; None for a cluster in the background.
    """

    token: str
    port: int
    web_port: int
    size: int
    master: Identity | None = None
    workers: tuple[Identity, ...] = ()
    owner: Identity | None = None

    @property
    def running(self) -> bool:
        """Whether the master or a worker is alive."""
        return any(process.alive for process in self.processes)

    @property
    def complete(self) -> bool:
        """Whether the master and every worker are alive."""
        return len(self.processes) == 1 + self.size and all(process.alive for process in self.processes)

    @property
    def processes(self) -> tuple[Identity, ...]:
        """The workers, and then the master."""
        return (*self.workers, *([self.master] if self.master else []))

    @property
    def master_url(self) -> str:
        return f"spark://{HOST}:{self.port}"

    def with_worker(self, worker: Identity) -> SparkState:
        """The same state with one worker more."""
        return replace(self, workers=(*self.workers, worker))


@dataclass(frozen=True, slots=True)
class PostgresState:
    """A PostgreSQL server as it was last started.

    Args:
        port: where it listens.
        process: its first process, the parent of all others.
        owner: the process whose end is the server's end; None for one in the background.
    """

    port: int
    process: Identity | None = None
    owner: Identity | None = None
    size: int = 1

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.alive


def save(path: Path, state: ClusterState | PostgresState | SparkState) -> None:
    """Write the state in one step: readers see the old or the new one."""
    partial = path.with_name(f".{path.name}.tmp")
    partial.write_bytes(TypeAdapter(type(state)).dump_json(state, indent=2))
    partial.replace(path)


def load(path: Path, kind: type[StateT]) -> StateT | None:
    """The state in the file, or None if there is no file.

    Raises:
        ConfigError: the file is not one of ours.
    """
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise ConfigError(
            f"{path} is not a state file of a local cluster ({where or 'file'}: {problem['msg']}). "
            "Fix: end its processes by hand and delete it."
        ) from error
