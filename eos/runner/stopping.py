"""How a process is asked to stop, and how long its parent waits for it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

KILL_MARGIN_S = 5.0  # after the grace period: what is left open is aborted by the next owner's init


class Stop(threading.Event):
    """Set by a signal, whose number it keeps."""

    asked_by = 0
    interrupts = 0  # how often Ctrl-C was pressed


@contextmanager
def stop_signals(stop: Stop | None = None) -> Iterator[Stop]:
    """SIGTERM and SIGINT set the event; the handlers before are put back."""
    stop = stop or Stop()

    def ask_to_stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the handler's interface
        stop.asked_by = number
        stop.interrupts += number == signal.SIGINT
        stop.set()

    before = {number: signal.signal(number, ask_to_stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
