"""`.ci/run` and `make test` end all that they have started, in whatever session that runs by then."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from eos.base.deadline import Deadline
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux gives the orphans of a process to it"
)

_REPOSITORY = Path(__file__).parents[2]
_STEPS = "venv lint types arch audit docs wheel images"

# What stands for pytest: it has a worker, which has started a broker in a session of its own; the worker's own end is
# noticed by nobody. "stubborn": it does not end when it is asked to.
_PYTEST = """
import os, signal, subprocess, sys, time
where, how = sys.argv[1:]
broker = "import os, time; open('{where}/broker', 'w').write(str(os.getpid())); time.sleep(300)"
worker = (
    "import os, subprocess, sys, time; "
    "subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True); "
    "open(sys.argv[2] + '/worker', 'w').write(str(os.getpid())); time.sleep(300)"
)
if how == "stubborn":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
if how == "detached":  # its parent is gone at once
    subprocess.Popen(["sh", "-c", '"$0" -c "$1" &', sys.executable, broker.format(where=where)], start_new_session=True).wait()
    while not os.path.exists(where + "/broker"):
        time.sleep(0.01)
    sys.exit(7)
subprocess.Popen([sys.executable, "-c", worker, broker.format(where=where), where], start_new_session=True)
try:
    time.sleep(300)
except KeyboardInterrupt:
    open(where + "/torn-down", "w").close()
"""

Tree = Callable[[str], Path]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A maker of a source tree whose steps before the tests do nothing."""

    def make(how: str) -> Path:
        (tmp_path / ".ci").mkdir()
        (tmp_path / ".venv" / "bin").mkdir(parents=True)
        for name in ("run", "reap.py"):
            shutil.copy(_REPOSITORY / ".ci" / name, tmp_path / ".ci")
        reap = tmp_path / ".ci" / "reap.py"
        reap.write_text(reap.read_text().replace("_REST_S = 10.0", "_REST_S = 0.5"))
        for name in (".ci/docker_engine", ".ci/prometheus", ".venv/bin/python"):
            (tmp_path / name).write_text(
                f'#!/bin/sh\n[ "$1" != start ] || exit 1\necho "{name} $1" >>{tmp_path}/calls\n'
            )
            (tmp_path / name).chmod(0o755)
        (tmp_path / "tests.py").write_text(_PYTEST)
        test = f"{sys.executable} tests.py {tmp_path} {how.replace(' ', '-')}"
        if how == "by make":
            test = f"{sys.executable} .ci/reap.py {test}"
        (tmp_path / "Makefile").write_text(f"{_STEPS}:\n\t@:\ntest:\n\t@{test}\n")
        return tmp_path

    return make


@contextmanager
def running(*command: str, cwd: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (cwd / "out").open("w") as out:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHON": sys.executable},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        for noted in ("worker", "broker"):
            if (cwd / noted).exists() and psutil.pid_exists(pid := int((cwd / noted).read_text())):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait(PATIENCE_S)


def started(where: Path, name: str) -> psutil.Process:
    noted = where / name
    assert Deadline(PATIENCE_S).wait_for(lambda: noted.exists() and noted.read_text() != ""), (
        where / "out"
    ).read_text()
    return psutil.Process(int(noted.read_text()))


@pytest.mark.parametrize("command", [[".ci/run"], ["make", "test"]], ids=["ci", "make"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_tests_in_order_and_then_all_that_they_have_started(
    tree: Tree, command: list[str], number: signal.Signals
) -> None:
    where = tree("by make" if command[0] == "make" else "by ci")
    with running(*command, cwd=where) as process:
        left = [started(where, "worker"), started(where, "broker")]
        process.send_signal(number)
        # make does not pass Ctrl-C on: a terminal sends it to the whole group.
        if command[0] == "make" and number == signal.SIGINT:
            os.killpg(process.pid, number)
        code = process.wait(PATIENCE_S)
        assert code in (128 + number, -number, 2), (where / "out").read_text()
        assert not [one for one in left if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert (where / "torn-down").exists()
    if command == [".ci/run"]:
        assert code == 128 + number
        assert ".ci/docker_engine stop" in (where / "calls").read_text(), "its own end was not in order"


def test_second_signal_ends_what_does_not_end_in_order(tree: Tree) -> None:
    where = tree("stubborn")
    with running(".ci/run", cwd=where) as process:
        left = [started(where, "worker"), started(where, "broker")]
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
        assert not [one for one in left if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def test_process_that_tests_leave_behind_ends_with_them_and_the_exit_code_is_theirs(tree: Tree) -> None:
    where = tree("detached")
    command = [sys.executable, ".ci/reap.py", sys.executable, "tests.py", str(where), "detached"]
    with running(*command, cwd=where) as process:
        assert process.wait(PATIENCE_S) == 7
        broker = int((where / "broker").read_text())
        assert not psutil.pid_exists(broker) or psutil.Process(broker).status() == psutil.STATUS_ZOMBIE
