"""Spark's processes: one `eos spark run`, and what it starts: the driver's Java machine, executors, the tasks' Python."""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from eos.deadline import Deadline
from eos.exits import ExitCode
from eos.local import QUICK_START
from eos.local.ports import HOST
from eos.local.process import Identity, connects_from, parents
from eos.local.pyspark_home import require_pyspark
from eos.local.tagged import Tagged, tagged
from eos.prove.instance import Instance, Worker
from eos.prove.trial import OnSpark, Trial

_TOKEN = "PROVED_INSTANCE"  # noqa: S105 - the name of a variable: processes inherit it, from any parent
_DRIVER, _JAVA, _EXECUTOR, _TASK = "driver", "driver's Java machine", "executor", "task"
_KINDS = {
    "org.apache.spark.executor.CoarseGrainedExecutorBackend": _EXECUTOR,
    "org.apache.spark.deploy.SparkSubmit": _JAVA,
    "pyspark.daemon": _TASK,
}
# What these say a restart does not help; a supervisor would start it again all the same, and a person would look.
_FOR_GOOD = frozenset({ExitCode.DONE, ExitCode.CONFIGURATION, ExitCode.POISON, ExitCode.OFFSET_GAP})
SPARK_ENDS = (
    0,
    128 + signal.SIGTERM,
    -signal.SIGTERM,
)  # after SIGTERM: in order, or before there was a session
_EVERY_S = "0.5"
_END_S = 20.0
_PYTHON_PATH = "PYTHONPATH"
# Sockets of IPv4, by which a connection's process is found.
_JAVA_OPTIONS = (*QUICK_START, "-Djava.net.preferIPv4Stack=true")


class SparkInstance(Instance):
    """One start of `eos spark run`. Its processes are known by a variable that they inherit."""

    on_spark = True

    def __init__(
        self,
        command: Sequence[str],
        ordinal: int,
        log: Path,
        environment: Mapping[str, str | None],
        *,
        has_workers: bool = False,
    ) -> None:
        self._token = uuid.uuid4().hex
        super().__init__(command, ordinal, log, {**environment, _TOKEN: self._token}, has_workers=has_workers)

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

    def chosen(self, share: float, near: Worker | None = None) -> Worker | None:
        """A process by chance: a task, an executor, or the driver as Python or Java, each as often as the others.

        Args:
            share: from 0 to 1.
            near: a process whose executor is meant, or itself.
        """
        workers = self.workers
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


def spark_command(trial: Trial, spark: OnSpark, options: Sequence[str]) -> list[str]:
    """The command line of one `eos spark run`, which goes on until it is stopped."""
    given = {
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.ui.enabled": "false",
        "spark.executor.defaultJavaOptions": " ".join(_JAVA_OPTIONS),
        # On the classpaths, for Spark copies what spark.jars names for each start of a driver and an executor.
        "spark.jars": "",
        "spark.driver.extraClassPath": ":".join(map(str, spark.jars)),
        "spark.executor.extraClassPath": ":".join(map(str, spark.jars)),
        **dict(one.split("=", 1) for one in spark.conf),
    }
    again = ["--every", _EVERY_S]
    if spark.kind == "stream":
        again = ["--checkpoint", str(trial.directory.absolute() / "checkpoint")]
    return [
        *(sys.executable, "-m", "eos.cli", "spark", "run", trial.reference, *options),
        *("--app-dir", str(trial.app_dir), "--master", spark.master, *again),
        *(word for name, value in given.items() for word in ("--conf", f"{name}={value}")),
    ]


def spark_environment(trial: Trial) -> dict[str, str]:
    """Of the driver; what it starts inherits it."""
    paths = [str(trial.app_dir), *filter(None, [os.environ.get(_PYTHON_PATH)])]
    scratch = trial.directory.absolute() / "spark"
    return {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(_home(scratch)),
        "SPARK_LOCAL_DIRS": str(scratch),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_SUBMIT_OPTS": " ".join(_JAVA_OPTIONS),
        _PYTHON_PATH: os.pathsep.join(paths),  # tasks import the job's module
    }


def _home(directory: Path) -> Path:
    """A SPARK_HOME in the trial's directory: the executors of local-cluster write beneath it."""
    home = directory / "home"
    home.mkdir(parents=True)
    for one in require_pyspark().iterdir():
        (home / one.name).symlink_to(one)
    return home
