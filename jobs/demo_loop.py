"""The demonstration's first act: the loop with two workers, one of them killed inside a transaction."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.progress import Progress

from eos import OrdinalShard, Settings, UnavailableError
from eos.ops.check.transactions import TransactionsView
from jobs import refunds
from jobs.demo_process import SESSION_TIMEOUT_MS, running
from jobs.demo_report import Accident
from jobs.demo_transactions import is_writing

JOB = "jobs.refunds:job"
CONFIG = Path(__file__).parent.parent / "conf" / "refunds.toml"
GROUP = "refunds-demo"
WORKERS = 2
# Small transactions make the run long enough to be seen, and both workers take part in it.
MAX_RECORDS = 250
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
    options = ["--config", str(CONFIG), "--workers", str(WORKERS), "--until-caught-up"]
    own = {
        "EOS_GROUP": GROUP,
        "EOS_TRANSACTION__MAX_RECORDS": str(MAX_RECORDS),
        "EOS_OWNERSHIP__SESSION_TIMEOUT_MS": str(SESSION_TIMEOUT_MS),
    }
    with TransactionsView(settings) as view, running(JOB, settings, options, own, log_path) as run:
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
            if is_writing(state, refunds.job.written_topics):
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
