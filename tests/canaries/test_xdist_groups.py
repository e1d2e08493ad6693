"""Tests that share a costly fixture run in one process: pytest-xdist groups them by their mark.

With pytest 9.2 it stopped doing so, and nothing failed: each process started clusters of its own, and the machine
was at its knees (pytest-xdist issue 1386). When an xdist newer than 3.8 is out, the bound on pytest in
pyproject.toml may go; this test then says whether it was right.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.canary

SUITE = """
import pytest

@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("number", range(8))
def test_who(number, worker_id):
    with open("workers", "a") as file:
        file.write(f"{worker_id}\\n")
"""


@pytest.mark.slow
def test_tests_of_a_group_run_in_one_process(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup"]
    command += ["-p", "no:cacheprovider", "-p", "no:randomly", "--rootdir", ".", "test_suite.py"]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ended.returncode == 0, ended.stdout
    workers = (tmp_path / "workers").read_text().split()
    assert len(workers) == 8
    assert len(set(workers)) == 1
