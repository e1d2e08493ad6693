"""Results: a line of JSON for each cell that was run, the last one of a cell being what counts."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psutil
from confluent_kafka import libversion

from eos.local.versions import KAFKA_VERSION
from tests.proof.row import Outcome

_GIB = 2**30
_GIT_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Result:
    """A cell that was run.

    Attributes:
        row: the row's id.
        cell: its name.
        ended: when.
        seconds: how long it took, with its cluster's start.
        made_with: versions, commit and machine.
        outcome: what became of it.
    """

    row: str
    cell: str
    ended: str
    seconds: float
    made_with: Mapping[str, str]
    outcome: Outcome


class Results:
    """A file of results.

    Args:
        path: it; need not be there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._by_cell: dict[tuple[str, str], Result] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                found = json.loads(line)
            except ValueError:  # the run was killed while it wrote it
                continue
            one = Result(**{**found, "outcome": Outcome(**found["outcome"])})
            self._by_cell[one.row, one.cell] = one

    def of(self, row: str, cell: str) -> Result | None:
        """The result of a cell; None if it was never run."""
        return self._by_cell.get((row, cell))

    def is_done(self, row: str, cell: str) -> bool:
        """Whether it was run, and not skipped."""
        one = self.of(row, cell)
        return one is not None and not one.outcome.skipped

    def add(self, result: Result) -> None:
        """Write one more."""
        self._by_cell[result.row, result.cell] = result
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file:
            torn = False
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                torn = file.read() != b"\n"
            file.write(b"\n" * torn + json.dumps(asdict(result)).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def now() -> str:
    """The time, for a result."""
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"


def made_with(repository: Path) -> dict[str, str]:
    """The versions, the commit and the machine, in plain words."""
    memory = round(psutil.virtual_memory().total / _GIB)
    return {
        "eos": version("eos-kafka"),
        "commit": _commit(repository),
        "Apache Kafka": KAFKA_VERSION,
        "librdkafka": libversion()[0],
        "confluent-kafka": version("confluent-kafka"),
        "Python": platform.python_version(),
        "machine": f"{platform.system()} on {platform.machine()}, {os.cpu_count()} processors, {memory} GB of memory",
    }


def _commit(repository: Path) -> str:
    """With a "+" if `eos` has been changed since."""
    try:
        commit = _git(repository, "rev-parse", "--short=10", "HEAD")
        return commit + "+" * bool(_git(repository, "status", "--porcelain", "--", "eos"))
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(repository: Path, *arguments: str) -> str:
    command = ["git", "-C", str(repository), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_S, check=True)
    return done.stdout.strip()
