"""Termination: what ended a process, also in the file that Kubernetes shows as the last state of its container."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from eos.base.printable import printable_lines
from eos.settings.secrets import hidden
from eos.settings.tables import ObserveSettings

_MAX_BYTES = 4096  # of which Kubernetes shows no more


class TerminationLog:
    """Where it is, for this process."""

    path: Path | None = ObserveSettings().termination_log


def note_termination(text: str) -> None:
    """Add what ended this process, if the file is there, may be written and has room.

    What comes first stays: a worker's error is the cause of its parent's.
    """
    line = f"{printable_lines(str(hidden('text', text)), indent='  ')}\n".encode()
    with suppress(OSError):  # an error must not end in another one
        file = os.open(TerminationLog.path or "", os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
        try:
            found = os.fstat(file)
            if stat.S_ISREG(found.st_mode):
                os.write(file, line[: max(0, _MAX_BYTES - found.st_size)])
        finally:
            os.close(file)
