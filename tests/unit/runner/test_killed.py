"""A job that gives its workers up says what to do about the signal that ended them."""

from __future__ import annotations

import signal

import pytest

from eos.runner.killed import fix_of


@pytest.mark.parametrize(
    ("number", "named"),
    [
        (signal.SIGKILL, "out of memory"),
        (signal.SIGSEGV, "PYTHONFAULTHANDLER=1"),
        (signal.SIGABRT, "poison.max_deaths"),
        (signal.SIGTERM, "SIGTERM to its parent process"),
        (40, "find who sends the signal"),  # a real-time signal has no name
    ],
)
def test_the_fix_fits_the_signal(number: int, named: str) -> None:
    assert named in fix_of(number)
