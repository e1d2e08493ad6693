"""Ways in which the code of a job can end its process, by the value of the record that asks for it."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping

MARK = b"ends the process: "


def _crash_at_exit(status: int) -> None:
    """The process fails in the end, and what ends it last says otherwise."""
    atexit.register(os._exit, status)
    msg = "poison, and its process ends with another status"
    raise ValueError(msg)


def _hang_without_parent() -> None:
    """As a client that hangs in C with Python's lock held, a moment after the parent is gone."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.05)
    time.sleep(1)
    ctypes.PyDLL(None).sleep(120)


def _loop() -> None:
    while True:
        pass


_WAYS: Mapping[bytes, Callable[[], object]] = {
    b"os._exit(0)": lambda: os._exit(0),
    b"os._exit(3)": lambda: os._exit(3),  # the code of a fence
    b"C exit(0)": lambda: ctypes.CDLL(None).exit(0),
    b"SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),  # as the kernel does when memory is out
    b"segfault": lambda: ctypes.string_at(0),
    b"endless loop": _loop,
    b"endless loop in C": lambda: ctypes.PyDLL(None).sleep(600),  # with Python's lock held
    b"takes 6 s": lambda: time.sleep(6),  # and ends nothing
    b"hang": _hang_without_parent,
    b"atexit 0": lambda: _crash_at_exit(0),
    b"atexit 3": lambda: _crash_at_exit(3),
    b"thread": lambda: threading.Thread(
        target=time.sleep, args=(120,)
    ).start(),  # no end, and none at the exit
}


# No process gets past these.
DEADLY = frozenset(MARK + way for way in (b"SIGKILL", b"segfault", b"endless loop", b"endless loop in C"))


def end_process(value: bytes) -> None:
    """End the process as the record says; a record without the mark ends nothing."""
    if value.startswith(MARK):
        _WAYS[value.removeprefix(MARK)]()
