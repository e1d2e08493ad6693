"""Threads that make one call beside their caller."""

from __future__ import annotations

import _thread
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TypeVar

# A thread that has made its call waits so long for the next one: a loop makes one at each commit. A new thread takes 0.15 ms
# until it runs, and 0.06 ms of processor time; one that waits takes a tenth and a quarter of that (2 cores, 3,000 calls each).
_WAIT_S = 1.0
_STEP_S = 0.01

T = TypeVar("T")
_Calls = SimpleQueue[tuple[str, Callable[[], object]]]
_waiting: deque[_Calls] = deque()  # of each thread that waits
os.register_at_fork(after_in_child=_waiting.clear)  # a fork has none of them


def beside(function: Callable[[], object], *, name: str) -> threading.Event:
    """Make a call in a thread that does nothing else meanwhile; the event is set when it is over.

    Where the interpreter ends, the call is made here: no thread begins any more, and Python 3.11 would wait for one for ever. A
    generator that holds a session or a producer in a ``with`` block, and that nobody has closed, is closed there.
    """
    over = threading.Event()

    def call() -> None:
        try:
            function()
        finally:
            over.set()

    if sys.is_finalizing():
        call()
        return over
    try:
        calls = _waiting.pop()
    except IndexError:
        calls = SimpleQueue()
        threading.Thread(target=_make, args=(calls,), name=name, daemon=True).start()
    calls.put((name, call))
    return over


def future_beside(function: Callable[[], T], *, name: str) -> Future[T]:
    """As :func:`beside`; the future has what the call returned, or raised."""
    future: Future[T] = Future()

    def call() -> None:
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - raised by result()
            future.set_exception(error)
        else:
            future.set_result(result)

    beside(call, name=name)
    return future


def made_beside(make: Callable[[], T]) -> T:
    """A client that is made in another thread than the main one.

    confluent-kafka's constructors call str() on each option. CPython looks at signals there, in the main thread alone, and
    what a handler raises is lost: the constructor raises ``TypeError: expected configuration property name as type unicode
    string`` in its place (2.16; tests/canaries).
    """
    if threading.current_thread() is not threading.main_thread() or sys.is_finalizing():
        return make()
    made: list[T] = []
    failed: list[BaseException] = []
    # Not Thread and Event: what a handler raises inside of them can leave them in a state of which the next call complains.
    over = _thread.allocate_lock()
    over.acquire()

    def call() -> None:
        try:
            made.append(make())
        except BaseException as error:  # noqa: BLE001 - raised by the caller
            failed.append(error)
        finally:
            over.release()

    def undo() -> None:
        while not (made or failed):
            time.sleep(_STEP_S)
        made.clear()

    try:
        _thread.start_new_thread(call, ())
    except RuntimeError:  # where the interpreter ends, or the process may have no more threads
        return make()
    try:
        over.acquire()
    except BaseException:  # a signal handler's: what is made is not closed here either
        _thread.start_new_thread(undo, ())
        raise
    if failed:
        raise failed.pop()
    return made.pop()


def _make(calls: _Calls) -> None:
    """Make the calls that come."""
    while (given := _next(calls)) is not None:
        threading.current_thread().name, call = given
        call()
        del given, call  # what they hold may have to go: a client is closed by its end
        _waiting.append(calls)


def _next(calls: _Calls) -> tuple[str, Callable[[], object]] | None:
    try:
        return calls.get(timeout=_WAIT_S)
    except Empty:
        pass
    try:
        _waiting.remove(calls)
    except ValueError:  # taken at this moment, or for its first call: it is put next
        return calls.get()
    return None
