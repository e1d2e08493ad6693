"""TransformClock: since when the transforms of this process have not returned, for the parent that may have to end them."""

from __future__ import annotations

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

    def share(self, since: c_double) -> None:
        """From now on, show time.monotonic() of the oldest call's beginning there; `NOT_RUNNING` if none runs."""
        self._shared = since

    @contextmanager
    def running(self, shard: str) -> Iterator[None]:
        """A call of a shard's transform."""
        if self._shared is None:
            yield
            return
        self._began[shard] = time.monotonic()
        self._show()
        try:
            yield
        finally:
            del self._began[shard]
            self._show()

    def _show(self) -> None:
        if self._shared is not None:
            self._shared.value = min(list(self._began.values()), default=NOT_RUNNING)


TRANSFORM_CLOCK = TransformClock()  # of this process
