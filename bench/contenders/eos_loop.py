"""eos as its users run it: a job, the loop, and nothing tuned but the transaction's length."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.contender import Arguments, Meter
from eos import Job, Settings
from eos.events import Event, Listener, TransactionCommitted
from eos.runner.messages import Plan
from eos.runner.supervisor import run_workers
from eos.runner.worker import run


class CommitCounter:
    """A listener that keeps what the report asks for."""

    def __init__(self) -> None:
        self.took: list[float] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, TransactionCommitted):
            self.took.append(event.commit_seconds)


def settings_of(arguments: Arguments, *, workers: int = 1) -> Settings:
    """The defaults, except for what every contender is told."""
    return Settings.load(
        overrides={
            "kafka.bootstrap_servers": arguments.bootstrap,
            "group": arguments.group,
            "input.start": "earliest",
            "transaction.interval_ms": arguments.transaction_ms,
            "workers.count": workers,
        },
        environ={},
    )


def copy(**transform: Callable[..., Any]) -> None:
    """Run as a contender in this process; ``transform`` or ``transform_batch`` gets the output topic first."""
    meter = Meter()
    arguments = Arguments.from_command_line()
    bound = {name: function(arguments.output) for name, function in transform.items()}
    job = Job(name="bench", inputs=[arguments.input], outputs=[arguments.output], **bound)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    counter = CommitCounter()
    run(job, settings_of(arguments), stop=stop, until_caught_up=arguments.until_caught_up, listener=counter)
    meter.report_each(counter.took)


class _Sender:
    """Sends the worker's figures to the parent as the last thing it does with each commit."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __call__(self, event: Event) -> None:
        if isinstance(event, TransactionCommitted):
            self._connection.send(event.commit_seconds)


def sender(connection: Connection, ordinal: int, settings: Settings) -> Listener:
    """The listener of a worker process."""
    del ordinal, settings
    return _Sender(connection)


def copy_with_workers(job: str, workers: int) -> None:
    """Run as a contender with worker processes; ``job`` names a module's job that reads the environment."""
    meter = Meter()
    arguments = Arguments.from_command_line()
    os.environ["BENCH_INPUT"], os.environ["BENCH_OUTPUT"] = arguments.input, arguments.output
    commits: list[float] = []

    def on_report(ordinal: int, seconds: object) -> None:
        del ordinal
        if isinstance(seconds, float):
            commits.append(seconds)

    plan = Plan(job, Path.cwd(), settings_of(arguments, workers=workers), arguments.until_caught_up, sender)
    code = run_workers(plan, on_report=on_report, on_restart=lambda _: None)
    if code:
        raise SystemExit(code)
    meter.report_each(commits)
