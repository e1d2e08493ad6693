"""`eos init`: the commands of the README that it writes lead, as they stand, to a proven run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from eos.exits import ExitCode
from tests.support.consoles import commands, run
from tests.support.documents import REPOSITORY

pytestmark = pytest.mark.broker

_README_S = 200
_TO_THE_PROOF = 5


def _eos(directory: Path, *words: str) -> int:
    done = subprocess.run([sys.executable, "-m", "eos.cli", *words], cwd=directory, check=False)
    return done.returncode


def test_the_commands_of_a_new_job_s_readme_lead_to_a_proven_run(tmp_path: Path) -> None:
    assert _eos(tmp_path, "init", "orders") == ExitCode.DONE
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        "README.md",
        "orders.py",
        "orders.toml",
        "test_orders.py",
    ]
    shown = [one.line for one in commands(str(tmp_path / "README.md"))]
    environment = {
        "EOS_LOCAL__JARS": os.environ.get("EOS_LOCAL__JARS", str(REPOSITORY / ".eos/jars")),
        "PYTEST_EOS_KAFKA": "process",
        "COLUMNS": "120",
    }
    try:
        printed = run(shown, tmp_path, environment, timeout_s=_README_S, each_succeeds=True)
    finally:
        _eos(tmp_path, "local", "stop")  # a command before the last one may have failed
    said = {one.line.partition(" orders")[0]: "\n".join(one.output) for one in printed}
    assert list(said)[_TO_THE_PROOF - 1] == "eos verify"
    assert re.search(r"exactly once +yes", said["eos verify"])
    assert re.search(r"output orders-(dead|large) +1 expected, 1 found", said["eos verify"])
    assert re.search(r"output orders-out +2 expected, 2 found", said["eos verify"])
    assert "2 passed" in said["pytest test_orders.py"]
