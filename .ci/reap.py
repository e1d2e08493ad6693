"""Run a command, and end all that it has started with it: whatever session it is in, and whoever its parent was.

    python .ci/reap.py COMMAND [ARGUMENT...]

SIGINT, SIGTERM or SIGHUP ask the command to end in order: its process group gets a SIGINT, which makes pytest tear down
what its fixtures have started. What is left a while after the command's end is killed by its process id; a second signal
kills at once. Exits as the command did, or with 128 and the signal's number.

Brokers, Spark and Docker's engine run in sessions of their own, where no signal to a process group reaches them, and a
process whose parent is gone has another one. Linux makes this process that other one (PR_SET_CHILD_SUBREAPER), so all of
them are found below it. Elsewhere only the command's process group is ended.
"""
# ruff: noqa: INP001 - a script

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

_IN_ORDER_S = 30.0  # for the command to end once it was asked to
_REST_S = 10.0  # for what it has left behind; a child that removes containers takes a few seconds
_KILLED_S = 10.0  # SIGKILL is not refused; a process in disk wait takes as long as the disk
_STEP_S = 0.1
_PR_SET_CHILD_SUBREAPER = 36
_ASKING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


def run(command: Sequence[str]) -> int:
    """Run the command; returns the exit code for this process."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_ASKING, signal.SIGCHLD})

    def as_before() -> None:
        signal.signal(
            signal.SIGINT, signal.SIG_DFL
        )  # a shell's background ignores it, and so would all below
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    child = subprocess.Popen(command, process_group=0, preexec_fn=as_before)  # noqa: PLW1509 - there are no threads
    status, asked = _until_ended(child.pid)
    _end_the_rest(child.pid, at_once=len(asked) > 1)
    child.returncode = status
    if asked:
        return 128 + asked[0]
    return status if status >= 0 else 128 - status


def _until_ended(pid: int) -> tuple[int, list[int]]:
    """The command's status and the signals that came meanwhile; after the first one it has a while, after a second none."""
    asked: list[int] = []
    deadline: float | None = None
    while True:
        for ended, status in _reaped():
            if ended == pid:
                return os.waitstatus_to_exitcode(status), asked
        if deadline is not None and time.monotonic() >= deadline:
            _kill(pid)
            deadline = None
        came = signal.sigtimedwait({*_ASKING, signal.SIGCHLD}, 1.0 if deadline is None else _STEP_S)
        if came is None or came.si_signo == signal.SIGCHLD:
            continue
        asked.append(came.si_signo)
        if len(asked) == 1:
            os.killpg(pid, signal.SIGINT)
            deadline = time.monotonic() + _IN_ORDER_S
        else:
            deadline = time.monotonic()


def _end_the_rest(pid: int, *, at_once: bool) -> None:
    deadline = time.monotonic() + (0.0 if at_once else _REST_S)
    while _alive() and time.monotonic() < deadline:
        came = signal.sigtimedwait(_ASKING, _STEP_S)
        if came is not None:
            break
    deadline = time.monotonic() + _KILLED_S
    while _kill(pid) and time.monotonic() < deadline:
        time.sleep(_STEP_S)


def _kill(group: int) -> int:
    """SIGKILL to all that is left; returns how many processes that were."""
    left = _alive()
    for pid in left:
        _send(pid)
    if sys.platform != "linux":
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return 0
    return len(left)


def _send(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
        os.kill(pid, signal.SIGKILL)


def _reaped() -> Iterator[tuple[int, int]]:
    """Children that have ended, those included that came here when their parents had gone."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def _alive() -> list[int]:
    """All processes below this one."""
    for _ in _reaped():
        pass
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # it has ended meanwhile
        if state not in "ZX":
            children.setdefault(int(parent), []).append(int(stat.parent.name))
    found: list[int] = []
    below = [os.getpid()]
    while below:
        below = [child for parent in below for child in children.get(parent, ())]
        found += below
    return found


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
