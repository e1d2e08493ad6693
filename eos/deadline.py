"""Deadline: a budget of seconds that several steps share."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

_POLL_S = 0.02


class Deadline:
    """``seconds`` from now on."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        return max(0.0, self._end - time.monotonic())

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self._end

    def put_off(self, seconds: float) -> None:
        """Do not count so many seconds, in which this process stood still; nothing if they are negative."""
        self._end += max(0.0, seconds)

    def wait_for(self, condition: Callable[[], bool]) -> bool:
        """Poll until the condition holds (True) or the budget is used up (False)."""
        while not condition():
            if not self.left_s:
                return False
            time.sleep(_POLL_S * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
        return True
