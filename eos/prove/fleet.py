"""Fleet: the job's processes under test, as an operator would start them, and started again when they ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eos.deadline import Deadline
from eos.exits import ExitCode
from eos.local.process import Identity, connects_from, identity_of, pause, send

# After these an operator's supervisor (a StatefulSet, say) starts `eos run` again, and so does the fleet.
RESTARTED = frozenset({ExitCode.FENCED, ExitCode.UNAVAILABLE})
DIRECTORY = "PROVE_DIRECTORY"  # the variable by which the job's processes know that they are tried, and where
_END_S = 10.0
_MAX_RESTARTS = 50  # in a row
_STABLE_S = 5.0  # an instance that ran this long starts its count of restarts anew
_POLL_S = 0.05
_PAUSE_S = 0.5  # before an instance is started again that has just been started


@dataclass(frozen=True, slots=True)
class Worker:
    """A process that does the job's work.

    Attributes:
        ordinal: its own.
        identity: the process.
        with_group: whether it leads a group of its own, which then gets each signal: what it has started belongs to it.
    """

    ordinal: int
    identity: Identity
    with_group: bool = False

    @property
    def alive(self) -> bool:
        """Whether that very process runs, or stands still."""
        return self.identity.alive

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; False if it has ended."""
        return send(self.identity, number, to_group=self.with_group)

    def pause(self) -> bool:
        """SIGSTOP, and wait until it stands still; False if it has ended."""
        return (not self.with_group or self.send(signal.SIGSTOP)) and pause(self.identity)

    def __str__(self) -> str:
        return f"process {self.identity.pid}, ordinal {self.ordinal}"


class Instance:
    """One start of the command: a parent with its workers (`eos run`), or a program that is its own worker.

    What it writes goes straight to a file, so that what a process was told before kill -9 is not lost with it.
    """

    def __init__(
        self,
        command: Sequence[str],
        ordinal: int,
        log: Path,
        environment: Mapping[str, str],
        *,
        has_workers: bool = True,
    ) -> None:
        self.ordinal = ordinal
        self.log = log
        self.restarts = 0
        self._has_workers = has_workers
        self._command = list(command)
        self._environment = {**os.environ, **environment, "EOS_ORDINAL": str(ordinal)}
        # What one of this ordinal that was there before has written proves nothing of this one.
        self._read_to = log.stat().st_size if log.exists() else 0
        self._workers: dict[int, Identity] = {}
        self._reading = threading.Lock()  # the proxies' threads ask for workers too
        self.entries: list[dict[str, Any]] = []
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        self._age = Deadline(_STABLE_S)
        with self.log.open("ab") as file:
            # A session of its own: Ctrl-C in the terminal is for the proof, which ends what it has started.
            process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._leader = identity_of(process.pid) or Identity(process.pid, 0.0)
        return process

    @property
    def code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.poll()

    def start_again(self) -> bool:
        """After it has ended; not at once if it was started just now. False: it has ended too often in a row."""
        if self._age.passed:
            self.restarts = 0
        elif _STABLE_S - self._age.left_s < _PAUSE_S:
            return True
        self.restarts += 1
        if self.restarts > _MAX_RESTARTS:
            return False
        self._process = self._started()
        return True

    def read(self) -> list[dict[str, Any]]:
        """Every entry of its log so far."""
        with self._reading:
            with self.log.open("rb") as file:
                file.seek(self._read_to)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._read_to += len(whole)
            for line in whole.splitlines():
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue
                if isinstance(entry, dict):
                    self.entries.append(entry)
                    if entry.get("event") == "started" and "ordinal" in entry:
                        worker = identity_of(int(entry["pid"]))
                        if worker is not None:
                            self._workers[int(entry["ordinal"])] = worker
            return self.entries

    @property
    def whole(self) -> Worker:
        """All of it, as one: parent and workers."""
        return Worker(self.ordinal, self._leader, with_group=True)

    @property
    def workers(self) -> list[Worker]:
        """Each worker that runs, or stands still."""
        if not self._has_workers:
            return [self.whole] if self.whole.alive else []
        self.read()
        found = [Worker(ordinal, one) for ordinal, one in list(self._workers.items())]
        return [one for one in found if one.alive]

    def ask_to_end(self) -> None:
        """SIGTERM."""
        if self.code is None:
            if self._has_workers:
                self._process.terminate()
            else:  # a shell does not pass it on
                self.whole.send(signal.SIGTERM)

    def wait(self, timeout_s: float) -> int | None:
        """Its exit code; None if it still runs."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """SIGKILL to all of it, stopped processes too."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        finally:
            self._process.wait(_END_S)


class Fleet:
    """Every instance of the job.

    Args:
        command: of one instance.
        directory: where the logs go.
        environment: variables of every instance, beside EOS_ORDINAL and the one of `DIRECTORY`.
        has_workers: whether an instance is an `eos run`, which has worker processes and exit codes that say what to do.
            Else it is any program, and whatever ends it but exit code 0 has it started again.
    """

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        environment: Mapping[str, str] | None = None,
        *,
        has_workers: bool = True,
    ) -> None:
        self._command = command
        self._directory = directory
        self._environment = {**(environment or {}), DIRECTORY: str(directory)}
        self.has_workers = has_workers
        self.instances: list[Instance] = []
        self._leaving: list[Instance] = []
        self.ended_for_good: list[str] = []  # instances that no restart helps, in words

    def start(self, ordinal: int) -> Instance:
        """Start one more instance. One of that ordinal may have been there before: its log goes on."""
        others = sum(1 for one in (*self.instances, *self._leaving) if one.ordinal == ordinal)
        name = f"instance-{ordinal}.{others}.log" if others else f"instance-{ordinal}.log"
        instance = Instance(
            self._command,
            ordinal,
            self._directory / name,
            self._environment,
            has_workers=self.has_workers,
        )
        self.instances.append(instance)
        return instance

    def keep_up(self) -> None:
        """Start again what has ended and would be started again; any other end is for good."""
        for instance in list(self.instances):
            code = instance.code
            if code is None:
                continue
            again = code in RESTARTED if self.has_workers else code != 0
            if not (again and instance.start_again()):
                self.instances.remove(instance)
                self.ended_for_good.append(
                    f"instance {instance.ordinal} ended with exit code {code} (its log: {instance.log})"
                )

    def wait(self, seconds: float, condition: Callable[[], bool] = lambda: False) -> bool:
        """Wait for something, or only wait; what ends meanwhile is started again."""
        deadline = Deadline(seconds)
        while not (holds := condition()) and not deadline.passed:
            self.keep_up()
            time.sleep(min(_POLL_S, deadline.left_s))
        return holds

    def leave(self, instance: Instance) -> None:
        """It is not started again from now on; its processes run until they end, or `forget`."""
        if instance in self.instances:
            self.instances.remove(instance)
        if instance not in self._leaving:
            self._leaving.append(instance)

    def forget(self, instance: Instance) -> None:
        """It has left; what is left of it is killed. Its log stays."""
        self.leave(instance)
        instance.kill()
        self._leaving.remove(instance)

    def workers(self) -> list[Worker]:
        """Each worker that runs, or stands still, by ordinal; not those of instances that leave."""
        found = [worker for one in self.instances for worker in one.workers]
        return sorted(found, key=lambda worker: worker.ordinal)

    def behind(self, port: int) -> tuple[Instance, Worker] | None:
        """Whose connection comes from this port; not the parent of an `eos run`, nor one of an instance that leaves."""
        for instance in list(self.instances):
            for worker in instance.workers:
                if connects_from(worker.identity, port):
                    return instance, worker
        return None

    def end(self, grace_s: float) -> list[int]:
        """Ask all to end in order, and wait; what does not is killed. Returns the exit codes."""
        for one in self.instances:
            one.ask_to_end()
        deadline = Deadline(grace_s)
        codes = []
        for one in self.instances:
            code = one.wait(deadline.left_s)
            if code is None:
                one.kill()
                code = -int(signal.SIGKILL)
            codes.append(code)
        self.kill()
        return codes

    def kill(self) -> None:
        """SIGKILL to all, also to what an ended instance has left behind."""
        for one in (*self.instances, *self._leaving):
            one.kill()
        self.instances.clear()
        self._leaving.clear()


def command_of(reference: str, options: Sequence[str], app_dir: Path) -> list[str]:
    """The command line of one `eos run`."""
    return [sys.executable, "-m", "eos.cli", "run", reference, *options, "--app-dir", str(app_dir)]
