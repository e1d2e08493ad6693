"""Where the files of one local cluster are: absolute paths below the directory that LocalKafka, LocalSpark or LocalPostgres was given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


@dataclass(frozen=True)
class ClusterLayout:
    """What the directories of both kinds of cluster hold."""

    name: ClassVar[str]
    directory: Path

    @property
    def root(self) -> Path:
        return self.directory / self.name

    @property
    def state(self) -> Path:
        return self.root / "state.json"

    @property
    def lock(self) -> Path:
        return self.root / "lock"


class Layout(ClusterLayout):
    """The files of Kafka's nodes."""

    name = "kafka"

    def node(self, node_id: int) -> Path:
        return self.root / f"broker-{node_id}"

    def nodes(self) -> list[Path]:
        """The directories of all nodes that ever were."""
        return sorted(self.root.glob("broker-[0-9]*"))

    def data(self, node_id: int) -> Path:
        return self.node(node_id) / "data"

    def shut_down_cleanly(self, node_id: int) -> bool:
        """Whether Kafka wrote, at the broker's end, that its log needs no recovery."""
        return (self.data(node_id) / ".kafka_cleanshutdown").exists()

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


class PostgresLayout(ClusterLayout):
    """The files of a PostgreSQL server."""

    name = "postgres"

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def password(self) -> Path:
        return self.root / "password"

    @property
    def url(self) -> Path:
        """What ``sql.url_file`` takes; it holds the password."""
        return self.root / "url"

    @property
    def log(self) -> Path:
        return self.root / "server.log"


class SparkLayout(ClusterLayout):
    """The files of Spark's master and workers."""

    name = "spark"

    @property
    def run(self) -> Path:
        """What one start writes; cleared at the next, for each application leaves its files and logs there."""
        return self.root / "run"

    @property
    def master_log(self) -> Path:
        return self.run / "master.log"

    def worker(self, number: int) -> Path:
        """The directories of a worker's applications, with the logs of its executors."""
        return self.run / f"worker-{number}"

    def worker_log(self, number: int) -> Path:
        return self.run / f"worker-{number}.log"
