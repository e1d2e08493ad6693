"""A fault job under the operator's commands: `eos … JOB` with the job's module and settings filled in."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eos.group.metadata import OffsetMetadata
from eos.settings import Settings
from tests.support.command_line import Ended, Eos
from tests.support.jobs_for_faults import FaultJob, run_to_end, settings_for
from tests.support.observer import committed_offsets, unique

# Dynamic members: one that was stopped has left the group.
GROUP: Mapping[str, object] = {"ownership__mode": "group", "ownership__static_membership": False}
PARTITION: Mapping[str, object] = {
    "ownership__mode": "partition",
    "ownership__ordinal": 0,
    "ownership__instances": 1,
}
MODES = {"group": GROUP, "partition": PARTITION}

_MODULE = "from tests.support.jobs_for_faults import FaultJob\njob = FaultJob(**{given!r}).job()\n"


class Operated:
    """A job with its settings, and the commands about it."""

    def __init__(
        self, eos: Eos, directory: Path, bootstrap: str, job: FaultJob, changes: Mapping[str, object]
    ) -> None:
        self.job = job
        self.bootstrap = bootstrap
        self.changes = dict(changes)
        self._eos = eos
        self._module = unique("operated").replace("-", "_")
        (directory / f"{self._module}.py").write_text(_MODULE.format(given=asdict(job)))
        self._directory = directory

    @property
    def settings(self) -> Settings:
        return settings_for(self.bootstrap, **self.changes)

    def line(self, *words: str) -> list[str]:
        """A command line: the command's words up to JOB, and what follows it."""
        given = {"kafka.bootstrap_servers": self.bootstrap, "transaction.timeout_ms": 20_000} | {
            name.replace("__", "."): value for name, value in self.changes.items()
        }
        sets = [word for name, value in given.items() for word in ("--set", f"{name}={_text(value)}")]
        if "JOB" not in words:  # about no job
            return [*words, *sets]
        named = [f"{self._module}:job" if word == "JOB" else word for word in words]
        return [*named, "--app-dir", str(self._directory), *sets]

    def behind(self, servers: str) -> Operated:
        """The same job for commands that take these for the brokers."""
        other = copy.copy(self)
        other.bootstrap = servers
        return other

    def __call__(self, *words: str) -> Ended:
        """Run a command line, see `line`."""
        return self._eos(*self.line(*words))

    def told(self, *words: str) -> dict[str, Any]:
        """What a command prints as JSON; it has ended with 0."""
        ended = self(*words, "--json")
        assert ended.code == 0, ended.err
        told: dict[str, Any] = json.loads(ended.out)
        return told

    def run(self) -> None:
        """Run the job until it has caught up."""
        run_to_end(self.job, self.settings)

    def offsets(self, group: str = "") -> list[int | None]:
        """The committed offsets, by partition; as an observer sees them."""
        return [offset for offset, _ in self._stored(group)]

    def metadata(self, group: str = "") -> list[OffsetMetadata | None]:
        return [OffsetMetadata.parse(text) for _, text in self._stored(group)]

    def _stored(self, group: str) -> list[tuple[int | None, str]]:
        partitions = [(topic, number) for topic in self.job.inputs for number in range(2)]
        return list(committed_offsets(self.bootstrap, group or self.job.group, partitions).values())


def _text(value: object) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)
