"""Processes are known by id and start, end with their owner, and only they are ever signalled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from eos.base.deadline import Deadline
from eos.local.process import Guard, Identity, end, identity_of, pause, send, spawn
from tests.support.patience import PATIENCE_S

_SLEEP = ["sleep", "600"]
_BUSY = """
import hashlib, threading
def work():
    while True:
        hashlib.sha256(bytes(1 << 20))  # without Python's lock
for _ in range(8):
    threading.Thread(target=work).start()
print("busy", flush=True)
"""
_STUBBORN = ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"]


def _spawn(tmp_path: Path, command: list[str], *, owned: bool = True) -> tuple[Identity, Guard]:
    return spawn(command, directory=tmp_path, output=tmp_path / "out", owned=owned)


def _gone(identity: Identity) -> bool:
    return Deadline(PATIENCE_S).wait_for(lambda: not identity.alive)


def _finish(identity: Identity, guard: Guard) -> None:
    end([identity], grace_s=0)
    guard.join()


def test_output_goes_to_the_file(tmp_path: Path) -> None:
    identity, guard = _spawn(tmp_path, ["sh", "-c", "echo to out; echo to err >&2"])
    assert _gone(identity)
    _finish(identity, guard)
    assert (tmp_path / "out").read_text() == "to out\nto err\n"


def test_command_that_does_not_exist_is_never_alive_and_says_so(tmp_path: Path) -> None:
    identity, guard = _spawn(tmp_path, ["/no/such/java"])
    assert _gone(identity)
    _finish(identity, guard)
    assert "/no/such/java" in (tmp_path / "out").read_text()


def test_reused_process_id_is_not_taken_for_the_broker_and_not_signalled() -> None:
    """This test's own process has the id, but not the start."""
    impostor = Identity(os.getpid(), 0.0)
    assert not impostor.alive
    assert not send(impostor, signal.SIGKILL)
    assert end([impostor], grace_s=0) == []


@pytest.mark.skipif(not psutil.LINUX, reason="sets the clock as Linux shows it")
def test_process_is_known_after_the_clock_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its start is kept in a file. A broker that is not known any more would be neither stopped nor restarted."""
    before, boot = identity_of(os.getpid()), psutil.boot_time()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: boot + 3600)
    assert psutil.Process().create_time() > time.time() + 1800
    assert identity_of(os.getpid()) == before


def test_zombie_counts_as_ended() -> None:
    with subprocess.Popen(["true"]) as child:
        assert Deadline(PATIENCE_S).wait_for(lambda: identity_of(child.pid) is None)


@pytest.mark.parametrize("owned", [True, False])
def test_end_is_graceful_first(tmp_path: Path, owned: bool) -> None:
    waits = ["sh", "-c", "trap 'echo ended by TERM; exit' TERM; echo trapped; while :; do sleep 0.05; done"]
    identity, guard = _spawn(tmp_path, waits, owned=owned)
    out = tmp_path / "out"
    assert Deadline(PATIENCE_S).wait_for(lambda: out.exists() and "trapped" in out.read_text())
    assert end([identity], grace_s=PATIENCE_S) == []
    _finish(identity, guard)
    assert "ended by TERM" in (tmp_path / "out").read_text()


def test_stubborn_process_is_killed_after_the_grace(tmp_path: Path) -> None:
    identity, guard = _spawn(tmp_path, _STUBBORN)
    assert end([identity], grace_s=0.2) == []
    assert not identity.alive
    _finish(identity, guard)


def test_paused_process_is_alive_and_ends_gracefully(tmp_path: Path) -> None:
    identity, guard = _spawn(tmp_path, _SLEEP)
    assert send(identity, signal.SIGSTOP)
    assert identity.alive
    assert end([identity], grace_s=PATIENCE_S) == []
    _finish(identity, guard)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks at threads as Linux shows them")
def test_no_thread_of_a_paused_process_runs_on(tmp_path: Path) -> None:
    """More busy threads than processors: the one that takes the signal has to wait for its turn."""
    identity, guard = _spawn(tmp_path, [sys.executable, "-c", _BUSY])
    out = tmp_path / "out"
    try:
        assert Deadline(PATIENCE_S).wait_for(lambda: out.exists() and out.read_text() == "busy\n")
        assert pause(identity)
        states = [task.read_text().rpartition(")")[2].split()[0] for task in _tasks(identity)]
    finally:
        _finish(identity, guard)
    assert len(states) > 8
    assert set(states) == {"T"}


def _tasks(identity: Identity) -> list[Path]:
    return list(Path(f"/proc/{identity.pid}/task").glob("*/stat"))


def test_process_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    """The reason why PR_SET_PDEATHSIG is not used."""
    started: list[tuple[Identity, Guard]] = []
    thread = threading.Thread(target=lambda: started.append(_spawn(tmp_path, _SLEEP)))
    thread.start()
    thread.join(PATIENCE_S)
    identity, guard = started[0]
    Deadline(0.1).wait_for(lambda: not identity.alive)
    assert identity.alive
    _finish(identity, guard)


def _run_owner(tmp_path: Path, *, owned: bool, then: str) -> tuple[subprocess.Popen[str], Identity]:
    """Another Python that spawns a sleep, tells its id and then does something."""
    code = f"""
        import os, signal, sys, time
        from pathlib import Path
        from eos.local.process import spawn
        held = spawn({_SLEEP!r}, directory=Path({str(tmp_path)!r}), output=Path({str(tmp_path / "out")!r}), owned={owned})
        print(held[0].pid, flush=True)
        sys.stdin.readline()  # until the process is known, which may end with this one
        {then}
    """
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdin is not None
    assert owner.stdout is not None
    with owner.stdout, owner.stdin:
        identity = identity_of(int(owner.stdout.readline()))
    assert identity is not None
    return owner, identity


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_owner_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    owner, identity = _run_owner(tmp_path, owned=True, then="time.sleep(600)")
    owner.send_signal(number)
    owner.wait(PATIENCE_S)
    assert _gone(identity)


def test_owner_that_ends_normally_leaves_no_process(tmp_path: Path) -> None:
    owner, identity = _run_owner(tmp_path, owned=True, then="pass")
    owner.wait(PATIENCE_S)
    assert _gone(identity)


def test_killed_owner_leaves_no_paused_process(tmp_path: Path) -> None:
    owner, identity = _run_owner(
        tmp_path, owned=True, then="os.kill(held[0].pid, signal.SIGSTOP); time.sleep(600)"
    )
    assert Deadline(PATIENCE_S).wait_for(
        lambda: psutil.Process(identity.pid).status() == psutil.STATUS_STOPPED
    )
    owner.kill()
    owner.wait(PATIENCE_S)
    assert _gone(identity)


def test_process_in_the_background_outlives_its_starter(tmp_path: Path) -> None:
    owner, identity = _run_owner(tmp_path, owned=False, then="pass")
    owner.wait(PATIENCE_S)
    Deadline(0.1).wait_for(lambda: not identity.alive)
    assert identity.alive
    end([identity], grace_s=0)
