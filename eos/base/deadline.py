"""Deadline: a budget of seconds that several steps share; and a clock that goes on while the machine is suspended."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

_POLL_S = 0.02
_draw = random.SystemRandom()  # a user's code may have seeded Python's own, and counts on its numbers
# CLOCK_MONOTONIC, where Linux has both, stands still while a machine is suspended.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def since_boot_s() -> float:
    """Seconds, also those in which the machine was suspended: as a coordinator counts them, which goes by the time of day."""
    return time.clock_gettime(_CLOCK)


def _pause() -> None:
    time.sleep(_POLL_S * _draw.uniform(0.5, 1.5))


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

    def wait_for(self, condition: Callable[[], bool], turn: Callable[[], object] = _pause) -> bool:
        """Poll until the condition holds (True) or the budget is used up (False), with a ``turn`` in between."""
        while not condition():
            if not self.left_s:
                return False
            turn()
        return True


def grace_over(stopped: threading.Event, grace_s: float) -> Callable[[], bool]:
    """Tells whether who was asked to stop has had its time for it, from the first look after that on."""
    grace: Deadline | None = None

    def is_over() -> bool:
        nonlocal grace
        if grace is None and stopped.is_set():
            grace = Deadline(grace_s)
        return grace is not None and grace.passed

    return is_over
