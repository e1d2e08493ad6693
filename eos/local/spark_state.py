"""The state file of a local Spark cluster: what runs where, for this process and for others."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from eos.errors import ConfigError
from eos.local.ports import HOST
from eos.local.process import Identity


@dataclass(frozen=True, slots=True)
class SparkState:
    """A cluster as it was last started.

    Args:
        token: the word that every process of this start carries in its environment.
        port: where drivers and workers reach the master.
        web_port: where the master shows its state.
        master: its process.
        workers: their processes.
        wanted: how many workers there should be.
        owner: the process whose end is the cluster's end; None for a cluster in the background.
    """

    token: str
    port: int
    web_port: int
    wanted: int
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
        return len(self.processes) == 1 + self.wanted and all(process.alive for process in self.processes)

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


def save(path: Path, state: SparkState) -> None:
    """Write the state in one step: readers see the old or the new one."""
    partial = path.with_name(f".{path.name}.tmp")
    partial.write_text(json.dumps(asdict(state), indent=2) + "\n")
    partial.replace(path)


def load(path: Path) -> SparkState | None:
    """The state in the file, or None if there is no file.

    Raises:
        ConfigError: the file is not one of ours.
    """
    try:
        data = json.loads(path.read_text())
        return SparkState(
            token=str(data["token"]),
            port=int(data["port"]),
            web_port=int(data["web_port"]),
            wanted=int(data["wanted"]),
            master=_identity(data["master"]),
            workers=tuple(Identity(int(pid), float(started)) for pid, started in data["workers"]),
            owner=_identity(data["owner"]),
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError) as error:
        msg = f"{path} is not a state file of local Spark ({error!r}). Fix: end its processes by hand and delete it."
        raise ConfigError(msg) from error


def _identity(fields: list[object] | None) -> Identity | None:
    if fields is None:
        return None
    pid, started = fields
    return Identity(int(str(pid)), float(str(started)))
