"""How a command ends: an error as one message on stderr, and the exit code that fits."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from eos.errors import EosError
from eos.exits import ExitCode, exit_code_of

_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
_TERMINATED = 143  # 128 + SIGTERM, the same
_INIT = 1  # the process id of a container's first process


class _Shown:
    """What an error's message is accompanied by; set by ``--debug`` or ``observe.log_level``."""

    traceback = False


def show_tracebacks() -> None:
    """From now on an error is printed with the place that it was raised at."""
    _Shown.traceback = True


def end_with_code(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line (of the process, if none is given) and exit.

    A usage error exits with 2, as a wrong setting does. An error that is not ours is a bug, here or in the
    job's module: Python prints its traceback and exits with 1.

    Raises:
        SystemExit: always.
    """
    _Shown.traceback = False
    _answer_sigterm_as_init()
    try:
        from eos.cli.app import app

        app(None if arguments is None else list(arguments), prog_name="eos")
    except EosError as error:
        if _Shown.traceback:
            traceback.print_exc()
        code = exit_code_of(error)
        complain(f"{error}")
        sys.exit(int(code))
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    sys.exit(int(ExitCode.DONE))


def _answer_sigterm_as_init() -> None:
    """End at SIGTERM until a command has a handler of its own.

    For the first process of a container the kernel drops a signal whose action is the default one: a pod that waits
    for its brokers while it starts could only be ended by SIGKILL, after the whole grace period.
    """
    if os.getpid() == _INIT and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    del number, frame
    raise SystemExit(_TERMINATED)


def complain(message: str) -> None:
    """One message on stderr. Plain text: a terminal's width must not cut what an operator searches for."""
    print(f"eos: {message}", file=sys.stderr, flush=True)  # noqa: T201 - the command's own output
