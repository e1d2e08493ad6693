"""How a command ends: its exit code, and what it prints about an error."""

from __future__ import annotations

import sys
from types import FrameType
from typing import NoReturn

import typer

from eos.errors import EndedBySignal
from eos.exits import ExitCode


class Errors:
    """How errors are printed."""

    with_traceback = False  # set by --debug, or observe.log_level = debug


def complain(message: str) -> None:
    """One message on stderr. Plain text: a terminal's width must not cut what an operator searches for."""
    print(f"eos: {message}", file=sys.stderr, flush=True)  # noqa: T201 - the command's own output


def end_with(code: ExitCode, message: str = "") -> NoReturn:
    """End the command with this exit code, and say why."""
    if message:
        complain(message)
        leave(message)
    raise typer.Exit(int(code))


def leave(message: str) -> None:
    """What ends the process, also where Kubernetes shows it."""
    from eos.observe.termination import note_termination

    note_termination(message)


def end_at_signal(number: int, frame: FrameType | None) -> NoReturn:
    """A handler that ends the process with the exit code that a shell reports for the signal."""
    del frame
    raise EndedBySignal(128 + number)
