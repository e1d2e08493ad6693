"""Every process that collects the tests finds the same ones.

pytest-xdist compares what its processes have collected and refuses to run where they differ. A parameter whose name
carries the clock differs only if a second passes between two of them: one run in many fails before its first test.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S

REPOSITORY = Path(__file__).parents[2]
LATER = """
import sys, time
clock, clock_ns = time.time, time.time_ns
time.time = lambda: clock() + 100_000
time.time_ns = lambda: clock_ns() + 100_000 * 10**9
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_process_with_another_clock_and_other_hashes_collects_the_same_tests(
    request: pytest.FixtureRequest,
) -> None:
    command = [
        sys.executable,
        "-c",
        LATER,
        "--collect-only",
        "-q",
        "-m",
        "",
        "-p",
        "no:cacheprovider",
        "tests",
    ]
    ended = subprocess.run(
        command,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env=os.environ | {"PYTHONHASHSEED": "1", "PYTEST_ADDOPTS": ""},  # elsewhere the seed is random
    )
    assert ended.returncode == 0, ended.stdout
    there = set(ended.stdout.splitlines())
    here = {item.nodeid for item in request.session.items}
    # xdist adds the group of a test behind an @
    assert {name for name in here if name not in there and name.rsplit("@", 1)[0] not in there} == set()
