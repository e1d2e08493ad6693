"""Run the tests in parallel; what failed is run once more, alone. `make test` and CI run this.

    python .ci/gate.py                                  all but the slow tests
    TESTS="tests/unit 'tests/a.py::test[x y]'" python .ci/gate.py      a part of them, in the words of a shell
    python .ci/gate.py canaries                         the canaries, also the slow ones

Tests that bound seconds (mark `timing`) run behind the others, alone from the start. Those of what other libraries do (mark
`canary`) run where requirements.lock or Kafka's version is another one than they were last green with, which `make canaries`
writes down.
A test that passes only the second time is printed as FLAKY and does not fail the run. There is no second try after a
violation of the guarantee, after a crash of a test's process, or where more tests fail than a busy machine explains.
The last line says how many passed and failed.
"""
# ruff: noqa: INP001, T201 - a script

from __future__ import annotations

import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

_MOST = 12  # failures of one run that a second try may forgive
_SECOND_TRY_S = 900.0  # for all that failed; the longest test may take 300
_IN_ORDER_S = 60.0  # for pytest to tear down
# Exit codes of pytest: tests failed, and there were none to run. Others are errors of another kind.
_FAILED, _NO_TESTS = 1, 5
_VERSIONS = [Path("requirements.lock"), Path("eos/local/versions.py")]  # of the libraries, and of Kafka
_GREEN_WITH = Path("tests/canaries/green_with")

# Five processes, each with a broker of its own: the tests wait more than they compute. The order and the examples of
# property tests are always the same, so that a run is red for what has changed; `make test-slow` draws both anew.
_FIRST = [
    "-n",
    "5",
    "--dist",
    "loadgroup",
    "--max-worker-restart=0",
    "--durations=15",
    "--durations-min=10",
    "--apart",
]
_ALONE = ["-n", "0"]
_BOTH = ["-p", "no:randomly", "-p", "tests.support.outcomes", "--hypothesis-profile=gate"]


@dataclass(frozen=True)
class Run:
    """What came of one run of pytest. ``failures`` by the test's id; ``seconds`` of the whole run; ``apart``: tests left for later."""

    code: int
    passed: frozenset[str]
    skipped: frozenset[str]
    failures: dict[str, dict[str, Any]]
    seconds: float
    apart: Sequence[str] = ()


def main() -> int:
    """Run the tests; returns the exit code, pytest's own."""
    # Ctrl-C goes to the whole group: pytest tears down, and this waits for it. A handler is not inherited, unlike SIG_IGN.
    signal.signal(signal.SIGINT, lambda *_: None)
    asked = shlex.split(os.environ.get("TESTS", ""))
    if sys.argv[1:] == ["canaries"]:
        return _canaries()
    first = _run([*_FIRST, "-m", "not slow" if _canaries_are_due() else "not slow and not canary", *asked])
    if first.apart and first.code in (0, _FAILED, _NO_TESTS):
        print(f"\nAlone, as they bound seconds: {len(first.apart)}.", flush=True)
        first = _both(
            first, _run([*_ALONE, *(word for word in asked if word.startswith("--")), *first.apart])
        )
    if first.code != _FAILED:
        if first.code == 0:
            print(_closing(first, [], [], first.seconds))
        return first.code
    refusal = _refusal(first)
    if refusal:
        print(f"\nNo second try: {refusal}.")
        print(_closing(first, first.failures, [], first.seconds))
        return first.code
    print(f"\nA second try, alone, of what failed: {len(first.failures)}.", flush=True)
    second = _run([*_ALONE, *first.failures], deadline_s=_SECOND_TRY_S)
    flaky = [test for test in first.failures if test in second.passed] if second.code in (0, _FAILED) else []
    failed = {
        test: first.failures[test] | second.failures.get(test, {})
        for test in first.failures
        if test not in flaky
    }
    print()
    for test, told in failed.items():
        print(f"FAILED {test} - {told['line']}")
    for test in flaky:
        print(f"FLAKY {test} - {first.failures[test]['line']} (load {first.failures[test]['load']:.1f})")
    print(_closing(first, failed, flaky, first.seconds + second.seconds))
    return second.code or (_FAILED if failed else 0)


def _canaries() -> int:
    ran = _run(["-n", "2", "--dist", "loadgroup", "-m", "canary"])
    if ran.code == 0 and not ran.skipped:
        _GREEN_WITH.write_text(_digests())
    return ran.code


def _canaries_are_due() -> bool:
    return not _GREEN_WITH.exists() or _GREEN_WITH.read_text() != _digests()


def _digests() -> str:
    return "".join(
        f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()} {file}\n"
        for file in _VERSIONS
        if file.exists()
    )


def _both(first: Run, apart: Run) -> Run:
    # An error of another kind than a failed test has the greater code.
    code = apart.code if first.code == _NO_TESTS else max(first.code, apart.code)
    return Run(
        code,
        first.passed | apart.passed,
        first.skipped | apart.skipped,
        first.failures | apart.failures,
        first.seconds + apart.seconds,
    )


def _run(arguments: Sequence[str], deadline_s: float | None = None) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "outcomes.json"
        child = subprocess.Popen([sys.executable, "-m", "pytest", *_BOTH, f"--outcomes={told}", *arguments])
        try:
            code = child.wait(deadline_s)
        except subprocess.TimeoutExpired:
            print(f"\nNot finished after {deadline_s:g} s.", flush=True)
            code = _end(child)
        if not told.exists():  # pytest did not come to its end, or not to its beginning
            return Run(
                _FAILED + 2 if code in (0, _FAILED) else _positive(code), frozenset(), frozenset(), {}, 0.0
            )
        found = json.loads(told.read_text())
    sets = {kind: frozenset(found[kind]) for kind in ("passed", "skipped")}
    return Run(
        _positive(code),
        **sets,
        failures=found["failures"],
        seconds=found["seconds"],
        apart=found["apart"],
    )


def _positive(code: int) -> int:
    """As a shell says it: of a process that a signal has ended, 128 and more."""
    return code if code >= 0 else 128 - code


def _end(child: subprocess.Popen[bytes]) -> int:
    child.send_signal(signal.SIGINT)
    try:
        return child.wait(_IN_ORDER_S)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


def _refusal(first: Run) -> str:
    """Why there is no second try; empty if there is one."""
    if not first.failures:
        return "pytest failed beside the tests"
    for test, told in first.failures.items():
        if told.get("violation"):
            return f"{test} saw the guarantee violated"
        if told.get("crash"):
            return f"{test} did not end by itself"
    if len(first.failures) > _MOST:
        return f"{len(first.failures)} tests failed, and more than {_MOST} are no accident"
    return ""


def _closing(first: Run, failed: Sequence[str] | dict[str, Any], flaky: Sequence[str], seconds: float) -> str:
    counts = {
        "failed": len(failed),
        "passed": len(first.passed) + len(flaky),
        "skipped": len(first.skipped),
        "flaky": len(flaky),
    }
    said = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    return f" {said} in {seconds:.2f}s ({timedelta(seconds=int(seconds))}) ".center(80, "=")


if __name__ == "__main__":
    sys.exit(main())
