"""Processes of workers as their parent has them: each does its imports, and waits until it is told which worker it is.

So one can be started before there is a worker for it: before its parent's own imports, or as a spare for the place of a
worker that dies. This module loads nothing of what the work needs, or that start would be late. They are spawned, never forked
(librdkafka does not survive a fork), and make no Kafka client before they are told.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from eos.base.deadline import Deadline
from eos.runner.messages import Plan, Unfit
from eos.runner.transform_clock import NOT_RUNNING

if TYPE_CHECKING:
    from ctypes import c_double
    from multiprocessing.connection import Connection

    from eos.settings import Settings

_ASKED = {-signal.SIGTERM, -signal.SIGINT}
# For one that has no work to end by itself, its exit handlers with it.
_END_S = 1.0
# Until a spare is started in the place of one that has ended: what ended it may come again (memory, or the job's module).
_SPARE_AGAIN_S = 60.0

_STANDING_BY: list[WorkerProcess] = []

log = logging.getLogger("eos.runner.supervisor")


class WorkerProcess:
    """A process that waits for the settings of a worker, or has got them.

    Args:
        plan: what it prepares for; without one it waits for that too, at the imports that every plan needs.
    """

    def __init__(self, plan: Plan | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        self.transforming_since = context.Value("d", NOT_RUNNING, lock=False)
        self.reports, theirs = context.Pipe(duplex=False)
        self.lifeline, their_lifeline = context.Pipe(duplex=True)
        self.process = context.Process(
            target=_work, args=(theirs, their_lifeline, self.transforming_since), name="eos-worker"
        )
        self._has_plan = False
        # Ctrl-C reaches the whole terminal group; until a worker has its own handler, only the parent handles it.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.process.start()
        finally:
            signal.signal(signal.SIGINT, before)
            theirs.close()
            their_lifeline.close()
        if plan is not None:
            self.prepare(plan)

    def prepare(self, plan: Plan) -> None:
        """Import what this plan needs, the job's module above all; once."""
        self._has_plan = True
        with suppress(OSError):  # as in begin
            self.lifeline.send(plan)

    def begin(self, settings: Settings) -> None:
        """Be the worker with these settings, as soon as the imports are done."""
        with suppress(OSError):  # it has died; its status says how
            self.lifeline.send(settings)

    def drop(self) -> None:
        """It has no work: it ends by itself, behind its imports, with the exit handlers of the job's module if it has that."""
        self.lifeline.close()
        self.reports.close()
        if not self._has_plan:
            self.process.kill()

    def messages(self) -> Iterator[object]:
        """What has come from the worker; what it reports comes by another pipe."""
        with suppress(EOFError, OSError):
            while self.lifeline.poll():
                yield self.lifeline.recv()


def end_all(processes: Iterable[WorkerProcess]) -> None:
    """End processes that have no work."""
    ending = list(processes)
    for one in ending:
        one.drop()
    deadline = Deadline(_END_S)
    for one in ending:
        one.process.join(deadline.left_s)
        if one.process.is_alive():
            one.process.kill()
            one.process.join()


@contextmanager
def started_early() -> Iterator[list[WorkerProcess]]:
    """One process, which any plan has work for, at its imports while the block goes on; at its end those in the list are ended.

    It is that of :func:`standing_by`, if the block is inside of one.
    """
    processes = [_STANDING_BY.pop() if _STANDING_BY else WorkerProcess()]
    try:
        yield processes
    finally:
        end_all(processes)


@contextmanager
def standing_by() -> Iterator[None]:
    """One process for a :func:`started_early` inside the block, before it is known whether there will be one."""
    _STANDING_BY.append(WorkerProcess())
    try:
        yield
    finally:
        end_all(_STANDING_BY)
        _STANDING_BY.clear()


def prepare_all(processes: list[WorkerProcess], plan: Plan) -> None:
    """Give the plan to processes that were started without one, and add what is missing for its workers."""
    for one in processes:
        one.prepare(plan)
    processes += (WorkerProcess(plan) for _ in range(plan.settings.workers.count - len(processes)))


def _work(reports: Connection, lifeline: Connection, transforming_since: c_double) -> None:
    from eos.runner.worker_process import work

    work(reports, lifeline, transforming_since)


class Spare:
    """A process that has done its imports, the job's module too, for the place of the next worker that dies."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._process: WorkerProcess | None = None
        self._pause = Deadline(0.0)

    def look_after(self, *, wanted: bool) -> None:
        """Start one if there is none and it is wanted; drop one that is no use."""
        if self._process is None:
            if wanted and self._pause.passed:
                self._process = WorkerProcess(self._plan)
            return
        unfit = [one.reason for one in self._process.messages() if isinstance(one, Unfit)]
        if unfit or not self._process.process.is_alive():
            asked = (
                self._process.process.exitcode in _ASKED
            )  # as where all processes of a group are asked to stop
            log.log(
                logging.INFO if asked else logging.WARNING,
                "the spare worker process %s: another one is started in %.0f s, and a worker that dies until then is replaced "
                "by a new process",
                unfit[0] if unfit else f"ended with status {self._process.process.exitcode}",
                _SPARE_AGAIN_S,
            )
            self._pause = Deadline(_SPARE_AGAIN_S)
            self.end()

    def take(self) -> WorkerProcess | None:
        """The process, also one that is still at its imports: it is ahead of a new one. It is no spare any more."""
        self.look_after(wanted=False)
        process, self._process = self._process, None
        return process

    def end(self) -> None:
        """There is no spare any more."""
        process, self._process = self._process, None
        if process is not None:
            end_all([process])
