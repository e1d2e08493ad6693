"""A worker process of a job: runs its shards, and reports to its parent how it ended."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ctypes import c_double
from multiprocessing.connection import Connection
from pathlib import Path
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


class Plan(NamedTuple):
    """What every worker gets; picklable, because workers are spawned (librdkafka does not survive fork)."""

    job: str
    app_dir: Path
    settings: Settings
    until_caught_up: bool
    listener: Callable[[Connection, int, Settings], Listener]


class Ending(NamedTuple):
    """The last message of a worker: its sessions are closed, and nothing more comes from it."""

    code: ExitCode
    asked_by: int = 0  # the signal that asked it to stop; 0: it has done all its work, or failed


KILL_MARGIN_S = 5.0  # after the grace period: what is left open is aborted by the next owner's init
OPENED = "opened"  # a worker's first message: it has a session, so the group has its first offsets


class Stop(threading.Event):
    """Set by a signal, whose number it keeps."""

    asked_by = 0


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """SIGTERM and SIGINT set the event; the handlers before are put back."""
    stop = Stop()

    def ask_to_stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the handler's interface
        stop.asked_by = number
        stop.set()

    before = {number: signal.signal(number, ask_to_stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def work(
    plan: Plan, settings: Settings, reports: Connection, lifeline: Connection, transforming_since: c_double
) -> None:
    """A worker process: runs its shards, reports how it ended, and ends with that exit code."""
    if settings.poison.transform_timeout_ms is not None:
        TRANSFORM_CLOCK.share(transforming_since)
    with stop_signals() as stop:
        threading.Thread(
            target=_follow_parent, args=(lifeline, stop, settings.shutdown.grace_s), daemon=True
        ).start()
        listener = _reporting_opened(plan.listener(reports, settings.ordinal, settings), lifeline)
        try:
            job = load_named(plan.job, plan.app_dir, Job, "eos.Job")
            run(job, settings, stop=stop, until_caught_up=plan.until_caught_up, listener=listener)
            code = ExitCode.DONE
        except EosError as error:
            code = exit_code_of(error)
            if isinstance(error, TransformError) and error.__cause__ is not None:
                log.warning("the transform raised", exc_info=error.__cause__)
            log.error("%s", error, extra=ENDS)  # noqa: TRY400 - the message says what to do; the trace says where in eos
            log.debug("where it was raised", exc_info=True)
        except SystemExit as error:
            code = ExitCode.UNEXPECTED
            log.error(  # noqa: TRY400
                "the job's code called sys.exit(%r). Fix: raise an exception, or return",
                error.code,
                extra=ENDS,
            )
        except BaseException as error:
            code = ExitCode.UNEXPECTED
            log.exception("unexpected error: %s", error, extra=ENDS)  # noqa: TRY401 - for where no trace is shown
    with suppress(OSError):  # the parent is gone
        lifeline.send(Ending(code, stop.asked_by))
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(int(code))


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


def _follow_parent(lifeline: Connection, stop: threading.Event, grace_s: float) -> None:
    """The parent writes nothing here: the pipe's end means that it is gone, however it died."""
    with_parent = True
    while with_parent:
        try:
            lifeline.recv_bytes()
        except (EOFError, OSError):
            with_parent = False
    # A parent kills a worker that does not end in time. Without one this timer does, which is a thread in C: it also ends a
    # worker whose client hangs with Python's lock held (seen once in close(), in rd_kafka_assign0).
    faulthandler.dump_traceback_later(grace_s + KILL_MARGIN_S, exit=True)
    if not stop.is_set():
        log.error("the parent process is gone: stopping")
        os.kill(os.getpid(), signal.SIGTERM)
