"""A job of two outputs for fault tests, what it must make of its input, and child processes that run it.

    python -m tests.support.jobs_for_faults shards  <settings as JSON>    one process, eos.run
    python -m tests.support.jobs_for_faults workers <settings as JSON>    a supervisor with its workers

The job's topics come from ``FAULTS_JOB`` (see :meth:`FaultJob.environment`), because workers import the job by its name.
With ``own_loop`` a job is driven by the loop of docs/guides/own-loop.md instead of :func:`eos.run`; workers are always driven by eos.
Every event is printed as ``<monotonic seconds> <pid> <event>``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from eos.base.deadline import Deadline
from eos.errors import EosError
from eos.events import Event, Listener, Sampled, TransactionCommitted
from eos.exits import ExitCode, exit_code_of
from eos.faces.session import Session
from eos.job import Job
from eos.records import InputBatch, InputRecord, OutputBatch, OutputRecord
from eos.runner.messages import Plan
from eos.runner.supervisor import Restarted, run_workers
from eos.runner.worker import run
from eos.settings import Settings
from tests.support.exactly_once import Comparison, Output, SeenRecord
from tests.support.observer import assert_exactly_once, create_topics, load, unique
from tests.support.patience import PATIENCE_S
from tests.support.process_ends import DEADLY, end_process
from tests.support.processes import Child, running_module
from tests.support.settings import settings_of

_MODULE = "tests.support.jobs_for_faults"
_VARIABLE = "FAULTS_JOB"
_REPOSITORY = Path(__file__).parents[2]


class Drive(Protocol):
    """What turns a job's input into its output."""

    def __call__(
        self,
        job: Job,
        settings: Settings,
        *,
        until_caught_up: bool,
        stop: threading.Event,
        listener: Listener,
    ) -> None: ...


def own_loop(
    job: Job, settings: Settings, *, until_caught_up: bool, stop: threading.Event, listener: Listener
) -> None:
    """The loop of docs/guides/own-loop.md, with the job's transform in it."""
    with Session(
        settings,
        app=job.name,
        inputs=job.inputs,
        outputs=job.written_topics,
        until_caught_up=until_caught_up,
        stop=stop,
        listener=listener,
    ) as session:
        for batch in session:
            with session.transaction(batch) as txn:
                if job.transform_batch is not None:
                    for columns in job.transform_batch(batch):
                        txn.produce_batch(columns.topic, columns)
                    continue
                assert job.transform is not None
                for record in batch:
                    for output in job.transform(record):
                        txn.produce(output.topic, output.value, key=output.key)


@dataclass(frozen=True)
class FaultJob:
    """Names of a job that writes two outputs per record: one to ``out``, keyed alike, and one to ``audit``.

    A value that begins with ``drop`` has no outputs, one that begins with ``poison`` raises, and
    ``exit`` ends the process as if all were done, as do others in :mod:`tests.support.process_ends`.
    """

    inputs: tuple[str, ...]
    out: str
    audit: str
    dead: str
    name: str = field(default_factory=lambda: unique("job"))
    batch: bool = False
    pause_ms: float = 0.0  # per call of the transform
    own_loop: bool = False
    second_import: str = (
        ""  # of its module, that of the spare behind one worker: "waits" for a file "go on", or "fails" …
    )
    imports_in: str = ""  # … by the files in this directory, one per import
    tells: bool = False  # a child prints `transforms <value>` before each record

    @property
    def group(self) -> str:
        return self.name

    @property
    def outputs(self) -> tuple[str, str]:
        return (self.out, self.audit)

    @property
    def environment(self) -> dict[str, str]:
        return {_VARIABLE: json.dumps(asdict(self))}

    def job(self) -> Job:
        """The job for eos."""
        shape: dict[str, Any] = (
            {"transform_batch": self._of_batch} if self.batch else {"transform": self._of_record}
        )
        return Job(name=self.name, inputs=self.inputs, outputs=self.outputs, dead_letters=self.dead, **shape)

    @property
    def drive(self) -> Drive:
        return own_loop if self.own_loop else run

    def load(self, bootstrap: str, count: int, prefix: str = "", partitions: Sequence[int] = (0, 1)) -> None:
        """Produce so many numbered values to the first input."""
        load(bootstrap, self.inputs[0], count, prefix, partitions)

    def expected(self, record: SeenRecord) -> list[Output]:
        """What the observer must find for an input record."""
        value = record.value or b""
        if value.startswith((b"drop", b"poison")) or value in DEADLY:
            return []
        return [(self.out, record.key, b"out " + value), (self.audit, None, b"audit " + value)]

    def check(self, bootstrap: str, *, timeout_s: float = PATIENCE_S) -> Comparison:
        """Assert the invariant of exactly-once processing."""
        return assert_exactly_once(
            bootstrap, self.group, self.inputs, self.outputs, self.expected, timeout_s=timeout_s
        )

    def _of_record(self, record: InputRecord) -> list[OutputRecord]:
        if self.tells:
            _print(f"transforms {record.value!r}")
        if self.pause_ms:
            time.sleep(self.pause_ms / 1000)
        value = record.value or b""
        if value.startswith(b"poison"):
            msg = f"{value!r} is poison"
            raise ValueError(msg)
        if value == b"exit":
            sys.exit(0)
        end_process(value)
        if value.startswith(b"drop"):
            return []
        return [
            OutputRecord(self.out, b"out " + value, record.key),
            OutputRecord(self.audit, b"audit " + value),
        ]

    def _of_batch(self, batch: InputBatch) -> list[OutputBatch]:
        if self.pause_ms:
            time.sleep(self.pause_ms / 1000)
        kept = [(k, v or b"") for k, v in zip(batch.keys, batch.values, strict=True)]
        for _, value in kept:
            end_process(value)
        if poison := [v for _, v in kept if v.startswith(b"poison")]:
            msg = f"{poison[0]!r} is poison"
            raise ValueError(msg)
        kept = [(k, v) for k, v in kept if not v.startswith(b"drop")]
        return [
            OutputBatch(self.out, [b"out " + v for _, v in kept], [k for k, _ in kept]),
            OutputBatch(self.audit, [b"audit " + v for _, v in kept]),
        ]


def fault_job(
    bootstrap: str, *, partitions: int = 2, inputs: int = 1, rf: int = 1, **changes: Any
) -> FaultJob:
    """A job with fresh topics."""
    sources = tuple(unique("in") for _ in range(inputs))
    out, audit, dead = unique("out"), unique("audit"), unique("dead")
    create_topics(bootstrap, {**dict.fromkeys(sources, partitions), out: 2, audit: 1, dead: 1}, rf)
    return FaultJob(sources, out, audit, dead, **changes)


def settings_for(bootstrap: str, **changes: object) -> Settings:
    """Settings with short times; changes by dotted name, with ``__`` for the dot."""
    return settings_of(**_overrides(bootstrap, changes))


def _overrides(bootstrap: str, changes: Mapping[str, object]) -> dict[str, object]:
    return {
        "kafka.bootstrap_servers": bootstrap,
        "input.start": "earliest",
        "transaction.timeout_ms": 20_000,
        "shutdown.grace_ms": 10_000,
        **{name.replace("__", "."): value for name, value in changes.items()},
    }


class Running:
    """A job in a thread of this process."""

    def __init__(self, job: Job, settings: Settings, *, until_caught_up: bool, drive: Drive = run) -> None:
        self.events: list[Event] = []
        self.error: BaseException | None = None
        self._others: list[Listener] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(job, settings, until_caught_up, drive), name="job", daemon=True
        )
        self._thread.start()

    def told(self, kind: type[Event], *, timeout_s: float = PATIENCE_S, count: int = 1) -> list[Any]:
        """The events of a kind, once there are so many."""
        deadline = time.monotonic() + timeout_s
        while len(found := [e for e in self.events if isinstance(e, kind)]) < count:
            if self.error is not None:
                raise self.error
            if time.monotonic() > deadline or not self._thread.is_alive():
                msg = f"{len(found)} of {count} {kind.__name__}; last: {self.events[-5:]}"
                raise TimeoutError(msg)
            time.sleep(0.01)
        return found

    @property
    def committed_records(self) -> int:
        """How many input records the job knows to be committed."""
        return sum(event.records_in for event in self.events if isinstance(event, TransactionCommitted))

    def wait_for_commits(self, records: int, timeout_s: float = PATIENCE_S) -> None:
        """Wait until so many input records are committed."""
        Deadline(timeout_s).wait_for(
            lambda: self.committed_records >= records or self.error is not None or not self._thread.is_alive()
        )
        assert self.committed_records >= records, self.error or self.events[-5:]

    def ask_to_stop(self) -> None:
        self._stop.set()

    def wait(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait for the end; raises what the job raised."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            msg = f"the job still runs after {timeout_s:g} s; last: {self.events[-5:]}"
            raise TimeoutError(msg)
        if self.error is not None:
            raise self.error

    def stop(self, timeout_s: float = PATIENCE_S) -> None:
        self.ask_to_stop()
        self.wait(timeout_s)

    def _run(self, job: Job, settings: Settings, until_caught_up: bool, drive: Drive) -> None:
        try:
            drive(job, settings, stop=self._stop, until_caught_up=until_caught_up, listener=self._listen)
        except BaseException as error:  # noqa: BLE001 - raised to the test
            self.error = error

    def also(self, listener: Listener) -> None:
        """Tell another listener every event from now on, the frequent ones too."""
        self._others.append(listener)

    def _listen(self, event: Event) -> None:
        for other in self._others:
            other(event)
        if not isinstance(event, Sampled):
            self.events.append(event)


@contextlib.contextmanager
def in_thread(job: FaultJob, settings: Settings, *, until_caught_up: bool = False) -> Iterator[Running]:
    """Run a job in a thread; it has ended when the block is left."""
    run = Running(job.job(), settings, until_caught_up=until_caught_up, drive=job.drive)
    try:
        yield run
    finally:
        run.ask_to_stop()
        with contextlib.suppress(BaseException):
            run.wait()


def run_to_end(job: FaultJob, settings: Settings, *, timeout_s: float = PATIENCE_S) -> list[Event]:
    """Run a job until it has caught up; returns its events."""
    run = Running(job.job(), settings, until_caught_up=True, drive=job.drive)
    try:
        run.wait(timeout_s)
    finally:
        run.ask_to_stop()
    return run.events


@contextlib.contextmanager
def in_process(
    job: FaultJob,
    bootstrap: str,
    *,
    kind: str = "shards",
    until_caught_up: bool = False,
    **changes: object,
) -> Iterator[Child]:
    """Run a job in a child process (``shards``), or in workers under a supervisor (``workers``)."""
    told = {"until_caught_up": until_caught_up, "overrides": _overrides(bootstrap, changes)}
    with running_module(_MODULE, kind, json.dumps(told), env=job.environment) as child:
        yield child


def told_at(line: str) -> float:
    """When a printed event happened, in seconds of the monotonic clock."""
    return float(line.split(" ", 1)[0])


# --- in the child ------------------------------------------------------------------------------------


def _import_as_told(job: FaultJob) -> None:
    """What code of a module may do when it is imported."""
    number = len(list(Path(job.imports_in).iterdir())) + 1
    Path(job.imports_in, f"{number} {os.getpid()}").touch()
    if number != 2:
        return
    if job.second_import == "fails":
        msg = "the second import fails"
        raise ValueError(msg)
    while not Path(job.imports_in, "go on").exists():
        time.sleep(0.05)


def _job_of_environment() -> FaultJob:
    given = json.loads(os.environ[_VARIABLE])
    given["inputs"] = tuple(given["inputs"])
    return FaultJob(**given)


def _print(event: object) -> None:
    if not isinstance(event, Sampled):
        sys.stdout.write(f"{time.monotonic():.3f} {os.getpid()} {event}\n")
        sys.stdout.flush()


def _printing(reports: Connection, ordinal: int, settings: Settings) -> Listener:
    return _print


def _run_process(settings: Settings, *, until_caught_up: bool) -> ExitCode:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        job = _job_of_environment()
        job.drive(job.job(), settings, stop=stop, until_caught_up=until_caught_up, listener=_print)
    except EosError as error:
        _print(f"ended by {type(error).__name__}: {error}")
        return exit_code_of(error)
    return ExitCode.DONE


def _run_workers(settings: Settings, *, until_caught_up: bool) -> ExitCode:
    # The name is looked up on this module, which makes the job from the environment.
    plan = Plan(f"{_MODULE}:fault", _REPOSITORY, settings, until_caught_up, _printing)

    def tell_restart(restart: Restarted) -> None:
        _print(restart)

    return run_workers(plan, on_report=lambda *_: None, on_restart=tell_restart)


def _main(arguments: Sequence[str]) -> int:
    logging.basicConfig(level=logging.INFO)
    kind, text = arguments
    told = json.loads(text)
    settings = settings_of(**told["overrides"])
    run = {"shards": _run_process, "workers": _run_workers}[kind]
    return int(run(settings, until_caught_up=told["until_caught_up"]))


if _VARIABLE in os.environ:
    _told = _job_of_environment()
    if _told.imports_in and __name__ == _MODULE:  # and not as the main module of a process
        _import_as_told(_told)
    fault = _told.job()  # what a worker's plan names

if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
