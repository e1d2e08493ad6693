"""One process of a local cluster: start it, end it by its id, pause and resume it.

A process is known by its id *and* its start, so that a process that was given the id of a dead one is never
taken for it, let alone killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from eos.base.deadline import Deadline

_KILL_TIMEOUT_S = 10.0  # SIGKILL is not refused; a process in disk wait takes as long as the disk
_PAUSE_TIMEOUT_S = 10.0  # milliseconds, unless the machine is very busy

# This shell is the process's parent. Its standard input is a pipe of which the owner holds the other end: the
# pipe ends when the owner is gone, killed or not, and then the process is killed. PR_SET_PDEATHSIG does
# this on Linux only, and for the *thread* that started the process: one that a short-lived thread restarted
# would die with that thread.
# "0" is the whole group: what the process itself has started (the executors of a Spark worker) ends with it,
# paused or not, and this shell too. The shell leads a session of its own, so no other process is in the group.
_GUARDED = """
output=$1; shift
exec 3<&0
"$@" </dev/null >>"$output" 2>&1 3<&- &
process=$!
echo "$process"
{ read -r _ <&3; kill -KILL 0; } >/dev/null 2>&1 &
exec 3<&- >/dev/null
wait "$process"
kill -KILL 0
"""
# This shell ends at once, and the process lives on as a child of init.
_DETACHED = """
output=$1; shift
"$@" </dev/null >>"$output" 2>&1 &
echo "$!"
"""


class Identity(NamedTuple):
    """A process id, and when that process started, in seconds since the machine did."""

    pid: int
    started: float

    @property
    def alive(self) -> bool:
        """Whether that very process runs (a paused one does, a zombie does not)."""
        return identity_of(self.pid) == self


def identity_of(pid: int) -> Identity | None:
    """The identity of the process that has that id now, or None if none runs."""
    try:
        process = psutil.Process(pid)
        if process.status() in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}:
            return None
        # A clock that is set moves both times, so their difference stays what it was when it was written to a file.
        return Identity(pid, round(process.create_time() - psutil.boot_time(), 2))
    except psutil.NoSuchProcess:
        return None


def live_pid(identity: Identity | None) -> int | None:
    """The id of a process that is alive."""
    return identity.pid if identity is not None and identity.alive else None


class Guard:
    """The parent shell of an owned process. That is killed when the last holder of this goes."""

    def __init__(self, shell: subprocess.Popen[str]) -> None:
        self._shell = shell

    def join(self, timeout_s: float = _KILL_TIMEOUT_S) -> None:
        """Let go of the process: the shell ends with it."""
        if self._shell.stdin is not None:
            self._shell.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._shell.wait(timeout_s)


def spawn(
    command: Sequence[str],
    *,
    directory: Path,
    output: Path,
    owned: bool,
    environment: Mapping[str, str] | None = None,
) -> tuple[Identity, Guard]:
    """Start a command in a session of its own, so that Ctrl-C in a terminal does not reach it.

    Args:
        command: what to run.
        directory: where it runs.
        output: the file that its standard output and error are appended to.
        owned: whether it is killed as soon as this process is gone. Children that this process forked
            without exec (multiprocessing's "fork") count as this process, they hold the same pipe.
        environment: its whole environment; default: this process's.

    Raises:
        OSError: no process could be started.
    """
    shell = subprocess.Popen(
        ["sh", "-c", _GUARDED if owned else _DETACHED, "sh", str(output), *command],
        cwd=directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        start_new_session=True,
    )
    assert shell.stdout is not None  # noqa: S101 - for the type checker: it is a pipe, see above
    with shell.stdout as answer:
        pid = int(answer.readline())
    # A command that has ended already has no identity any more; this one is never alive.
    identity = identity_of(pid) or Identity(pid, 0.0)
    guard = Guard(shell)
    if not owned:
        guard.join()  # that shell ends at once
    return identity, guard


def send(identity: Identity, number: signal.Signals, *, to_group: bool = False) -> bool:
    """Send a signal to that very process, or to all of the group that it leads; False if it has ended."""
    if not identity.alive:
        return False
    try:
        (os.killpg if to_group else os.kill)(identity.pid, number)
    except ProcessLookupError:
        return False
    return True


def connects_from(identity: Identity, port: int, *, with_children: bool = True) -> bool:
    """Whether that very process, or one that descends from it, has a TCP connection from this port of its own.

    Java connects to 127.0.0.1 by sockets of IPv6 too.
    """
    if not identity.alive:
        return False
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(identity.pid)
        for one in (process, *(process.children(recursive=True) if with_children else ())):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if any(held.laddr and held.laddr.port == port for held in one.net_connections("tcp")):
                    return True
    return False


def parents(identity: Identity) -> list[int]:
    """The process ids of its parent, that one's parent, and so on; none if it has ended."""
    try:
        return [one.pid for one in psutil.Process(identity.pid).parents()] if identity.alive else []
    except psutil.NoSuchProcess:
        return []


def children(identity: Identity) -> list[Identity]:
    """Every process that descends from that very one; none if it has ended."""
    if not identity.alive:
        return []
    with contextlib.suppress(psutil.NoSuchProcess):
        found = [identity_of(one.pid) for one in psutil.Process(identity.pid).children(recursive=True)]
        return [one for one in found if one is not None]
    return []


def works_in(directory: str) -> list[int]:
    """The ids of the processes whose working directory this is, as far as this user may ask."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cwd() == directory:
                found.append(process.pid)
    return found


def pause(identity: Identity) -> bool:
    """SIGSTOP, and wait until that very process stands still; False if it has ended.

    One of its threads takes the signal. Until that one gets a processor the others run on, and a broker answers.
    """
    if not send(identity, signal.SIGSTOP):
        return False
    Deadline(_PAUSE_TIMEOUT_S).wait_for(lambda: _stands_still(identity.pid))
    return True


def _stands_still(pid: int) -> bool:
    """Whether no thread of a process runs; taken for granted where threads have no ids of their own (macOS)."""
    if not psutil.LINUX:
        return True
    try:
        threads = psutil.Process(pid).threads()
        return all(psutil.Process(thread.id).status() == psutil.STATUS_STOPPED for thread in threads)
    except psutil.NoSuchProcess:  # a thread has just ended
        return False


def end(identities: Iterable[Identity], *, grace_s: float) -> list[Identity]:
    """End processes together: SIGTERM, and SIGKILL to those that are still there after ``grace_s``.

    Returns:
        The processes that survived even that (in disk wait, for example).
    """
    left = [identity for identity in identities if identity.alive]
    if grace_s > 0:
        for identity in left:
            send(identity, signal.SIGTERM)
            send(identity, signal.SIGCONT)  # a paused process takes no SIGTERM
        Deadline(grace_s).wait_for(lambda: not any(identity.alive for identity in left))
    for identity in left:
        send(identity, signal.SIGKILL)
    Deadline(_KILL_TIMEOUT_S).wait_for(lambda: not any(identity.alive for identity in left))
    return [identity for identity in left if identity.alive]
