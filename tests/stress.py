"""Run `make test` again and again with one core kept busy, and show what failed how often: `make test-stress`.

    python -m tests.stress 3          three times; the output of each run is kept in build/stress

A test that is red in two runs, flaky or not, is one to mend before anything new.
"""
# ruff: noqa: T201 - a script

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.support.outcomes import without_group

_LOGS = Path("build/stress")
_TOLD = re.compile(r"^(?:FLAKY|FAILED|ERROR) (.+?)(?: - (.*))?$", re.MULTILINE)
_BUSY = "while True: pass"


def main() -> int:
    """Run them; returns 1 if a run failed, or a test in two of them."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    _LOGS.mkdir(parents=True, exist_ok=True)
    red, failed, said = 0, Counter[str](), dict[str, str]()
    for number in range(1, times + 1):
        log = _LOGS / f"{number}.log"
        code = _run(log)
        output = log.read_text()
        told = {without_group(test): line for test, line in _TOLD.findall(output)}
        failed.update(told.keys())
        said |= told
        red += code != 0
        closing = output.rstrip().rpartition("\n")[2].strip("= ")
        print(f"run {number} of {times}: exit {code}, {closing} ({log})", flush=True)
    for test, count in failed.most_common():
        print(f"{count:3} of {times}  {test} - {said[test]}")
    return 1 if red or any(count > 1 for count in failed.values()) else 0


def _run(log: Path) -> int:
    busy = subprocess.Popen([sys.executable, "-c", _BUSY])
    try:
        with log.open("w") as output:
            gate = [sys.executable, ".ci/gate.py"]
            return subprocess.run(gate, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
    finally:
        busy.kill()
        busy.wait()


if __name__ == "__main__":
    sys.exit(main())
