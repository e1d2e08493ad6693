"""Where the files of one local cluster are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths below the directory of a cluster.

    Args:
        directory: absolute; what LocalKafka was given.
    """

    directory: Path

    @property
    def root(self) -> Path:
        return self.directory / "kafka"

    @property
    def state(self) -> Path:
        return self.root / "state.json"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    def node(self, node_id: int) -> Path:
        return self.root / f"broker-{node_id}"

    def nodes(self) -> list[Path]:
        """The directories of all nodes that ever were."""
        return sorted(self.root.glob("broker-[0-9]*"))

    def data(self, node_id: int) -> Path:
        return self.node(node_id) / "data"

    def properties(self, node_id: int) -> Path:
        return self.node(node_id) / "server.properties"

    def log4j(self, node_id: int) -> Path:
        return self.node(node_id) / "log4j2.properties"

    def log(self, node_id: int) -> Path:
        """What the broker logs."""
        return self.node(node_id) / "server.log"

    def console(self, node_id: int) -> Path:
        """What the Java machine itself prints."""
        return self.node(node_id) / "console.log"
