"""The parent of a job's worker processes: starts them, restarts the killed, ends all when one may not go on."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from eos.errors import EosError
from eos.events import Listener
from eos.exits import ExitCode, exit_code_of
from eos.settings import Settings
from eos.worker import load_job, run_shards

_POLL_S = 0.2
_MAX_PAUSE_S = 30.0
_KILL_MARGIN_S = 5.0  # after the grace period: what is left open is aborted by the next owner's init
_STABLE_S = 60.0  # a worker that ran this long starts its count of restarts anew

log = logging.getLogger("eos.supervisor")


class Plan(NamedTuple):
    """What every worker is told; picklable, because workers are spawned (librdkafka does not survive fork)."""

    job: str
    app_dir: Path
    settings: Settings
    until_caught_up: bool
    listener: Callable[[Connection, int, Settings], Listener]


class Restarted(NamedTuple):
    """A worker was killed by a signal and started again under its ordinal."""

    ordinal: int
    signal: int


class _Worker:
    def __init__(self, plan: Plan, index: int) -> None:
        self.plan = plan
        self.settings = plan.settings.for_worker(index)
        self.ordinal = self.settings.ordinal
        self.restarts = 0
        self.restart_at: float | None = None
        self.process: SpawnProcess | None = None
        self.reports: Connection | None = None
        self.lifeline: Connection | None = None
        self.started_at = 0.0

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        reports, theirs = context.Pipe(duplex=False)
        their_lifeline, lifeline = context.Pipe(duplex=False)
        process = context.Process(
            target=_work,
            args=(self.plan, self.settings, theirs, their_lifeline),
            name=f"eos-worker-{self.ordinal}",
        )
        # Ctrl-C reaches the whole terminal group; until a worker has its own handler, only the parent shall answer.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        theirs.close()
        their_lifeline.close()
        self.process, self.reports, self.lifeline = process, reports, lifeline
        self.started_at = time.monotonic()
        self.restart_at = None

    def ended(self) -> int | None:
        """The exit code of the process, once it has ended; negative for a signal."""
        return None if self.process is None else self.process.exitcode

    def release(self, on_report: Callable[[int, object], None]) -> None:
        """Let go of an ended process; what it reported last is passed on."""
        _drain(self, on_report)
        for pipe in (self.reports, self.lifeline):
            if pipe is not None:
                pipe.close()
        if self.process is not None:
            self.process.join()
        self.process = self.reports = self.lifeline = None


def run_workers(
    plan: Plan, *, on_report: Callable[[int, object], None], on_restart: Callable[[Restarted], None]
) -> ExitCode:
    """Run ``workers.count`` processes until the job is done, one may not go on, or a signal asks to stop.

    A worker that was killed by a signal is started again under its ordinal, with a growing pause, at most
    ``workers.max_restarts`` times in a row. A worker that ends with an error ends them all: a fence, a
    poison record or a wrong setting would only come back.

    Args:
        plan: what the workers do.
        on_report: told of everything a worker's listener sends, with its ordinal.
        on_restart: told of every restart.

    Returns:
        DONE, or the first failing worker's code, also if it failed while it was stopping.
    """
    workers = [_Worker(plan, index) for index in range(plan.settings.workers.count)]
    result = ExitCode.DONE
    with _signals() as stop:
        try:
            for worker in workers:
                worker.start()
            while any(w.process is not None or w.restart_at is not None for w in workers):
                _pass_reports(workers, on_report)
                for worker in workers:
                    code = _look_after(worker, on_report, on_restart, stopping=stop.is_set())
                    if code is not ExitCode.DONE and result is ExitCode.DONE:
                        result = code
                        stop.set()
                if stop.is_set():
                    _pass_reports(workers, on_report)
                    code = _stop(workers, plan.settings.shutdown.grace_s, on_report)
                    result = code if result is ExitCode.DONE else result
                    break
        finally:
            _kill(workers, on_report)
    return result


def _look_after(
    worker: _Worker,
    on_report: Callable[[int, object], None],
    on_restart: Callable[[Restarted], None],
    *,
    stopping: bool,
) -> ExitCode:
    if worker.restart_at is not None and not stopping and time.monotonic() >= worker.restart_at:
        worker.start()
    code = worker.ended()
    if code is None:
        return ExitCode.DONE
    ran_s = time.monotonic() - worker.started_at
    worker.release(on_report)
    if code >= 0 or stopping:
        return _exit_code(code)
    limits = worker.settings.workers
    worker.restarts = 1 if ran_s >= _STABLE_S else worker.restarts + 1
    if worker.restarts > limits.max_restarts:
        log.error("worker %d was killed %d times in a row: giving up", worker.ordinal, worker.restarts)
        return ExitCode.UNEXPECTED
    # The first restart is at once: the shard is free, and its partitions wait.
    pause_s = min(_MAX_PAUSE_S, limits.restart_backoff_ms / 1000 * (2 ** (worker.restarts - 1) - 1))
    worker.restart_at = time.monotonic() + pause_s
    log.warning(
        "worker %d was killed by signal %d: starting it again in %.1f s", worker.ordinal, -code, pause_s
    )
    on_restart(Restarted(worker.ordinal, -code))
    return ExitCode.DONE


def _exit_code(code: int) -> ExitCode:
    try:
        return ExitCode(code)
    except ValueError:
        return ExitCode.UNEXPECTED if code > 0 else ExitCode.DONE


def _pass_reports(workers: list[_Worker], on_report: Callable[[int, object], None]) -> None:
    pipes = {w.reports: w for w in workers if w.reports is not None}
    sentinels = [w.process.sentinel for w in workers if w.process is not None]
    for ready in wait([*pipes, *sentinels], timeout=_POLL_S):
        worker = pipes.get(ready) if isinstance(ready, Connection) else None
        if worker is None or worker.reports is None:
            continue
        _drain(worker, on_report)


def _drain(worker: _Worker, on_report: Callable[[int, object], None]) -> None:
    try:
        while worker.reports is not None and worker.reports.poll():
            on_report(worker.ordinal, worker.reports.recv())
    except (EOFError, OSError):
        if worker.reports is not None:
            worker.reports.close()
        worker.reports = None


def _stop(workers: list[_Worker], grace_s: float, on_report: Callable[[int, object], None]) -> ExitCode:
    """Ask all to end, and wait; returns the code of the first that ended with an error of its own."""
    for worker in workers:
        worker.restart_at = None
        if worker.process is not None:
            worker.process.terminate()
    in_order = ExitCode.DONE
    deadline = time.monotonic() + grace_s + _KILL_MARGIN_S
    while any(w.process is not None and w.process.is_alive() for w in workers):
        if time.monotonic() >= deadline:
            log.error(
                "workers did not end within shutdown.grace_ms: killed; the next start settles what is open"
            )
            in_order = ExitCode.UNEXPECTED
            break
        _pass_reports(workers, on_report)
    codes = [_exit_code(code) for worker in workers if (code := worker.ended()) is not None]
    return next((code for code in codes if code is not ExitCode.DONE), in_order)


def _kill(workers: list[_Worker], on_report: Callable[[int, object], None]) -> None:
    for worker in workers:
        if worker.process is not None and worker.process.is_alive():
            worker.process.kill()
        worker.release(on_report)


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """SIGTERM and SIGINT set the event; the handlers before are put back."""
    stop = threading.Event()

    def ask_to_stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the handler's interface
        stop.set()

    before = {number: signal.signal(number, ask_to_stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _work(plan: Plan, settings: Settings, reports: Connection, lifeline: Connection) -> None:
    """A worker process: runs its shards and ends with the exit code that fits."""
    with _signals() as stop:
        threading.Thread(target=_follow_parent, args=(lifeline, stop), daemon=True).start()
        listener = plan.listener(reports, settings.ordinal, settings)
        try:
            job = load_job(plan.job, plan.app_dir)
            run_shards(job, settings, stop=stop, until_caught_up=plan.until_caught_up, listener=listener)
            code = ExitCode.DONE
        except EosError as error:
            code = exit_code_of(error)
            log.error("%s", error)  # noqa: TRY400 - the message says what to do; the trace says where in eos
            log.debug("where it was raised", exc_info=True)
        except SystemExit as error:
            code = ExitCode.UNEXPECTED
            log.error("the job's code called sys.exit(%r). Fix: raise an exception, or return", error.code)  # noqa: TRY400
        except BaseException:
            code = ExitCode.UNEXPECTED
            log.exception("unexpected error")
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(int(code))


def _follow_parent(lifeline: Connection, stop: threading.Event) -> None:
    """The parent never writes: the pipe's end means that it is gone, however it died."""
    with_parent = True
    while with_parent:
        try:
            lifeline.recv_bytes()
        except (EOFError, OSError):
            with_parent = False
    if not stop.is_set():
        log.error("the parent process is gone: stopping")
        os.kill(os.getpid(), signal.SIGTERM)
