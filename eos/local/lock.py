"""A lock between processes: a file that one of them holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from eos.errors import RetriableError

_POLL_S = 0.02


@contextmanager
def locked(path: Path, *, timeout_s: float, purpose: str) -> Iterator[None]:
    """Hold an exclusive lock on a file; the system releases it if this process dies.

    Raises:
        RetriableError: another process has held it for ``timeout_s``.
    """
    try:
        held = FileLock(path, timeout=timeout_s, poll_interval=_POLL_S).acquire()
    except Timeout as error:
        raise RetriableError(
            f"another process has held {path} for {timeout_s:.0f} s ({purpose}). Fix: try again when it is done"
        ) from error
    with held:
        yield
