"""A worker process of a job: does its imports, waits for its settings, runs its shards, and reports how it ended."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import signal
import sys
import threading
from contextlib import ExitStack, suppress
from ctypes import c_double
from multiprocessing.connection import Connection
from queue import SimpleQueue

from eos.base.commands import started_with
from eos.errors import EosError, ProcessLimitError, TransformError
from eos.events import Event, Listener, RecordDeadLettered, SessionOpened, TransactionCommitted
from eos.exits import ENDS, ExitCode, exit_code_of
from eos.job import Looping, load_looping
from eos.kafka.group_offsets import Committed
from eos.offsets import Partition
from eos.pages import page_of
from eos.runner.messages import OPENED, PASSED, Ending, Plan, Unfit
from eos.runner.process_title import name_process
from eos.runner.stopping import KILL_MARGIN_S, Stop, stop_signals
from eos.runner.transform_clock import TRANSFORM_CLOCK
from eos.runner.worker import run_worker
from eos.settings import Settings

log = logging.getLogger("eos.runner.supervisor")


def work(reports: Connection, lifeline: Connection, transforming_since: c_double) -> None:
    """A worker process: runs its shards, reports how it ended, and ends with that exit code.

    It gets its plan by the lifeline, and then its settings. One that waits for either has no handler for signals, makes no Kafka
    client, and reports nothing: a spare that is ended, by its parent or with it, leaves nothing behind.
    """
    stop = Stop()
    given: SimpleQueue[Settings | None] = SimpleQueue()
    try:
        plan: Plan = lifeline.recv()
    except (EOFError, OSError):  # the parent has no plan, or is gone
        return
    name_process(f"eos spare worker: {plan.job}", short="eos spare")
    is_worker = lifeline.poll()  # from the start: it is told already
    threading.Thread(target=_follow_parent, args=(lifeline, given, stop), daemon=True).start()
    with ExitStack() as handlers:
        if is_worker:
            handlers.enter_context(stop_signals(stop))
        started_with(plan.started)
        plan.prepare(plan.settings)
        imported = _import(plan)
        if isinstance(imported, BaseException):
            with suppress(OSError):  # the parent is gone
                lifeline.send(Unfit(f"could not import {plan.job} ({type(imported).__name__}: {imported})"))
        gc.freeze()  # as eos.runner.worker does, whose full collection then has nothing to go through
        settings = given.get()
        if settings is None:
            return
        name_process(f"eos worker {settings.ordinal}: {plan.job}", short=f"eos worker {settings.ordinal}")
        if not is_worker:
            handlers.enter_context(stop_signals(stop))
        if settings.poison.transform_timeout_ms is not None:
            TRANSFORM_CLOCK.share(transforming_since)
        listener = _reporting(plan.listener(reports, settings.ordinal, settings), lifeline)
        left: dict[Partition, Committed] = {}
        code = _run(plan, imported, settings, stop=stop, listener=listener, left=left)
    with suppress(OSError):  # the parent is gone
        lifeline.send(Ending(code, stop.asked_by, left))
    sys.stdout.flush()
    sys.stderr.flush()
    gc.freeze()  # a tenth of a second less for the process to go: the last collections have nothing to go through
    sys.exit(int(code))


def _run(
    plan: Plan,
    imported: Looping | BaseException,
    settings: Settings,
    *,
    stop: Stop,
    listener: Listener,
    left: dict[Partition, Committed],
) -> ExitCode:
    try:
        run_worker(
            _or_raise(imported),
            settings,
            until_caught_up=plan.until_caught_up,
            stop=stop,
            listener=listener,
            last_look=lambda _settings, _group, offsets, _store: left.update(offsets),
        )
    except EosError as error:
        if isinstance(error, (TransformError, ProcessLimitError)) and error.__cause__ is not None:
            log.warning("the transform raised", exc_info=error.__cause__)
        code = exit_code_of(error)
        extra = {**ENDS, "docs": page_of(code, str(error))}
        log.error("%s", error, extra=extra)  # noqa: TRY400 - the message says what to do; the trace says where in eos
        log.debug("where it was raised", exc_info=True)
        return code
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


def _import(plan: Plan) -> Looping | BaseException:
    """The job, or what its import raised: for a spare that is no reason to end the job with, and a worker reports it."""
    try:
        return load_looping(plan.job, plan.app_dir)
    except BaseException as error:  # noqa: BLE001 - raised where it is reported
        return error


def _or_raise(imported: Looping | BaseException) -> Looping:
    if isinstance(imported, BaseException):
        raise imported
    return imported


def _reporting(listener: Listener, lifeline: Connection) -> Listener:
    """The listener, which also sends the parent the messages that a first session is open, and that a deadly record is passed."""
    sent = threading.Event()
    passing: set[str] = set()  # shards; such a record has a transaction of its own

    def send(message: str) -> None:
        with suppress(OSError):
            lifeline.send(message)

    def listen(event: Event) -> None:
        if isinstance(event, SessionOpened) and not sent.is_set():
            sent.set()
            send(OPENED)
        elif isinstance(event, RecordDeadLettered) and event.deaths:
            passing.add(event.shard)
        elif isinstance(event, TransactionCommitted) and event.shard in passing:
            passing.discard(event.shard)
            send(PASSED)
        listener(event)

    return listen


def _follow_parent(lifeline: Connection, given: SimpleQueue[Settings | None], stop: Stop) -> None:
    """Take the settings, which are all that the parent still writes; the pipe's end means that it is gone, however it died."""
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
