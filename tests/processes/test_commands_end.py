"""Commands and workers that end at once, seen from outside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from eos.cli.listening import listen, prepare
from eos.exits import ExitCode
from eos.observe.termination import TerminationLog
from eos.runner.messages import Plan
from eos.runner.supervisor import run_workers
from eos.settings import Settings
from tests.proof.trials import trial

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
        process.wait(60)


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
