"""LocalSpark: a standalone Spark cluster on this machine, and the accidents it can have."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from eos.errors import ConfigError, RetriableError, UsageError
from eos.local import spark_state as state_file
from eos.local.java import find_java
from eos.local.launch import PortTakenError
from eos.local.ports import HOST, free_port
from eos.local.process import Guard, Identity, end, identity_of, send
from eos.local.pyspark_home import require_pyspark
from eos.local.spark_launch import TOKEN, SparkLaunch, SparkLayout
from eos.local.spark_state import SparkState
from eos.local.tagged import Tagged, tagged
from eos.local.waiting import Deadline, locked

_START_TIMEOUT_S = 90.0  # 4 to 5 s for a master and two workers on two cores; a loaded machine needs more
_STOP_GRACE_S = 5.0  # a worker ends its executors first, in less than a second
_END_TIMEOUT_S = 15.0
_LOCK_TIMEOUT_S = _START_TIMEOUT_S + 30.0  # the process that holds the lock is starting or stopping
_PORT_ATTEMPTS = 3
_OWNER_GONE_TIMEOUT_S = 10.0  # its guards need some milliseconds
_MIN_MEMORY_MB = 512

_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class SparkProcess(NamedTuple):
    """The master or a worker as it is now. ``pid`` is None while it is down."""

    role: str
    pid: int | None
    log_path: Path


def _ignore(line: str) -> None:
    """The default listener for progress."""


class LocalSpark:
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

    def __init__(
        self,
        directory: Path | str,
        workers: int = 2,
        *,
        worker_memory_mb: int = 1024,
        owned: bool = True,
        progress: Callable[[str], None] = _ignore,
    ) -> None:
        if workers < 1:
            msg = f"workers = {workers}: a Spark cluster has at least 1"
            raise ConfigError(msg)
        if worker_memory_mb < _MIN_MEMORY_MB:
            msg = f"worker_memory_mb = {worker_memory_mb}: an executor needs {_MIN_MEMORY_MB} MiB at least"
            raise ConfigError(msg)
        self._layout = SparkLayout(Path(directory).absolute())
        self._wanted = workers
        self._memory_mb = worker_memory_mb
        self._owned = owned
        self._progress = progress
        self._guards: list[Guard] = []
        self._mutex = threading.RLock()

    def __repr__(self) -> str:
        return f"LocalSpark({str(self._layout.directory)!r}, {self._wanted} worker(s))"

    @classmethod
    def attach(cls, directory: Path | str, *, progress: Callable[[str], None] = _ignore) -> Self | None:
        """The cluster that runs in that directory, of this process or another; None if none does.

        Raises:
            ConfigError: the state file is not one of ours.
        """
        state = state_file.load(SparkLayout(Path(directory).absolute()).state)
        if state is None or not state.running:
            return None
        return cls(directory, state.wanted, owned=False, progress=progress)

    # -- the life of the cluster

    def start(self, timeout_s: float = _START_TIMEOUT_S) -> Self:
        """Start it, and wait until the master counts every worker. One that runs, whole, is left as it is.

        Raises:
            ConfigError: PySpark or Java is missing, or the machine or the directory does not allow it.
            RetriableError: it was not ready in time.
        """
        home = require_pyspark()
        find_java("Apache Spark")  # spark-class takes the same one, and says less if it is missing
        try:
            with self._mutex, self._locked("starting"):
                if not self._runs_already():
                    self._start_new(home, Deadline(timeout_s))
        except OSError as error:
            msg = f"cannot run Spark in {self._layout.root}: {error}. Fix: choose a writable directory."
            raise ConfigError(msg) from error
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

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- what it is

    @property
    def running(self) -> bool:
        """Whether the master or a worker is alive."""
        state = self._state()
        return state is not None and state.running

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
        master = SparkProcess("master", _pid(state.master), self._layout.master_log)
        workers = [*state.workers, *[None] * (state.wanted - len(state.workers))]
        return [
            master,
            *(
                SparkProcess(f"worker {number}", _pid(worker), self._layout.worker_log(number))
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
                self._kill([process.identity])
                return
        msg = f"process {pid} is no executor of {self!r}: those are {self.executors()}"
        raise UsageError(msg)

    def kill_worker(self, pid: int) -> None:
        """SIGKILL to a worker and then to its executors. It stays down; the master notices it soon.

        Raises:
            UsageError: that is no worker of this cluster.
        """
        state = self._started()
        worker = next((worker for worker in state.workers if worker.pid == pid and worker.alive), None)
        if worker is None:
            msg = f"process {pid} is no worker of {self!r}: those are {self.workers}"
            raise UsageError(msg)
        session = os.getsid(
            pid
        )  # each worker was started in a session of its own; read while it is sure to exist
        self._kill([worker])
        self._kill(process.identity for process in tagged(TOKEN, state.token) if _session(process) == session)

    # -- inside

    def _start_new(self, home: Path, deadline: Deadline) -> None:
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            port = free_port()
            state = SparkState(
                token=uuid.uuid4().hex,
                port=port,
                web_port=free_port({port}),
                wanted=self._wanted,
                owner=identity_of(os.getpid()) if self._owned else None,
            )
            try:
                self._bring_up(home, state, deadline)
            except PortTakenError:
                if attempt == _PORT_ATTEMPTS:
                    raise
            else:
                return

    def _bring_up(self, home: Path, state: SparkState, deadline: Deadline) -> None:
        self._progress(f"Starting a Spark master and {self._wanted} worker(s)")
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
            for number in range(1, self._wanted + 1):
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
        if state.running:
            where = f"a Spark cluster is running in {self._layout.root} ({state.master_url})"
            fix = "Fix: `eos local spark stop`"
            if state.owner is not None and not state.owner.alive:
                if not Deadline(_OWNER_GONE_TIMEOUT_S).wait_for(lambda: not state.running):
                    msg = f"{where}, but the process that owned it is gone. {fix}"
                    raise ConfigError(msg)
            elif state.owner != (identity_of(os.getpid()) if self._owned else None):
                msg = f"{where} and is not ours. {fix}, or choose another directory."
                raise ConfigError(msg)
            elif state.wanted != self._wanted:
                msg = f"{where} with {state.wanted} worker(s), not {self._wanted}. {fix}"
                raise ConfigError(msg)
            elif state.complete:
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
            msg = f"processes {left} of {self._layout.root} do not end"
            raise RetriableError(msg)

    def _kill_tagged(self, token: str) -> list[Tagged]:
        left = tagged(TOKEN, token)
        for process in left:
            send(process.identity, signal.SIGKILL)
        return left

    def _kill(self, identities: Iterable[Identity]) -> None:
        if survivors := end(identities, grace_s=0):
            msg = f"processes {[identity.pid for identity in survivors]} of {self._layout.root} do not end"
            raise RetriableError(msg)

    def _executors(self) -> list[Tagged]:
        return [process for process in tagged(TOKEN, self._started().token) if _EXECUTOR in process.command]

    def _state(self) -> SparkState | None:
        return state_file.load(self._layout.state)

    def _started(self) -> SparkState:
        if (state := self._state()) is None:
            msg = f"{self._layout.root} holds no Spark cluster yet: call start()"
            raise UsageError(msg)
        return state

    @contextmanager
    def _locked(self, purpose: str) -> Iterator[None]:
        self._layout.root.mkdir(parents=True, exist_ok=True)
        with locked(self._layout.lock, timeout_s=_LOCK_TIMEOUT_S, purpose=purpose):
            yield


def _pid(process: Identity | None) -> int | None:
    return process.pid if process is not None and process.alive else None


def _session(process: Tagged) -> int | None:
    try:
        return os.getsid(process.identity.pid)
    except ProcessLookupError:
        return None
