"""TransformClock: since when the transforms of this process have not returned, for the parent that may have to end them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_double

NOT_RUNNING = 0.0


class TransformClock:
    """The oldest call that runs, in memory that the parent reads too.

    The parent has to look: a loop of C that keeps Python's lock lets no thread of this process look at anything.
    """

    def __init__(self) -> None:
        self._began: dict[str, float] = {}  # by shard: each has a thread
        self._shared: c_double | None = None
        # What is shown last is the newest: else a call that has returned could stay there while no other runs.
        self._lock = threading.Lock()

    def share(self, since: c_double) -> None:
        """From now on, show time.monotonic() of the oldest call's beginning there; `NOT_RUNNING` if none runs."""
        self._shared = since

    @contextmanager
    def running(self, shard: str) -> Iterator[None]:
        """A call of a shard's transform."""
        if self._shared is None:
            yield
            return
        with self._lock:
            self._began[shard] = time.monotonic()
            self._show(self._shared)
        try:
            yield
        finally:
            with self._lock:
                del self._began[shard]
                self._show(self._shared)

    def _show(self, shared: c_double) -> None:
        shared.value = min(self._began.values(), default=NOT_RUNNING)


TRANSFORM_CLOCK = TransformClock()  # of this process
