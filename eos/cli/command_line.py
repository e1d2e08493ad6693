"""Command line: the `eos` command as a process, from its arguments to its exit code."""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import NoReturn

from eos.base.printable import printable_lines
from eos.cli.exit import Errors, answer_is_written, complain, drop_answer, end_at_signal, leave
from eos.errors import EndedBySignal, EosError
from eos.exits import ExitCode, exit_code_of
from eos.pages import page_of

_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EBADF, errno.EIO})
_PRINTERS = frozenset({"click", "rich", "typer"})  # they write to stdout
_HELP = frozenset({"-h", "--help"})
_INIT = 1  # the process id of a container's first process


def end_with_code(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line (of the process, if none is given) and exit.

    A usage error exits with 2, as a wrong setting does. An error that is not ours is a bug, here or in the
    job's module: Python prints its traceback and exits with 1.

    Raises:
        SystemExit: always.
    """
    _open_standard_streams()
    Errors.with_traceback = Errors.in_the_log = False
    _answer_sigterm_as_init()
    try:
        code = _code_of(list(sys.argv[1:] if arguments is None else arguments))
        if not answer_is_written() and code == ExitCode.DONE:
            code = ExitCode.UNEXPECTED
    except KeyboardInterrupt:  # also one that came while an error was printed
        code = _INTERRUPTED
    sys.exit(int(code))


def _code_of(given: list[str]) -> int:
    """Run the command line; what went wrong is printed."""
    try:
        with _worker_at_its_imports(given):
            from eos.cli.app import app

            if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            app(given, prog_name="eos")
    except SystemExit as ended:
        if isinstance(ended, EndedBySignal) or not isinstance(ended.code, int):
            raise
        return ended.code
    except EosError as error:
        if Errors.with_traceback:
            _print_traceback(error)
        code = exit_code_of(error)
        complain(str(error), page=page_of(code, str(error)))
        _leave(error)
        return code
    except OSError as error:
        if not _is_of_stdout(error):
            _leave(error)
            _print_traceback(error)
        return ExitCode.UNEXPECTED
    except Exception as error:  # noqa: BLE001 - a bug, here or in the job's module
        _leave(error)
        _print_traceback(error)
        return ExitCode.UNEXPECTED
    return ExitCode.DONE


def _is_of_stdout(error: OSError) -> bool:
    """Whether stdout refused a line (the device is full, say), which is then said in a line on stderr."""
    *_, (innermost, _) = traceback.walk_tb(error.__traceback__)
    printing = str(innermost.f_globals.get("__name__", "")).partition(".")[0] in _PRINTERS
    if not (printing and error.errno in _FULL):
        return False
    drop_answer()
    complain(f"stdout takes no more: {error.strerror}. Fix: send it where there is room")
    return True


def _print_traceback(error: BaseException) -> None:
    """As Python does, but what the error's text holds cannot drive the terminal."""
    with suppress(OSError, ValueError):
        sys.stderr.write(printable_lines("".join(traceback.format_exception(error))))
        sys.stderr.flush()


def _open_standard_streams() -> None:
    """Let the streams that this process was started without lead to nowhere.

    The next file that is opened would take a closed one's number, and with it whatever any library prints.
    """
    names = ("stdin", "stdout", "stderr")
    for number in range(len(names)):  # all three, before any other file is opened
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)
    for number, name in enumerate(names):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115 - for the process's life
            setattr(sys, f"__{name}__", getattr(sys, name))


def _worker_at_its_imports(given: Sequence[str]) -> AbstractContextManager[None]:
    """`eos run` takes 0.1 s to load its command line. With two processors a worker does the half of its imports meanwhile."""
    if given[:1] != ["run"] or _HELP.intersection(given):
        return nullcontext()
    from eos.runner.processes import standing_by

    return standing_by()


def _leave(error: Exception) -> None:
    from eos.ops.observe.quoting import shown_error

    leave(shown_error(error, texts=False))


def _answer_sigterm_as_init() -> None:
    """End at SIGTERM until a command has a handler of its own.

    For the first process of a container the kernel drops a signal whose action is the default one: a pod that waits
    for its brokers while it starts could only be ended by SIGKILL, after the whole grace period.
    """
    if os.getpid() == _INIT and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end_at_signal)
