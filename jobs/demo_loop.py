"""The demonstration's first act: the loop with two workers, one of them killed inside a transaction."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import Progress

from eos import OrdinalShard, Settings, UnavailableError
from eos.check.transactions import TransactionsView
from eos.deadline import Deadline
from jobs import refunds
from jobs.demo_report import Accident, is_writing

JOB = "jobs.refunds:job"
CONFIG = Path(__file__).parent.parent / "conf" / "refunds.toml"
GROUP = "refunds-demo"
WORKERS = 2
# Small transactions make the run long enough to be seen, and both workers take part in it.
MAX_RECORDS = 250
# What a worker that was killed keeps its partitions for.
SESSION_TIMEOUT_MS = 3_000
_KILL_AFTER_SHARE = 0.25  # of the input
_RUN_DEADLINE_S = 240.0
_CATCH_TRIES = 50
_CATCH_PAUSE_S = 0.02


def run_and_kill_worker(
    progress: Progress, settings: Settings, records: int, directory: Path
) -> tuple[Accident | None, int]:
    """Run the refunds processor over all input, kill a worker on the way; returns the accident and the exit code."""
    task = progress.add_task(f"refunds processor, {WORKERS} workers", total=records)
    log_path = directory / "demo" / "refunds.log"
    with TransactionsView(settings) as view, _running(settings, log_path) as run:
        done = 0
        accident: Accident | None = None
        killed_at = 0.0
        for entry in run.entries(_RUN_DEADLINE_S):
            if entry.get("event") == "transaction committed":
                done += int(entry["records_in"])
                progress.update(task, completed=min(done, records))
            if accident is None and len(run.busy) == WORKERS and done >= records * _KILL_AFTER_SHARE:
                accident = _kill_inside_transaction(view, run.pids)
                killed_at = time.monotonic()
                progress.update(task, description=f"killed {accident.victim}; its replacement takes over")
            if accident is not None and not accident.seconds and _has_replaced(entry, accident):
                accident.seconds = time.monotonic() - killed_at
        code = run.process.wait(_RUN_DEADLINE_S)
        if accident is not None:
            accident.epochs_after = _epochs(view)
        if code:
            progress.console.print(f"[red]eos run ended with exit code {code}; its log: {log_path}[/]")
    return accident, code


def _has_replaced(entry: Mapping[str, Any], accident: Accident) -> bool:
    return entry.get("event") == "session opened" and entry.get("id") in accident.open_shards


def _kill_inside_transaction(view: TransactionsView, pids: Mapping[int, int]) -> Accident:
    """SIGSTOP a worker, look whether its transaction is open, and only then SIGKILL it."""
    for _ in range(_CATCH_TRIES):
        for ordinal, pid in sorted(pids.items()):
            os.kill(pid, signal.SIGSTOP)
            state = view.describe([_shard_id(ordinal)])[_shard_id(ordinal)]
            if is_writing(state):
                epochs = _epochs(view)
                os.kill(pid, signal.SIGKILL)
                return Accident(f"worker {ordinal} (pid {pid})", {state.transactional_id: state}, epochs)
            os.kill(pid, signal.SIGCONT)
            time.sleep(_CATCH_PAUSE_S)
    raise UnavailableError(f"no worker was found inside a transaction in {_CATCH_TRIES} tries")


def _shard_id(ordinal: int) -> str:
    return OrdinalShard(refunds.job.name, GROUP, ordinal).transactional_id


def _epochs(view: TransactionsView) -> dict[str, int]:
    states = view.describe([_shard_id(ordinal) for ordinal in range(WORKERS)])
    return {name: state.producer_epoch for name, state in states.items()}


class _Run:
    """``eos run`` as a process of its own, read by the JSON lines of its log."""

    def __init__(self, process: subprocess.Popen[str], log_path: Path) -> None:
        self.process = process
        self.pids: dict[int, int] = {}  # by ordinal
        self.busy: set[str] = set()  # shards that have partitions
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._log_path = log_path
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with self._log_path.open("w") as log:
            for line in self.process.stderr or ():
                log.write(line)
                self._lines.put(line)
        self._lines.put(None)

    def entries(self, seconds: float) -> Iterator[dict[str, Any]]:
        deadline = Deadline(seconds)
        while (line := self._lines.get(timeout=max(0.1, deadline.left_s))) is not None:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if entry.get("event") == "started" and "ordinal" in entry:
                self.pids[int(entry["ordinal"])] = int(entry["pid"])
            if entry.get("event") == "partitions assigned" and entry.get("positions"):
                self.busy.add(entry["id"])
            yield entry


@contextmanager
def _running(settings: Settings, log_path: Path) -> Iterator[_Run]:
    command = [sys.executable, "-m", "eos.cli", "run", JOB, "--config", str(CONFIG)]
    command += ["--workers", str(WORKERS), "--until-caught-up", "--start", "earliest"]
    environment = {
        **os.environ,
        "EOS_KAFKA__BOOTSTRAP_SERVERS": settings.kafka.bootstrap_servers,
        "EOS_GROUP": GROUP,
        "EOS_TRANSACTION__MAX_RECORDS": str(MAX_RECORDS),
        "EOS_OWNERSHIP__SESSION_TIMEOUT_MS": str(SESSION_TIMEOUT_MS),
        "EOS_OBSERVE__HTTP_PORT": "0",
        "EOS_OBSERVE__LOG_FORMAT": "json",
        "EOS_OBSERVE__LOG_LEVEL": "debug",
    }
    # A session of its own: Ctrl-C in the terminal must reach the demonstration, which then stops the run in order.
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        yield _Run(process, log_path)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
