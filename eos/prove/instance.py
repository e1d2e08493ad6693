"""Instance: one start of the job's command, its processes, and what it writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eos.base.deadline import Deadline
from eos.exits import ExitCode
from eos.local.process import Identity, connects_from, identity_of, pause, send

# After these an operator's supervisor (a StatefulSet, say) starts `eos run` again, and so does the fleet.
RESTARTED = frozenset({ExitCode.FENCED, ExitCode.UNAVAILABLE})
_END_S = 10.0
_MAX_RESTARTS = 50  # in a row
_STABLE_S = 5.0  # an instance that ran this long starts its count of restarts anew
# Waits for the end of a pipe of which the proof holds the other end: if that is killed, what it has started does not outlive it.
_GUARD = 'read -r _; kill -KILL "-$1"'
_PAUSE_S = 0.5  # before an instance is started again that has just been started


@dataclass(frozen=True, slots=True)
class Worker:
    """A process that does the job's work.

    Attributes:
        ordinal: its own.
        identity: the process.
        with_group: whether it leads a group of its own, which then gets each signal: what it has started belongs to it.
        role: what it does, where an instance has processes of several kinds.
    """

    ordinal: int
    identity: Identity
    with_group: bool = False
    role: str = ""

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
        return f"process {self.identity.pid}, {self.role or f'ordinal {self.ordinal}'}"


class Instance:
    """One start of the command: a program that is its own worker.

    What it writes goes straight to a file, so that what a process was told before kill -9 is not lost with it.
    """

    def __init__(
        self, command: Sequence[str], ordinal: int, log: Path, environment: Mapping[str, str | None]
    ) -> None:
        self.ordinal = ordinal
        self.log = log
        self.restarts = 0
        self._command = list(command)
        given = {**os.environ, **environment, "EOS_ORDINAL": str(ordinal)}
        self._environment = {name: value for name, value in given.items() if value is not None}
        # What one of this ordinal that was there before has written proves nothing of this one.
        self._read_to = log.stat().st_size if log.exists() else 0
        self._workers: dict[int, Identity] = {}
        self._reading = threading.Lock()  # the proxies' threads ask for workers too
        self.entries: list[dict[str, Any]] = []
        self._guard: subprocess.Popen[bytes] | None = None
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
        self._end_guard()
        self._guard = subprocess.Popen(
            ["sh", "-c", _GUARD, "sh", str(process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return process

    def _end_guard(self) -> None:
        if (guard := self._guard) is not None:
            guard.kill()
            guard.communicate()
            self._guard = None

    @property
    def code(self) -> int | None:
        """How it ended; None while it runs."""
        code = self._process.poll()
        if code is not None:
            self._end_guard()
        return code

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
        return [self.whole] if self.whole.alive else []

    def behind(self, port: int) -> Worker | None:
        """Whose connection comes from this port."""
        return next((one for one in self.workers if connects_from(one.identity, port)), None)

    @classmethod
    def chosen(cls, workers: Sequence[Worker], share: float, near: Worker | None = None) -> Worker | None:
        """One of these workers by chance, ``share`` being from 0 to 1; that one, if one is ``near`` what happens."""
        return near or (workers[int(share * len(workers))] if workers else None)

    def goes_on_after(self, code: int) -> bool:
        """Whether it is started again when it has ended with this code."""
        return code != 0

    def ask_to_end(self) -> None:
        """SIGTERM. To all of it: a shell does not pass it on."""
        if self.code is None:
            self.whole.send(signal.SIGTERM)

    def wait(self, timeout_s: float) -> int | None:
        """Its exit code; None if it still runs."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        return self.code

    def kill(self) -> None:
        """SIGKILL to all of it, stopped processes too."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        finally:
            self._process.wait(_END_S)
            self._end_guard()


class RunInstance(Instance):
    """One `eos run`: a parent with its workers, whose exit codes say what to do."""

    @property
    def workers(self) -> list[Worker]:
        """Each worker that runs, or stands still; the parent is none."""
        self.read()
        found = [Worker(ordinal, one) for ordinal, one in list(self._workers.items())]
        return [one for one in found if one.alive]

    def goes_on_after(self, code: int) -> bool:
        """As an operator's supervisor has it."""
        return code in RESTARTED

    def ask_to_end(self) -> None:
        """SIGTERM to the parent, which passes it on."""
        if self.code is None:
            self._process.terminate()
