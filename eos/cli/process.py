"""The `eos` command as a process: from its arguments to its exit code."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NoReturn

from eos.cli.ending import Errors, complain, end_at_signal, leave
from eos.errors import EosError
from eos.exits import ExitCode, exit_code_of

_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
_HELP = frozenset({"-h", "--help"})
_INIT = 1  # the process id of a container's first process


def end_with_code(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line (of the process, if none is given) and exit.

    A usage error exits with 2, as a wrong setting does. An error that is not ours is a bug, here or in the
    job's module: Python prints its traceback and exits with 1.

    Raises:
        SystemExit: always.
    """
    Errors.with_traceback = False
    _answer_sigterm_as_init()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with _worker_at_its_imports(given):
            from eos.cli.app import app

            app(given, prog_name="eos")
    except EosError as error:
        if Errors.with_traceback:
            traceback.print_exc()
        complain(str(error))
        _leave(error)
        sys.exit(int(exit_code_of(error)))
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except Exception as error:
        _leave(error)
        raise
    sys.exit(int(ExitCode.DONE))


def _worker_at_its_imports(given: Sequence[str]) -> AbstractContextManager[None]:
    """`eos run` takes 0.1 s to load its command line. With two processors a worker does the half of its imports meanwhile."""
    if given[:1] != ["run"] or _HELP.intersection(given):
        return nullcontext()
    from eos.runner.processes import standing_by

    return standing_by()


def _leave(error: Exception) -> None:
    from eos.observe.quoting import shown_error

    leave(shown_error(error, texts=False))


def _answer_sigterm_as_init() -> None:
    """End at SIGTERM until a command has a handler of its own.

    For the first process of a container the kernel drops a signal whose action is the default one: a pod that waits
    for its brokers while it starts could only be ended by SIGKILL, after the whole grace period.
    """
    if os.getpid() == _INIT and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end_at_signal)
