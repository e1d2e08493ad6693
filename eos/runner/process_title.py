"""The name of a worker process in ``ps`` and ``top``: without it all of them are Python with the same arguments.

The arguments are written over where the kernel reads them (Linux). A package does the same on more systems; a name is not worth a
dependency.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

_PR_SET_NAME = 15
_MAX_NAME_BYTES = 15  # of the kernel, for top
_ARG_START, _ARG_END = 48, 49  # the numbers of fields in /proc/PID/stat (proc(5))
_STATE = 3  # the number of the first one behind the command, which may hold spaces


def name_process(title: str, *, short: str) -> None:
    """Let this process be called so, and in `top` by the short name; call it from the main thread. Nothing where it can't be."""
    with suppress(OSError, ValueError, IndexError, AttributeError):
        stat = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
        fields = stat[stat.rindex(")") + 1 :].split()
        start, end = int(fields[_ARG_START - _STATE]), int(fields[_ARG_END - _STATE])
        room = end - start
        if start and room > 0:
            text = title.encode(errors="replace")[: room - 1]
            ctypes.memmove(start, text.ljust(room, b"\0"), room)
        ctypes.CDLL(None).prctl(_PR_SET_NAME, short.encode(errors="replace")[:_MAX_NAME_BYTES], 0, 0, 0)
