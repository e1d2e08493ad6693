"""Process limits: what a process can run out of, so that neither a record nor a broker is blamed for it."""

from __future__ import annotations

import errno
import os

_LACKS = {
    errno.EMFILE: "file descriptors (ulimit -n)",
    errno.ENFILE: "file descriptors (of the whole machine: fs.file-max)",
    errno.ENOMEM: "memory",
    errno.ENOSPC: "room on a disk",
    errno.EDQUOT: "room in its disk quota",
}
_NO_THREAD = "can't start new thread"  # of CPython


def lacking(error: BaseException) -> str:
    """What an exception says that this process has no more of; "" if it says something else."""
    if isinstance(error, MemoryError):
        return "memory"
    if isinstance(error, OSError):
        return _LACKS.get(error.errno or 0, "")
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        return "threads (ulimit -u, or the container's limit of processes)"
    return ""


def no_descriptor_left() -> str:
    """The lack of file descriptors, by opening one; "" while there are some.

    librdkafka tells a socket that it cannot open from a broker that does not answer by a line in its log only (2.16).
    """
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return lacking(error)
    return ""
