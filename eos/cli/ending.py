"""What a command prints about an error: one message on stderr, with its traceback on demand."""

from __future__ import annotations

import sys


class _Shown:
    """Whether errors are printed with their traceback: ``--debug``, or ``observe.log_level = debug``."""

    traceback = False


def show_tracebacks(show: bool = True) -> None:
    """From now on print errors with the place that they were raised at, or not."""
    _Shown.traceback = show


def shows_tracebacks() -> bool:
    """Whether errors are printed with the place that they were raised at."""
    return _Shown.traceback


def complain(message: str) -> None:
    """One message on stderr. Plain text: a terminal's width must not cut what an operator searches for."""
    print(f"eos: {message}", file=sys.stderr, flush=True)  # noqa: T201 - the command's own output
