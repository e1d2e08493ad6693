"""Bounded waiting: poll a condition, or take a lock between processes, until a deadline."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from eos.errors import RetriableError

_POLL_S = 0.02


class Deadline:
    """A budget of seconds that several steps share."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def wait_for(self, condition: Callable[[], bool]) -> bool:
        """Poll until the condition holds (True) or the budget is used up (False)."""
        while not condition():
            if self.left_s == 0.0:
                return False
            time.sleep(_POLL_S * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
        return True


@contextmanager
def locked(path: Path, *, timeout_s: float, purpose: str) -> Iterator[None]:
    """Hold an exclusive lock on a file; the system releases it if this process dies.

    Raises:
        RetriableError: another process has held it for ``timeout_s``.
    """
    try:
        held = FileLock(path, timeout=timeout_s, poll_interval=_POLL_S).acquire()
    except Timeout as error:
        raise RetriableError(
            f"another process has held {path} for {timeout_s:.0f} s ({purpose}). Fix: try again when it is done"
        ) from error
    with held:
        yield
