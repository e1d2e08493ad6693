"""Child processes are awaited by their output, signalled, and never outlive their block."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from eos.base.deadline import Deadline
from eos.local.process import identity_of
from tests.support.patience import PATIENCE_S
from tests.support.processes import running, running_module

FOREVER = "import time; print('ready'); time.sleep(600)"


def test_child_ends_with_its_block() -> None:
    with running(FOREVER) as child:
        child.wait_line("^ready$", PATIENCE_S)
        assert child.alive
    assert identity_of(child.pid) is None


def test_stopped_child_and_its_own_children_end_with_its_block() -> None:
    code = (
        "import subprocess, sys\n"
        "inner = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print('inner', inner.pid)\n"
        "inner.wait()\n"
    )
    with running(code) as child:
        inner = int(child.wait_line("inner", PATIENCE_S).split()[1])
        child.pause()
    assert Deadline(PATIENCE_S).wait_for(lambda: identity_of(inner) is None)


def test_exit_code_and_output_are_seen() -> None:
    code = "import os, sys; print(os.environ['WORD'], sys.argv[1]); sys.exit(3)"
    with running(code, "argument", env={"WORD": "hello"}) as child:
        assert child.wait_line("hello", PATIENCE_S) == "hello argument"
        assert child.wait(PATIENCE_S) == 3


def test_repository_is_importable_and_a_path_can_be_run(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import eos.errors; print(eos.errors.FencedError.__name__)")
    with running(script) as child:
        child.wait_line("FencedError", PATIENCE_S)


def test_module_can_be_run() -> None:
    with running_module("platform") as child:
        assert child.wait(PATIENCE_S) == 0
        assert child.lines


def test_kill_waits_for_the_end() -> None:
    with running(FOREVER) as child:
        child.wait_line("ready", PATIENCE_S)
        child.kill()
        assert not child.alive
        assert child.wait(PATIENCE_S) == -signal.SIGKILL


def test_paused_child_prints_nothing_until_resumed() -> None:
    with running("import time\nfor i in range(10**6): print(i); time.sleep(0.01)") as child:
        child.wait_line("^3$", PATIENCE_S)
        child.pause()
        before = -1
        while before != len(child.lines):  # what it had printed before arrives
            before = len(child.lines)
            time.sleep(0.2)
        with pytest.raises(TimeoutError):
            child.wait_line(".", 0.2, after=before)
        child.resume()
        child.wait_line(".", PATIENCE_S, after=before)


def test_terminate_lets_it_say_goodbye() -> None:
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('bye'), sys.exit(0)))\n"
        "print('ready'); time.sleep(600)"
    )
    with running(code) as child:
        child.wait_line("ready", PATIENCE_S)
        child.terminate()
        child.wait_line("bye", PATIENCE_S)
        assert child.wait(PATIENCE_S) == 0


def test_line_that_never_comes_is_a_timeout() -> None:
    with running(FOREVER) as child, pytest.raises(TimeoutError, match="without printing 'other'"):
        child.wait_line("other", 0.2)


def test_early_end_is_told_at_once_with_the_output() -> None:
    with pytest.raises(TimeoutError, match="ended without printing") as raised, running("1/0") as child:
        child.wait_line("ready", 600)
    assert "ZeroDivisionError" in "".join(raised.value.__notes__)


def test_wait_on_a_running_child_times_out() -> None:
    with running(FOREVER) as child, pytest.raises(TimeoutError, match="still runs"):
        child.wait(0.1)
