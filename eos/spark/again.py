"""Again: runs one after another, until they are asked to stop."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from eos.errors import UsageError

_LOOK_S = 0.1


def again(seconds: float, run: Callable[[], object], stop: threading.Event | None = None) -> None:
    """Call a function, and again so long after it has returned, until SIGTERM or until the event is set; never cut short.

    A second SIGTERM does what it did before.

    Raises:
        UsageError: the time is negative.
        BaseException: what the function raises.
    """
    if seconds < 0:
        raise UsageError(f"seconds={seconds}: the time between two runs is not negative")
    with _stopped_by_sigterm(stop or threading.Event()) as asked:
        while not asked.is_set():
            run()
            until = time.monotonic() + seconds
            # In small steps, not by asked.wait: a handler that sets the event in this thread would wait for the lock that
            # this thread holds.
            while not asked.is_set() and (left := until - time.monotonic()) > 0:
                time.sleep(min(left, _LOOK_S))


@contextmanager
def _stopped_by_sigterm(stop: threading.Event) -> Iterator[threading.Event]:
    """The first SIGTERM sets the event, and a second one does what it did before.

    Only the main thread may have handlers; elsewhere the event is all there is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.getsignal(signal.SIGTERM)

    def ask(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the handler's interface
        signal.signal(signal.SIGTERM, before)
        stop.set()

    signal.signal(signal.SIGTERM, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)
