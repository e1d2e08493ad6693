"""Killed: what to do about a signal that ends a worker again and again."""

from __future__ import annotations

import signal

_MEMORY = (
    "out of memory, most likely (dmesg, or the pod's state, says so): more memory, fewer workers, or a smaller "
    "input.fetch_records and transaction.max_records"
)
_CRASH = (
    "native code of the transform crashes, most likely: PYTHONFAULTHANDLER=1 in the environment prints where. With poison.policy "
    "= 'dead-letter' or 'skip' a job gets past a record that does so (poison.max_deaths)"
)
_SENT = "find who sends the signal; to stop the job, send SIGTERM to its parent process"
_CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}


def fix_of(number: int) -> str:
    """What a person may do, by the signal's number."""
    if number == signal.SIGKILL:
        return _MEMORY
    return _CRASH if number in _CRASHES else _SENT
