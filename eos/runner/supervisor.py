"""The parent of a job's worker processes: starts them, replaces those that end too early, ends all when one may not go on.

What the end of a worker means is what it has reported in its last message (:class:`Ending`), never the exit status of its
process: ``os._exit(0)`` and a C library's ``exit()`` give 0 as well, in the middle of the work.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, NamedTuple

from eos.base.deadline import Deadline
from eos.exits import ENDS, ExitCode
from eos.runner.killed import fix_of
from eos.runner.messages import OPENED, PASSED, Ending, Plan
from eos.runner.processes import Spare, WorkerProcess
from eos.runner.stopping import KILL_MARGIN_S, Stop, stop_signals
from eos.runner.transform_clock import NOT_RUNNING

if TYPE_CHECKING:
    from eos.settings import Settings

_POLL_S = 0.2
_MAX_PAUSE_S = 30.0
_NOTICE_S = 3.0  # of waiting for workers to end, until their parent says so
_STABLE_S = 60.0  # a worker that ran this long starts its count of restarts anew
_OPENS_S = 30.0  # within this time a worker has a session, if it is to have one
_STOOD_STILL_S = (
    5.0  # between two looks at a worker, this process did not run, and its workers may not have either
)
_SPARE_AFTER_S = 2.0  # of all workers being at work: a spare's imports must not slow their start down

log = logging.getLogger("eos.runner.supervisor")


class Restarted(NamedTuple):
    """A worker was ended by a signal that was meant for it alone, and is started again under its ordinal."""

    ordinal: int
    signal: int


class _Worker:
    def __init__(self, plan: Plan, index: int, started: threading.Event) -> None:
        self.plan = plan
        self.job_started = started
        self.settings = plan.settings.for_worker(index)
        self.ordinal = self.settings.ordinal
        self.restarts = 0
        self.restart_at: float | None = None
        self.running: WorkerProcess | None = None
        self.reports: Connection | None = None  # of the running process, until it has closed it
        self.opened_at: float | None = None  # its first session
        self.ending: Ending | None = None
        self.started_at = self.reported_at = 0.0
        self.died = False  # its last process, by a signal
        self.overran = False  # … which its parent sent: a transform had not returned in time
        self._looked_at = time.monotonic()
        self._since = NOT_RUNNING  # the call of a transform that was running then …
        self._stood_still_s = 0.0  # … and for how long this process did not run since

    def start(self, process: WorkerProcess | None) -> None:
        """Let a process that waits be this worker, or a new one."""
        self.running = process or WorkerProcess(self.plan)
        self.reports = self.running.reports
        settings = self.settings.once_started() if self.job_started.is_set() else self.settings
        if self.died:
            settings = settings.of_replacement()
        self.running.begin(settings)
        self.ending = self.opened_at = self.restart_at = None
        self.overran = False
        self.started_at = time.monotonic()

    @property
    def long_at_work(self) -> bool:
        """Whether it has had a session for a while, or is done; one that owns no partition opens none."""
        if self.running is None:
            return self.restart_at is None
        opened_at = self.started_at + _OPENS_S if self.opened_at is None else self.opened_at
        return time.monotonic() - opened_at > _SPARE_AFTER_S

    def ended(self) -> int | None:
        """The exit status of the process, once it has ended; negative for a signal."""
        if self.running is None:
            return None
        process = self.running.process
        self._end_endless_transform(self.running)
        status = process.exitcode
        self._take_messages(self.running)
        if status is None and self.ending and time.monotonic() - self.reported_at > self._exit_s:
            log.warning(
                "worker %d has reported its end %.0f s ago and its process does not exit (a thread or an exit handler of "
                "the job?): killed, nothing of its work is open",
                self.ordinal,
                self._exit_s,
            )
            process.kill()
            process.join(KILL_MARGIN_S)
            status = process.exitcode
        return status

    @property
    def _exit_s(self) -> float:
        return self.settings.shutdown.grace_s

    def _end_endless_transform(self, running: WorkerProcess) -> None:
        """Kill a process whose transform has not returned in time: the next owner counts it as a death."""
        limit_ms, since = self.settings.poison.transform_timeout_ms, running.transforming_since.value
        before, self._looked_at = self._looked_at, time.monotonic()
        if since != self._since:
            self._since, self._stood_still_s = since, 0.0
        if limit_ms is None or since == NOT_RUNNING or not running.process.is_alive():
            return
        if self._looked_at - before > _STOOD_STILL_S:
            self._stood_still_s += self._looked_at - max(before, since)
        if (seconds := self._looked_at - since - self._stood_still_s) * 1000 > limit_ms:
            log.error(
                "worker %d: a call of the transform has not returned in %.1f s (poison.transform_timeout_ms = %d): killed. "
                "Nothing is lost: what was open is aborted",
                self.ordinal,
                seconds,
                limit_ms,
            )
            self.overran = True
            running.process.kill()
            running.process.join(KILL_MARGIN_S)

    def _take_messages(self, running: WorkerProcess) -> None:
        for message in running.messages():
            if message == OPENED:
                self.opened_at = time.monotonic()
                self.job_started.set()
            elif message == PASSED:
                self.restarts = 0  # those in a row were for that record, and the next one needs its own
            elif isinstance(message, Ending) and self.ending is None:
                self.ending, self.reported_at = message, time.monotonic()

    def release(self, on_report: Callable[[int, object], None]) -> None:
        """Close the pipes of an ended process; its last reports are passed on."""
        _drain(self, on_report)
        running, self.running, self.reports = self.running, None, None
        if running is not None:
            running.reports.close()
            running.lifeline.close()
            running.process.join()


def run_workers(
    plan: Plan,
    *,
    on_report: Callable[[int, object], None],
    on_restart: Callable[[Restarted], None],
    on_done: Callable[[int, Ending], None] = lambda *_: None,
    waiting: list[WorkerProcess] | None = None,
) -> ExitCode:
    """Run ``workers.count`` processes until the job is done, one may not go on, or a signal asks to stop.

    A worker that is ended by a signal while the job goes on is started again under its ordinal, with a growing pause, at most
    ``workers.max_restarts`` times in a row. That is one that was killed, and also one that ended in order because SIGTERM or
    SIGINT came to it alone: no other worker would process its partitions. A worker that ends with an error ends them all: a
    fence, a poison record or a wrong setting would only come back. So does one that ends without a report.

    While all are at work, a spare process waits for the place of the next one that dies (``workers.spare``).

    Args:
        plan: what the workers do.
        on_report: called with everything that a worker's listener sends, and its ordinal.
        on_restart: called at every restart.
        on_done: called with the ordinal of a worker that has done all its work, and its last message.
        waiting: processes of this plan that were started before, to be taken from the list; what is missing is started here.

    Returns:
        DONE, or the first failing worker's code, also if it failed while it was stopping.
    """
    _tell_owners(plan.settings)
    started = threading.Event()
    workers = [_Worker(plan, index, started) for index in range(plan.settings.workers.count)]
    spare = Spare(plan)
    # A run that catches up is short, and wants the processor that a spare's imports take.
    with_spare = plan.settings.workers.spare and not plan.until_caught_up
    result = ExitCode.DONE
    with stop_signals() as stop:
        try:
            for worker in workers:
                worker.start(waiting.pop() if waiting else None)
            while any(w.running is not None or w.restart_at is not None for w in workers):
                _pass_reports(workers, on_report)
                spare.look_after(wanted=with_spare and all(w.long_at_work for w in workers))
                for worker in workers:
                    code = _look_after(worker, spare, on_report, on_restart, on_done, stopping=stop.is_set())
                    if code is not ExitCode.DONE and result is ExitCode.DONE:
                        result = code
                        stop.set()
                if stop.is_set():
                    _pass_reports(workers, on_report)
                    code = _stop(workers, stop, plan.settings.shutdown.grace_s, on_report)
                    result = code if result is ExitCode.DONE else result
                    break
        finally:
            spare.end()
            _kill(workers, on_report)
    return result


def _tell_owners(settings: Settings) -> None:
    """Which partitions the workers of this instance own: their number is that of the instances only where each has one."""
    instances, count = settings.ownership.instances, settings.workers.count
    if instances is not None and count > 1:
        first = settings.ordinal * count
        log.info(
            "ownership.instances = %d, with workers.count = %d each: a partition p belongs to worker p mod %d of all, and here are "
            "those with the numbers %d to %d. Partitions of instances that do not run have no owner",
            instances,
            count,
            instances * count,
            first,
            first + count - 1,
        )


def _look_after(
    worker: _Worker,
    spare: Spare,
    on_report: Callable[[int, object], None],
    on_restart: Callable[[Restarted], None],
    on_done: Callable[[int, Ending], None],
    *,
    stopping: bool,
) -> ExitCode:
    if worker.restart_at is not None and not stopping and time.monotonic() >= worker.restart_at:
        worker.start(spare.take())
    status = worker.ended()
    if status is None:
        return ExitCode.DONE
    worker.release(on_report)
    if stopping:
        return _stopped(worker, status)
    code = _meaning(worker, status)
    if code is not ExitCode.DONE:
        return code
    if worker.ending is not None and not worker.ending.asked_by:
        on_done(worker.ordinal, worker.ending)
        return code
    return _replace(worker, -status if worker.ending is None else worker.ending.asked_by, on_restart)


def _meaning(worker: _Worker, status: int) -> ExitCode:
    """What the end of a worker's process says; DONE also for one that a signal has ended, which loses nothing."""
    ending = worker.ending
    if ending is None and status >= 0:
        log.error(
            "worker %d: its process ended with status %d and without a report, so its work is not done. Nothing is lost: what "
            "was open is aborted. Usual cause: os._exit() or a C library's exit() in the job's code. Fix: raise an exception "
            "there, or return",
            worker.ordinal,
            status,
            extra=ENDS,
        )
        return ExitCode.UNEXPECTED
    if ending is None:
        return ExitCode.DONE
    if status not in (ending.code, -signal.SIGTERM):  # which its parent may have sent after that
        log.warning(
            "worker %d reported exit code %d, and then its process ended with %d (an exit handler?): the report counts",
            worker.ordinal,
            ending.code,
            status,
        )
    return ending.code


def _replace(worker: _Worker, ended_by: int, on_restart: Callable[[Restarted], None]) -> ExitCode:
    limits = worker.settings.workers
    worker.died = worker.ending is None
    what = "was killed" if worker.ending is None else "alone was asked to stop"
    ran_s = time.monotonic() - worker.started_at
    worker.restarts = 1 if ran_s >= _STABLE_S else worker.restarts + 1
    if worker.restarts > limits.max_restarts:
        log.error(
            "worker %d %s %d times in a row: giving up (the last time by signal %d, %s; workers.max_restarts = %d). Fix: %s",
            worker.ordinal,
            what,
            worker.restarts,
            ended_by,
            signal.strsignal(ended_by),
            limits.max_restarts,
            fix_of(ended_by),
            extra=ENDS,
        )
        return ExitCode.UNEXPECTED
    # The first restart is at once: the shard is free, and its partitions wait.
    pause_s = min(_MAX_PAUSE_S, limits.restart_backoff_ms / 1000 * (2 ** (worker.restarts - 1) - 1))
    worker.restart_at = time.monotonic() + pause_s
    log.warning(
        "worker %d %s by signal %d: starting it again in %.1f s", worker.ordinal, what, ended_by, pause_s
    )
    on_restart(Restarted(worker.ordinal, ended_by))
    return ExitCode.DONE


def _pass_reports(workers: list[_Worker], on_report: Callable[[int, object], None]) -> None:
    """Wait until a worker reports or ends, or it is time for a restart; not for long."""
    pipes = {w.reports: w for w in workers if w.reports is not None}
    sentinels = [w.running.process.sentinel for w in workers if w.running is not None]
    now = time.monotonic()
    wait_s = min([_POLL_S, *(w.restart_at - now for w in workers if w.restart_at is not None)])
    for ready in wait([*pipes, *sentinels], timeout=max(0.0, wait_s)):
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


def _stop(
    workers: list[_Worker], stop: Stop, grace_s: float, on_report: Callable[[int, object], None]
) -> ExitCode:
    """Ask all to end, and wait; returns the code of the first that ended with an error of its own.

    Ctrl-C ends the wait, once it has been said that there is one: a first one can come twice at once, from the terminal and from
    a program between it and this process that hands signals on.
    """
    for worker in workers:
        worker.restart_at = None
        if worker.running is not None:
            worker.running.process.terminate()
    in_order = ExitCode.DONE
    deadline, notice = Deadline(grace_s + KILL_MARGIN_S), Deadline(_NOTICE_S)
    enough: int | None = None
    looked_at = time.monotonic()
    while running := [w for w in workers if w.running is not None and w.ended() is None]:
        before, looked_at = looked_at, time.monotonic()
        deadline.put_off(looked_at - before - _STOOD_STILL_S)
        if deadline.passed:
            if any(worker.ending is None for worker in running):
                log.error(
                    "workers did not end within shutdown.grace_ms: killed; the next start settles what is open. Usual cause: a "
                    "call of the transform that takes longer. Fix: a longer one, or a transform that takes less long",
                    extra=ENDS,
                )
                in_order = ExitCode.UNEXPECTED
            break
        if enough is not None and stop.interrupts > enough:
            log.error(
                "Ctrl-C once more: killed. The next start settles what is open; readers of the outputs wait for that, or for "
                "transaction.timeout_ms",
                extra=ENDS,
            )
            in_order = ExitCode.UNEXPECTED
            break
        if notice.passed:
            enough = stop.interrupts  # before it is said: the wish may come while the line is written
            log.warning(
                "worker %s still at work %.0f s after it was asked to stop: killed in %.0f s (shutdown.grace_ms), or by Ctrl-C "
                "once more",
                ", ".join(str(worker.ordinal) for worker in running),
                notice.seconds,
                deadline.left_s,
            )
            notice = Deadline(deadline.seconds)
        _pass_reports(workers, on_report)
    codes = [worker.ending.code for worker in running if worker.ending is not None]
    codes += [_stopped(worker, status) for worker in workers if (status := worker.ended()) is not None]
    return next((code for code in codes if code is not ExitCode.DONE), in_order)


def _stopped(worker: _Worker, status: int) -> ExitCode:
    """What the end of a process says that was asked to stop: one whose transform was not over in time has not done so."""
    return ExitCode.UNEXPECTED if worker.overran else _meaning(worker, status)


def _kill(workers: list[_Worker], on_report: Callable[[int, object], None]) -> None:
    for worker in workers:
        if worker.running is not None and worker.running.process.is_alive():
            worker.running.process.kill()
        worker.release(on_report)
