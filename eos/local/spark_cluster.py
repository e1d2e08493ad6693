"""LocalSpark: a standalone Spark cluster on this machine, and the accidents it can have."""

from __future__ import annotations

import os
import shutil
import signal
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Self

from eos.base.deadline import Deadline
from eos.base.listing import counted
from eos.errors import ConfigError, RetriableError, UsageError
from eos.local import state as state_file
from eos.local.java import find_java
from eos.local.launch import PortTakenError
from eos.local.layout import SparkLayout
from eos.local.local_cluster import START_TIMEOUT_S, LocalCluster, ignore
from eos.local.ports import HOST, free_port
from eos.local.process import Guard, end, live_pid, send
from eos.local.pyspark_home import require_pyspark
from eos.local.spark_launch import TOKEN, SparkLaunch
from eos.local.state import SparkState
from eos.local.tagged import Tagged, tagged

_STOP_GRACE_S = 5.0  # a worker ends its executors first, in less than a second
_END_TIMEOUT_S = 15.0
_PORT_ATTEMPTS = 3
_MIN_MEMORY_MB = 512

_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class SparkProcess(NamedTuple):
    """The master or a worker as it is now. ``pid`` is None while it is down."""

    role: str
    pid: int | None
    log_path: Path


class LocalSpark(LocalCluster[SparkState, SparkLayout]):
    """A master and workers of one core each, on loopback, from the installed PySpark.

    Logs, the files of applications and the state file are in ``directory/spark``; what applications left there
    is deleted at the next start. One directory holds one cluster.

    Args:
        directory: where the cluster keeps its files.
        workers: at least 1.
        worker_memory_mb: MiB that a worker has for executors; each application takes ``spark.executor.memory``
            of it (Spark's default is 1024).
        owned: whether every process is killed when this process ends, however it ends, or drops this object
            without stop(). If not, they stay.
        progress: called with one line before each long step.
    """

    title, _part = "Spark", "worker"
    start_command, _stop_command = "eos local spark start", "eos local spark stop"

    def __init__(
        self,
        directory: Path | str,
        workers: int = 2,
        *,
        worker_memory_mb: int = 1024,
        owned: bool = True,
        progress: Callable[[str], None] = ignore,
    ) -> None:
        if workers < 1:
            raise ConfigError(f"workers = {workers}: a Spark cluster has at least 1")
        if worker_memory_mb < _MIN_MEMORY_MB:
            raise ConfigError(
                f"worker_memory_mb = {worker_memory_mb}: an executor needs {_MIN_MEMORY_MB} MiB at least"
            )
        layout = SparkLayout(Path(directory).absolute())
        super().__init__(layout, SparkState, workers, owned=owned, progress=progress)
        self._memory_mb = worker_memory_mb
        self._guards: list[Guard] = []

    @classmethod
    def attach(cls, directory: Path | str, *, progress: Callable[[str], None] = ignore) -> Self | None:
        """The cluster that runs in that directory, of this process or another; None if none does.

        Raises:
            ConfigError: the state file is not one of ours.
        """
        state = state_file.load(SparkLayout(Path(directory).absolute()).state, SparkState)
        if state is None or not state.running:
            return None
        return cls(directory, state.size, owned=False, progress=progress)

    # -- the life of the cluster

    def start(self, timeout_s: float = START_TIMEOUT_S) -> Self:
        """Start it, and wait until the master counts every worker. One that runs, whole, is left as it is.

        Raises:
            ConfigError: PySpark or Java is missing, or the machine or the directory does not allow it.
            RetriableError: it was not ready in time.
        """
        home = require_pyspark()
        find_java("Apache Spark")  # spark-class takes the same one, and says less if it is missing
        with self._locked("starting"):
            if not self._runs_already():
                self._start_new(home, Deadline(timeout_s))
        return self

    def stop(self, grace_s: float = _STOP_GRACE_S) -> None:
        """End every process, also those that another one has started: SIGTERM, and SIGKILL after ``grace_s`` (0: at once).

        Executors and their Python processes end with it, also paused ones and those of a worker that was
        killed. A driver is not ours: it finds its cluster gone.

        Raises:
            RetriableError: a process survived even SIGKILL, or another process is starting the cluster.
        """
        with self._mutex:
            if self._state() is None:
                return
            with self._locked("stopping"):
                self._end_all(self._state(), grace_s)

    # -- what it is

    @property
    def master_url(self) -> str:
        """What ``spark-submit --master`` takes."""
        return self._started().master_url

    @property
    def web_url(self) -> str:
        """The master's page: its workers and applications."""
        return f"http://{HOST}:{self._started().web_port}"

    @property
    def processes(self) -> Sequence[SparkProcess]:
        """The master and every worker; empty if the cluster was never started."""
        state = self._state()
        if state is None:
            return []
        workers = [*state.workers, *[None] * (state.size - len(state.workers))]
        return [
            SparkProcess("master", live_pid(state.master), self._layout.master_log),
            *(
                SparkProcess(f"worker {number}", live_pid(worker), self._layout.worker_log(number))
                for number, worker in enumerate(workers, 1)
            ),
        ]

    @property
    def workers(self) -> list[int]:
        """The process ids of the workers that are alive."""
        return [worker.pid for worker in self._started().workers if worker.alive]

    def executors(self) -> list[int]:
        """The process ids of the executors that are alive now, of all applications."""
        return sorted(process.identity.pid for process in self._executors())

    # -- accidents

    def kill_executor(self, pid: int) -> None:
        """SIGKILL. Its Python processes end by themselves, and the master starts another executor.

        Raises:
            UsageError: that is no executor of this cluster.
        """
        for process in self._executors():
            if process.identity.pid == pid:
                self._end_processes([process.identity], grace_s=0)
                return
        raise UsageError(f"process {pid} is no executor of {self!r}: those are {self.executors()}")

    def kill_worker(self, pid: int) -> None:
        """SIGKILL to a worker and then to its executors. It stays down; the master notices it soon.

        Raises:
            UsageError: that is no worker of this cluster.
        """
        state = self._started()
        worker = next((worker for worker in state.workers if worker.pid == pid and worker.alive), None)
        if worker is None:
            raise UsageError(f"process {pid} is no worker of {self!r}: those are {self.workers}")
        # Each worker was started in a session of its own; asked while it is sure to exist.
        session = os.getsid(pid)
        self._end_processes([worker], grace_s=0)
        theirs = [process.identity for process in tagged(TOKEN, state.token) if _session(process) == session]
        self._end_processes(theirs, grace_s=0)

    # -- inside

    def _start_new(self, home: Path, deadline: Deadline) -> None:
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            port = free_port()
            state = SparkState(
                token=uuid.uuid4().hex,
                port=port,
                web_port=free_port({port}),
                size=self._size,
                owner=self._owner,
            )
            try:
                self._bring_up(home, state, deadline)
            except PortTakenError:
                if attempt == _PORT_ATTEMPTS:
                    raise
            else:
                return

    def _bring_up(self, home: Path, state: SparkState, deadline: Deadline) -> None:
        self._progress(f"Starting a Spark master and {counted(self._size, 'worker')}")
        if self._layout.run.exists():
            shutil.rmtree(self._layout.run)
        self._layout.run.mkdir()
        launch = SparkLaunch(self._layout, home, state, owned=self._owned)
        self._guards = launch.guards
        try:
            master = launch.start_master()
            state = replace(state, master=master)
            state_file.save(self._layout.state, state)
            launch.wait_for_master(master, deadline)
            for number in range(1, self._size + 1):
                state = state.with_worker(launch.start_worker(number, self._memory_mb))
                state_file.save(self._layout.state, state)
            launch.wait_for_workers(dict(enumerate(state.workers, 1)), deadline)
        except BaseException:  # Ctrl-C too: nothing half-started stays
            self._end_all(state, grace_s=0)
            raise

    def _runs_already(self) -> bool:
        """Whether what the last start in this directory left is the whole cluster, and ours.

        What is left of one that lost a process is ended: it has no data of its own.
        """
        state = self._state()
        if state is None:
            return False
        if state.running and self._check_ours(state, state.master_url) and state.complete:
            return True
        self._end_all(state, grace_s=0)
        return False

    def _end_all(self, state: SparkState | None, grace_s: float) -> None:
        if state is None:
            return
        end(state.processes, grace_s=grace_s)
        # With the workers gone, nothing starts an executor any more; only an executor that is on its way may
        # still start a Python process. So this comes to an end.
        gone = Deadline(_END_TIMEOUT_S).wait_for(lambda: not self._kill_tagged(state.token))
        for guard in self._guards:
            guard.join()
        self._guards = []
        if not gone:
            left = [process.identity.pid for process in tagged(TOKEN, state.token)]
            raise RetriableError(f"processes {left} of {self._layout.root} do not end")

    def _kill_tagged(self, token: str) -> list[Tagged]:
        left = tagged(TOKEN, token)
        for process in left:
            send(process.identity, signal.SIGKILL)
        return left

    def _executors(self) -> list[Tagged]:
        return [process for process in tagged(TOKEN, self._started().token) if _EXECUTOR in process.command]


def _session(process: Tagged) -> int | None:
    try:
        return os.getsid(process.identity.pid)
    except ProcessLookupError:
        return None
