"""A worker process of a job: does its imports, waits for its settings, runs its shards, and reports how it ended."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from ctypes import c_double
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import NamedTuple

from eos.errors import EosError, TransformError
from eos.events import Event, Listener, SessionOpened
from eos.exits import ENDS, ExitCode, exit_code_of
from eos.job import Job
from eos.references import load_named
from eos.runner.transform_clock import TRANSFORM_CLOCK
from eos.runner.worker import run
from eos.settings import Settings

log = logging.getLogger("eos.runner.supervisor")


def _prepare_nothing(settings: Settings) -> None:
    """The default of :attr:`Plan.prepare`."""


class Plan(NamedTuple):
    """What every worker gets; picklable, because workers are spawned (librdkafka does not survive fork).

    ``prepare`` is called in a process before it imports the job's module, with the settings of the plan; ``listener`` in one
    that is a worker, with that worker's.
    """

    job: str
    app_dir: Path
    settings: Settings
    until_caught_up: bool
    listener: Callable[[Connection, int, Settings], Listener]
    prepare: Callable[[Settings], None] = _prepare_nothing


class Unfit(NamedTuple):
    """A message of a process that is no use: it could not import the job's module. As a worker it ends with the error."""

    reason: str


class Ending(NamedTuple):
    """The last message of a worker: its sessions are closed, and nothing more comes from it."""

    code: ExitCode
    asked_by: int = 0  # the signal that asked it to stop; 0: it has done all its work, or failed


KILL_MARGIN_S = 5.0  # after the grace period: what is left open is aborted by the next owner's init
OPENED = "opened"  # a worker's message: it has a session, so the group has its first offsets


class Stop(threading.Event):
    """Set by a signal, whose number it keeps."""

    asked_by = 0


@contextmanager
def stop_signals(stop: Stop | None = None) -> Iterator[Stop]:
    """SIGTERM and SIGINT set the event; the handlers before are put back."""
    stop = stop or Stop()

    def ask_to_stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the handler's interface
        stop.asked_by = number
        stop.set()

    before = {number: signal.signal(number, ask_to_stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def work(plan: Plan, reports: Connection, lifeline: Connection, transforming_since: c_double) -> None:
    """A worker process: runs its shards, reports how it ended, and ends with that exit code.

    It gets its settings by the lifeline. One that waits for them has no handler for signals, makes no Kafka client, and reports
    nothing: a spare that is ended, by its parent or with it, leaves nothing behind.
    """
    stop = Stop()
    given: SimpleQueue[Settings | None] = SimpleQueue()
    is_worker = lifeline.poll()  # from the start: it is told already
    threading.Thread(target=_follow_parent, args=(lifeline, given, stop), daemon=True).start()
    with ExitStack() as handlers:
        if is_worker:
            handlers.enter_context(stop_signals(stop))
        plan.prepare(plan.settings)
        imported = _import(plan)
        if isinstance(imported, BaseException):
            with suppress(OSError):  # the parent is gone
                lifeline.send(Unfit(f"could not import {plan.job} ({type(imported).__name__}: {imported})"))
        gc.freeze()  # as eos.runner.worker does, whose full collection then has nothing to go through
        settings = given.get()
        if settings is None:
            return
        if not is_worker:
            handlers.enter_context(stop_signals(stop))
        if settings.poison.transform_timeout_ms is not None:
            TRANSFORM_CLOCK.share(transforming_since)
        listener = _reporting_opened(plan.listener(reports, settings.ordinal, settings), lifeline)
        code = _run(plan, imported, settings, stop=stop, listener=listener)
    with suppress(OSError):  # the parent is gone
        lifeline.send(Ending(code, stop.asked_by))
    sys.stdout.flush()
    sys.stderr.flush()
    gc.freeze()  # a tenth of a second less for the process to go: the last collections have nothing to go through
    sys.exit(int(code))


def _run(
    plan: Plan, imported: Job | BaseException, settings: Settings, *, stop: Stop, listener: Listener
) -> ExitCode:
    try:
        job = _or_raise(imported)
        run(job, settings, stop=stop, until_caught_up=plan.until_caught_up, listener=listener)
    except EosError as error:
        if isinstance(error, TransformError) and error.__cause__ is not None:
            log.warning("the transform raised", exc_info=error.__cause__)
        log.error("%s", error, extra=ENDS)  # noqa: TRY400 - the message says what to do; the trace says where in eos
        log.debug("where it was raised", exc_info=True)
        return exit_code_of(error)
    except SystemExit as error:
        log.error(  # noqa: TRY400
            "the job's code called sys.exit(%r). Fix: raise an exception, or return",
            error.code,
            extra=ENDS,
        )
        return ExitCode.UNEXPECTED
    except BaseException as error:
        log.exception("unexpected error: %s", error, extra=ENDS)  # noqa: TRY401 - for where no trace is shown
        return ExitCode.UNEXPECTED
    return ExitCode.DONE


def _import(plan: Plan) -> Job | BaseException:
    """The job, or what its import raised: for a spare that is no reason to end the job with, and a worker reports it."""
    try:
        return load_named(plan.job, plan.app_dir, Job, "eos.Job")
    except BaseException as error:  # noqa: BLE001 - raised where it is reported
        return error


def _or_raise(imported: Job | BaseException) -> Job:
    if isinstance(imported, BaseException):
        raise imported
    return imported


def _reporting_opened(listener: Listener, lifeline: Connection) -> Listener:
    """The listener, which also sends the parent the message that a first session is open."""
    sent = threading.Event()

    def listen(event: Event) -> None:
        if isinstance(event, SessionOpened) and not sent.is_set():
            sent.set()
            with suppress(OSError):
                lifeline.send(OPENED)
        listener(event)

    return listen


def _follow_parent(lifeline: Connection, given: SimpleQueue[Settings | None], stop: Stop) -> None:
    """Take the settings, which are all that the parent writes; the pipe's end means that it is gone, however it died."""
    settings: Settings | None = None
    with suppress(EOFError, OSError):
        settings = lifeline.recv()
        given.put(settings)
        lifeline.recv_bytes()
    # A parent kills a worker that does not end in time. Without one this timer does, which is a thread in C: it also ends a
    # worker whose client hangs with Python's lock held (seen once in close(), in rd_kafka_assign0), and a spare at an import
    # that does not return.
    grace_s = 0.0 if settings is None else settings.shutdown.grace_s
    faulthandler.dump_traceback_later(grace_s + KILL_MARGIN_S, exit=True)
    if settings is None:
        given.put(None)
    elif not stop.is_set():
        log.error("the parent process is gone: stopping")
        os.kill(os.getpid(), signal.SIGTERM)
