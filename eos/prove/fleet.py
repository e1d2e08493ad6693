"""Fleet: the job's processes under test: `eos run`, as an operator would start it, and started again when it ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eos.deadline import Deadline
from eos.exits import ExitCode
from eos.local.process import Identity, identity_of

# After these an operator's supervisor (a StatefulSet, say) starts the process again, and so does the fleet.
RESTARTED = frozenset({ExitCode.FENCED, ExitCode.UNAVAILABLE})
_END_S = 10.0
_MAX_RESTARTS = 50


class Instance:
    """One `eos run`: a parent with its workers.

    What it writes goes straight to a file, so that what a process was told before kill -9 is not lost with it.
    """

    def __init__(self, command: Sequence[str], ordinal: int, log: Path) -> None:
        self.ordinal = ordinal
        self.log = log
        self.restarts = 0
        self._command = list(command)
        self._environment = {**os.environ, "EOS_ORDINAL": str(ordinal)}
        # What one of this ordinal that was there before has written proves nothing of this one.
        self._read_to = log.stat().st_size if log.exists() else 0
        self._workers: dict[int, Identity] = {}
        self.entries: list[dict[str, Any]] = []
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as file:
            # A session of its own: Ctrl-C in the terminal is for the proof, which ends what it has started.
            return subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    @property
    def code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.poll()

    def start_again(self) -> None:
        """After it has ended."""
        self.restarts += 1
        self._process = self._started()

    def read(self) -> list[dict[str, Any]]:
        """Every entry of its log so far."""
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
    def workers(self) -> dict[int, Identity]:
        """Each worker that runs, or stands still, by ordinal."""
        self.read()
        return {ordinal: one for ordinal, one in self._workers.items() if one.alive}

    def ask_to_end(self) -> None:
        """SIGTERM."""
        if self.code is None:
            self._process.terminate()

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
    """

    def __init__(self, command: Sequence[str], directory: Path) -> None:
        self._command = command
        self._directory = directory
        self.instances: list[Instance] = []
        self.ended_for_good: list[str] = []  # instances that no restart helps, in words

    def start(self, ordinal: int) -> Instance:
        """Start one more instance. One of that ordinal may have been there before: its log goes on."""
        log = self._directory / f"instance-{ordinal}.log"
        instance = Instance(self._command, ordinal, log)
        self.instances.append(instance)
        return instance

    def keep_up(self) -> None:
        """Start again what has ended with a code that asks for it; any other end is for good."""
        for instance in list(self.instances):
            code = instance.code
            if code is None:
                continue
            if code in RESTARTED and instance.restarts < _MAX_RESTARTS:
                instance.start_again()
            else:
                self.instances.remove(instance)
                self.ended_for_good.append(
                    f"instance {instance.ordinal} ended with exit code {code} (its log: {instance.log})"
                )

    def forget(self, instance: Instance) -> None:
        """It has left; its log stays."""
        self.instances.remove(instance)

    def workers(self) -> dict[int, Identity]:
        """Each worker that runs, or stands still, by ordinal."""
        return {ordinal: worker for one in self.instances for ordinal, worker in one.workers.items()}

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
        self.instances.clear()
        return codes

    def kill(self) -> None:
        """SIGKILL to all."""
        for one in self.instances:
            one.kill()
        self.instances.clear()


def command_of(reference: str, options: Sequence[str], app_dir: Path) -> list[str]:
    """The command line of one instance."""
    return [sys.executable, "-m", "eos.cli", "run", reference, *options, "--app-dir", str(app_dir)]
