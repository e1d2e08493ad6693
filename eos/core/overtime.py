"""Overtime: calls a function once, from its own thread, if a block of the caller's code runs too long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Overtime:
    """Watches one block after the other; a block that is late is noticed by ``every_s`` seconds later at most.

    A thread that is woken for each block, or each transaction, would need Python's lock as often: 4 % of the processor
    time of a batch function, and more on a busy machine. So the thread checks at its own interval.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._late: tuple[float, Callable[[], None]] | None = None
        self._thread: threading.Thread | None = None

    @contextmanager
    def block(self, at: float, act: Callable[[], None]) -> Iterator[None]:
        """A block that is late at this time.monotonic(). ``act`` is short; when the block has ended it has run, or never will."""
        if self._thread is None:
            self._thread = threading.Thread(target=self.watch, name="eos-overtime", daemon=True)
            self._thread.start()
        with self._lock:
            self._late = at, act
        try:
            yield
        finally:
            with self._lock:
                self._late = None

    def watch(self) -> None:
        """Look until it is over; for a thread."""
        while not self._over.wait(self._every_s):
            self.look()

    def end(self) -> None:
        """No more blocks come."""
        self._over.set()

    def look(self) -> None:
        """Act if the block that runs is late."""
        with self._lock:
            if self._late is not None and time.monotonic() >= self._late[0]:
                _, act = self._late
                self._late = None
                act()
