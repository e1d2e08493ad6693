"""Commands and workers that end at once, seen from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from eos.cli.worker_listener import listen, prepare
from eos.exits import ExitCode
from eos.ops.observe.termination import TerminationLog
from eos.runner.messages import Plan
from eos.runner.supervisor import run_workers
from eos.settings import Settings
from tests.proof.trials import trial
from tests.support.patience import PATIENCE_S

_REPOSITORY = Path(__file__).parents[2]


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "eos.cli", "config", "describe"],
        cwd=_REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        process.wait(PATIENCE_S)


_INTERRUPTS = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            sys.meta_path.remove(self)
            if {in_callback}:
                type("Dies", (), {{"__del__": lambda self: os.kill(os.getpid(), signal.SIGINT)}})()
            else:
                os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
"""


@pytest.mark.parametrize("in_callback", [False, True], ids=["", "where Python drops an exception"])
def test_ctrl_c_while_a_command_is_at_its_imports_ends_it_at_once(tmp_path: Path, in_callback: bool) -> None:
    """It printed a traceback of the imports; or the command went on as if nothing had been pressed."""
    (tmp_path / "sitecustomize.py").write_text(_INTERRUPTS.format(in_callback=in_callback))
    ended = subprocess.run(
        [sys.executable, "-c", "from eos.cli import main; main()", "config", "describe", "poison"],
        cwd=_REPOSITORY,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{_REPOSITORY}"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


def test_the_error_of_a_worker_is_in_the_termination_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "termination-log"
    file.touch()
    monkeypatch.setattr(TerminationLog, "path", file)
    settings = Settings.load(
        overrides={"kafka.bootstrap_servers": "127.0.0.1:1", "observe.termination_log": str(file)}, environ={}
    )
    code = run_workers(
        Plan("no.such.module:job", tmp_path, settings, False, listen, prepare),
        on_report=lambda *_: None,
        on_restart=lambda _: None,
    )
    assert code is ExitCode.CONFIGURATION
    assert file.read_text().startswith("ConfigError: ")
    assert "no.such.module" in file.read_text()


def test_trial_that_eos_prove_refuses_is_no_result(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"exit code 2.*--only quake"):
        trial("tests.proof.jobs:copy --only quake", minutes=1).run(tmp_path)
