"""Spark's processes: one `eos spark run`, and what it starts: the driver's Java machine, executors, the tasks' Python."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from eos.base.deadline import Deadline
from eos.exits import ExitCode
from eos.local.process import Identity, connects_from, parents
from eos.local.tagged import Tagged, tagged
from eos.prove.instance import Instance, Worker

_TOKEN = "PROVED_INSTANCE"  # noqa: S105 - the name of a variable: processes inherit it, from any parent
_DRIVER, _JAVA, _EXECUTOR, _TASK = "driver", "driver's Java machine", "executor", "task"
_KINDS = {
    "org.apache.spark.executor.CoarseGrainedExecutorBackend": _EXECUTOR,
    "org.apache.spark.deploy.SparkSubmit": _JAVA,
    "pyspark.daemon": _TASK,
}
# What these say a restart does not help; a supervisor would start it again all the same, and a person would look.
_FOR_GOOD = frozenset({ExitCode.DONE, ExitCode.CONFIGURATION, ExitCode.POISON, ExitCode.OFFSET_GAP})
_END_S = 20.0


class SparkInstance(Instance):
    """One start of `eos spark run`. Its processes are known by a variable that they inherit."""

    def __init__(
        self, command: Sequence[str], ordinal: int, log: Path, environment: Mapping[str, str | None]
    ) -> None:
        self._token = uuid.uuid4().hex
        super().__init__(command, ordinal, log, {**environment, _TOKEN: self._token})

    @property
    def workers(self) -> list[Worker]:
        """Each process that works, tasks first: who is behind a connection is found before what has started it."""
        found = self._processes()
        roles = {one.identity.pid: _role(one) for one in found}
        workers = [
            Worker(self.ordinal, one.identity, role=role)
            for one in found
            if (role := roles[one.identity.pid]) and _is_itself(one.identity, role, roles)
        ]
        if self.whole.alive:
            workers.append(Worker(self.ordinal, self.whole.identity, role=_DRIVER))
        order = [_TASK, _EXECUTOR, _JAVA, _DRIVER]
        return sorted(workers, key=lambda one: order.index(one.role))

    def behind(self, port: int) -> Worker | None:
        """Whose connection comes from this port."""
        return next(
            (one for one in self.workers if connects_from(one.identity, port, with_children=False)), None
        )

    @classmethod
    def chosen(cls, workers: Sequence[Worker], share: float, near: Worker | None = None) -> Worker | None:
        """A process by chance: a task, an executor, or the driver as Python or Java, each as often as the others.

        Args:
            workers: of one instance.
            share: from 0 to 1.
            near: a process whose executor is meant, or itself.
        """
        by_role = [
            [one for one in workers if one.role == _TASK],
            [one for one in workers if one.role == _EXECUTOR],
            [one for one in workers if one.role in (_DRIVER, _JAVA)],
        ]
        groups = [group for group in by_role if group]
        if not groups:
            return None
        number, rest = divmod(share * len(groups), 1)
        group = groups[int(number)]
        if near is not None and near in group:
            return near
        if near is not None and group[0].role == _EXECUTOR:
            group = [one for one in group if one.identity.pid in parents(near.identity)] or group
        return group[int(rest * len(group))]

    def goes_on_after(self, code: int) -> bool:
        """Whether it is started again: a driver that was killed, or found its executors or its cluster gone."""
        return code not in _FOR_GOOD

    def ask_to_end(self) -> None:
        """SIGTERM to the driver, which stops its Spark."""
        if self.code is None:
            self._process.terminate()

    def kill(self) -> None:
        """SIGKILL to every process, also of drivers that were killed before."""
        super().kill()
        Deadline(_END_S).wait_for(lambda: not self._killed())

    def _killed(self) -> list[Tagged]:
        left = self._processes()
        for one in left:
            try:
                os.kill(one.identity.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return left

    def _processes(self) -> list[Tagged]:
        return tagged(_TOKEN, self._token)


def _role(process: Tagged) -> str:
    return next((role for word, role in _KINDS.items() if word in process.command), "")


def _is_itself(identity: Identity, role: str, roles: Mapping[int, str]) -> bool:
    """A Java machine that is no copy of its parent, which becomes what it was forked for; a Python that the daemon forked."""
    above = parents(identity)
    return bool(above) and (roles.get(above[0], "") == role) == (role == _TASK)
