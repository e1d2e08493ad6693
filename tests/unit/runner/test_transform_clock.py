"""TransformClock: what a parent sees of the transforms of a process."""

from __future__ import annotations

import threading
from ctypes import c_double
from typing import cast

from eos.runner.transform_clock import NOT_RUNNING, TransformClock
from tests.support.patience import PATIENCE_S

_WAIT_S = 0.5


class _Slow:
    """A `c_double`. The first writer that says a call still runs stands still for a moment before it writes."""

    def __init__(self) -> None:
        self._value = NOT_RUNNING
        self.armed = False
        self.late = threading.Event()
        self.other_has_returned = threading.Event()

    @property
    def value(self) -> float:
        return self._value

    @value.setter
    def value(self, value: float) -> None:
        if self.armed and value != NOT_RUNNING and not self.late.is_set():
            self.late.set()
            self.other_has_returned.wait(_WAIT_S)
        self._value = value


def test_oldest_call_is_shown_until_it_returns() -> None:
    clock, shared = TransformClock(), c_double(NOT_RUNNING)
    clock.share(shared)
    with clock.running("a"):
        first = shared.value
        assert first > NOT_RUNNING
        with clock.running("b"):
            assert shared.value == first
    assert shared.value == NOT_RUNNING


def test_calls_that_return_together_leave_none_behind() -> None:
    """Else a parent would kill a process that waits for input, because of a call that has long returned."""
    clock, shared = TransformClock(), _Slow()
    clock.share(cast("c_double", shared))
    a, b = clock.running("a"), clock.running("b")
    a.__enter__()
    b.__enter__()
    shared.armed = True
    first = threading.Thread(target=a.__exit__, args=(None, None, None))
    first.start()
    assert shared.late.wait(PATIENCE_S)
    b.__exit__(None, None, None)
    shared.other_has_returned.set()
    first.join()
    assert shared.value == NOT_RUNNING
