"""Where an exception was raised: in which line of the job's code (not of a library that it calls), and below which call."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

_EOS = Path(__file__).parents[1]
_LIBRARIES = tuple(
    Path(path)
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
    if (path := sysconfig.get_path(name))
)


def raised_at(error: BaseException) -> str:
    """`` at file:line``: the last line outside of libraries, and of eos; nothing where none is known.

    A job that is installed as a library itself: the first line behind eos's own.
    """
    frames = [
        one
        for one in traceback.extract_tb(error.__traceback__)
        if not Path(one.filename).is_relative_to(_EOS)
    ]
    if not frames:
        return ""
    users = [one for one in frames if not _of_a_library(one.filename)] or frames[:1]
    return f" at {users[-1].filename}:{users[-1].lineno}"


def _of_a_library(filename: str) -> bool:
    path = Path(filename)
    return filename.startswith("<") or any(path.is_relative_to(one) for one in _LIBRARIES)


def of_a_signal_handler(error: BaseException) -> bool:
    """Whether an exception comes from code below the frame that has caught it, and not from the client's call itself.

    A handler is Python code, with a frame of its own; Python's own handler of SIGINT has none.
    """
    below = error.__traceback__ is not None and error.__traceback__.tb_next is not None
    return below or isinstance(error, KeyboardInterrupt)
