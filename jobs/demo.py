"""The demonstration: the refunds processor on a real broker, a worker killed inside a transaction, and the proof.

It does what an operator would do by hand: starts Kafka, loads settlements, runs ``eos run`` with two workers,
kills one with SIGKILL while its transaction is open, waits for its replacement, and verifies the result with
code that shares nothing with the loop but the transform. The exit code is 0 only if it is exactly once.
"""

from __future__ import annotations

import argparse
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

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from eos import EosError, OrdinalShard, OutputBatch, Settings, TransactionalProducer, UnavailableError
from eos.check.report import VerificationReport
from eos.check.transactions import TransactionsView
from eos.check.verify import verify
from eos.exits import ExitCode
from eos.local import LocalKafka
from eos.local.dump_log import Kind, dump_log
from eos.local.topics import create_topics
from jobs import refunds
from jobs.demo_report import Takeover, show_report, show_takeover
from jobs.settlements import load, settlements

JOB = "jobs.refunds:job"
CONFIG = Path(__file__).parent.parent / "conf" / "refunds.toml"
GROUP = "refunds-demo"
PARTITIONS = 4
WORKERS = 2
# Small transactions make the run long enough to be seen, and both workers take part in it.
MAX_RECORDS = 250
# Heartbeats come every third of it, and a member learns of a rebalance by its heartbeat.
SESSION_TIMEOUT_MS = 3_000
_KILL_AFTER_SHARE = 0.25  # of the input
_RUN_DEADLINE_S = 240.0
_VERIFY_DEADLINE_S = 120.0
_CATCH_TRIES = 50
_CATCH_PAUSE_S = 0.02


def main() -> int:
    """The command; returns its exit code."""
    options = _options()
    console = Console(highlight=False)
    with _terminated_like_interrupted():
        try:
            return int(_demonstrate(console, options.records, options.directory))
        except KeyboardInterrupt:
            console.print("\ninterrupted; everything that was started has been stopped")
            return 130
        except ProcessLookupError:
            console.print("\n[red]a worker ended by itself; its log is in the demo's folder[/]")
            return int(ExitCode.UNEXPECTED)
        except EosError as error:
            console.print(f"\n[red]{type(error).__name__}[/]: {error}")
            return int(ExitCode.UNEXPECTED)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m jobs.demo", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--records", type=int, default=100_000, help="settlements to load (default 100000)")
    parser.add_argument("--directory", type=Path, default=Path(".eos"), help="where jars, data and logs go")
    return parser.parse_args()


def _demonstrate(console: Console, records: int, directory: Path) -> ExitCode:
    console.print("[bold]eos: exactly once, shown by an accident[/]\n")
    with _progress(console) as progress:
        starting = progress.add_task("Apache Kafka", total=None)
        kafka = LocalKafka(
            directory / "demo",
            jars=directory / "jars",
            heap_mb=1024,
            progress=lambda line: progress.update(starting, description=f"Apache Kafka: {line}"),
        )
        kafka.wipe()
        with kafka:
            progress.update(starting, description="Apache Kafka: ready", total=1, completed=1)
            settings = _settings(kafka.bootstrap_servers)
            create_topics(
                kafka, dict.fromkeys((*refunds.job.inputs, *refunds.job.written_topics), PARTITIONS)
            )
            _load(progress, settings, records)
            takeover, run_code = _run_and_kill(progress, settings, records, directory)
            aborted = 0 if takeover is None else _aborted_by(takeover, kafka)
            report = _verify(progress, settings)
    exactly_once = report.exactly_once and run_code == 0 and report.records == records
    show_report(console, report)
    if takeover is not None:
        show_takeover(console, takeover, aborted)
    if not exactly_once or aborted < 1:
        console.print(
            "\n[bold red]NOT exactly once[/]" if not exactly_once else "\n[red]no transaction was aborted[/]"
        )
        return ExitCode.NOT_EXACTLY_ONCE
    console.print("\n[bold green]exactly once[/]: nothing lost, nothing doubled, nothing torn")
    return ExitCode.DONE


def _settings(bootstrap_servers: str) -> Settings:
    return Settings.load(CONFIG, {"kafka.bootstrap_servers": bootstrap_servers, "group": GROUP})


def _load(progress: Progress, settings: Settings, records: int) -> None:
    task = progress.add_task("load settlements", total=records)
    with TransactionalProducer(settings, OrdinalShard("demo-load", GROUP, 0)) as producer:

        def write(batch: OutputBatch) -> None:
            with producer.transaction() as txn:
                txn.produce_batch(batch.topic, batch)

        load(
            settlements(records, seed=1),
            refunds.SETTLEMENTS,
            write,
            progress=lambda count: progress.advance(task, count),
        )


# --- the run and the accident ----------------------------------------------------------------------------


def _run_and_kill(
    progress: Progress, settings: Settings, records: int, directory: Path
) -> tuple[Takeover | None, int]:
    task = progress.add_task(f"refunds processor, {WORKERS} workers", total=records)
    log_path = directory / "demo" / "refunds.log"
    with TransactionsView(settings) as view, _running(settings, log_path) as run:
        done = 0
        takeover: Takeover | None = None
        killed_at = 0.0
        for entry in run.entries(_RUN_DEADLINE_S):
            if entry.get("event") == "transaction committed":
                done += int(entry["records_in"])
                progress.update(task, completed=min(done, records))
            if takeover is None and len(run.busy) == WORKERS and done >= records * _KILL_AFTER_SHARE:
                takeover = _kill_inside_transaction(view, run.pids)
                killed_at = time.monotonic()
                progress.update(
                    task, description=f"killed worker {takeover.ordinal}; its replacement takes over"
                )
            if takeover is not None and not takeover.seconds and _is_open(entry, takeover):
                takeover.seconds = time.monotonic() - killed_at
        code = run.process.wait(_RUN_DEADLINE_S)
        if takeover is not None:
            takeover.epochs_after = _epochs(view)
        if code:
            progress.console.print(f"[red]eos run ended with exit code {code}; its log: {log_path}[/]")
    return takeover, code


def _is_open(entry: Mapping[str, Any], takeover: Takeover) -> bool:
    return entry.get("event") == "session opened" and entry.get("id") == _shard_id(takeover.ordinal)


def _kill_inside_transaction(view: TransactionsView, pids: Mapping[int, int]) -> Takeover:
    """SIGSTOP a worker, look whether its transaction is open, and only then SIGKILL it."""
    for _ in range(_CATCH_TRIES):
        for ordinal, pid in sorted(pids.items()):
            os.kill(pid, signal.SIGSTOP)
            state = view.describe([_shard_id(ordinal)])[_shard_id(ordinal)]
            if state.state == "Ongoing":
                epochs = _epochs(view)
                os.kill(pid, signal.SIGKILL)
                return Takeover(ordinal, pid, state.producer_id, len(state.partitions), epochs)
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
        deadline = time.monotonic() + seconds
        while (line := self._lines.get(timeout=max(0.1, deadline - time.monotonic()))) is not None:
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


# --- the proof -------------------------------------------------------------------------------------------


def _aborted_by(takeover: Takeover, kafka: LocalKafka) -> int:
    """By the abort markers on the broker's disk; a takeover's carry an epoch above the one that was fenced.

    A marker is written once per partition of a transaction.
    """
    fenced = takeover.epochs_before[_shard_id(takeover.ordinal)]
    markers = {
        entry.producer_epoch
        for topic in refunds.job.outputs
        for number in range(PARTITIONS)
        for entry in dump_log(kafka.tool, kafka.data_dir(kafka.brokers[0].id), topic, number)
        if entry.kind is Kind.ABORT_MARKER and entry.producer_id == takeover.producer_id
    }
    return sum(epoch > fenced for epoch in markers)


def _verify(progress: Progress, settings: Settings) -> VerificationReport:
    task = progress.add_task("verify", total=None)

    def tell(stage: str, done: int, total: int) -> None:
        progress.update(task, description=f"verify: {stage}", completed=done, total=total)

    return verify(refunds.job, settings, deadline_s=_VERIFY_DEADLINE_S, progress=tell)


def _progress(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM unwinds like Ctrl-C, so that everything that was started is stopped."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())
