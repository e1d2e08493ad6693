"""How a command ends: its exit code, and what it prints about an error."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from types import FrameType
from typing import NoReturn

import typer

from eos.base.printable import printable_lines
from eos.errors import EndedBySignal
from eos.exits import ExitCode
from eos.pages import page_of


class Errors:
    """How errors are printed."""

    with_traceback = False  # set by --debug, or observe.log_level = debug
    in_the_log = False  # set where the logs of this process are JSON


def complain(message: str, *, page: str = "") -> None:
    """One message on stderr. Plain text: a terminal's width must not cut what an operator searches for.

    Where this process's logs are JSON, it is a line of the log: whatever reads them reads this one too.

    Args:
        message: what is to be said.
        page: of the documentation, which says more: a line of its own, or a field of the log's line.
    """
    if Errors.in_the_log:
        logging.getLogger("eos.cli").error("%s", message, extra={"docs": page} if page else None)
        return
    if page:
        message = f"{message}\nsee {page}".lstrip()
    with suppress(OSError, ValueError):  # a stderr that is gone, or full, is no reason for another end
        print(f"eos: {printable_lines(message, indent='  ')}", file=sys.stderr, flush=True)  # noqa: T201 - the command's own output


def answer_is_written() -> bool:
    """Whether stdout has taken all that was printed. If not, what is left is dropped, so that Python does not try again."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        drop_answer()  # its reader has seen enough
    except OSError as error:
        drop_answer()
        complain(f"stdout takes no more: {error.strerror}. Fix: send it where there is room")
        return False
    return True


def drop_answer() -> None:
    """Send to nowhere what stdout does not take."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def end_with(code: ExitCode, message: str = "") -> NoReturn:
    """End the command with this exit code, and say why."""
    if code is not ExitCode.DONE:
        complain(message, page=page_of(code, message))
    if message:
        leave(message)
    raise typer.Exit(int(code))


def leave(message: str) -> None:
    """What ends the process, also where Kubernetes shows it."""
    from eos.ops.observe.termination import note_termination

    note_termination(message)


def end_at_signal(number: int, frame: FrameType | None) -> NoReturn:
    """A handler that ends the process with the exit code that a shell reports for the signal."""
    del frame
    raise EndedBySignal(128 + number)
