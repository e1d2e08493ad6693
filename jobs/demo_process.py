"""``eos run`` as the demonstration runs it: a process of its own, read by the JSON lines of its log."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eos import Settings
from eos.base.deadline import Deadline

# What a worker that was killed keeps its partitions for.
SESSION_TIMEOUT_MS = 3_000
_STOP_S = 20.0


class Run:
    """One that was started.

    Attributes:
        pids: of its workers, by ordinal.
        busy: shards that have partitions.
    """

    def __init__(self, process: subprocess.Popen[str], log_path: Path) -> None:
        self.process = process
        self.pids: dict[int, int] = {}
        self.busy: set[str] = set()
        self.log_path = log_path
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def entries(self, seconds: float) -> Iterator[dict[str, Any]]:
        """What its log says, until it ends."""
        deadline = Deadline(seconds)
        while (line := self._lines.get(timeout=max(0.1, deadline.left_s))) is not None:
            if (entry := self._entry(line)) is not None:
                yield entry

    def new_entries(self) -> Iterator[dict[str, Any]]:
        """What its log has said since the last call; waits for nothing."""
        while not self._lines.empty():
            if (line := self._lines.get()) and (entry := self._entry(line)) is not None:
                yield entry

    def stop(self) -> int:
        """End it in order; returns its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(_STOP_S)
        return self.process.returncode

    def _entry(self, line: str) -> dict[str, Any] | None:
        try:
            entry: dict[str, Any] = json.loads(line)
        except ValueError:
            return None
        if entry.get("event") == "started" and "ordinal" in entry:
            self.pids[int(entry["ordinal"])] = int(entry["pid"])
        if entry.get("event") == "partitions assigned" and entry.get("positions"):
            self.busy.add(entry["id"])
        return entry

    def _read(self) -> None:
        assert self.process.stderr is not None  # noqa: S101 - `running` has asked for it
        with self.process.stderr as lines, self.log_path.open("w") as log:
            for line in lines:
                log.write(line)
                self._lines.put(line)
        self._lines.put(None)


@contextmanager
def running(
    job: str, settings: Settings, options: Sequence[str], environment: Mapping[str, str], log_path: Path
) -> Iterator[Run]:
    """``eos run`` of a job from the earliest record on, while the block lasts.

    Args:
        job: ``package.module:name``.
        settings: where Kafka is.
        options: of the command.
        environment: further settings, as variables.
        log_path: where its log is kept.
    """
    # A session of its own: Ctrl-C in the terminal must reach the demonstration, which then stops the run in order.
    process = subprocess.Popen(
        [sys.executable, "-m", "eos.cli", "run", job, "--start", "earliest", *options],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={
            **os.environ,
            "EOS_KAFKA__BOOTSTRAP_SERVERS": settings.kafka.bootstrap_servers or "",
            "EOS_OBSERVE__HTTP_PORT": "0",
            "EOS_OBSERVE__LOG_FORMAT": "json",
            "EOS_OBSERVE__LOG_LEVEL": "debug",
            **environment,
        },
        start_new_session=True,
    )
    run = Run(process, log_path)
    try:
        yield run
    finally:
        run.stop()
