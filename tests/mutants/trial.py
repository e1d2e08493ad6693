"""Trial: whether the tests of a mutation turn red when a copy of the tree has it, and are green when it has not.

Only a named test that runs and fails kills a mutation. A module that does not compile, a name that nobody has bound, a test that
is not collected, and a fixture that fails are faults of the list: they say nothing of the rule. Nor does a limit of time.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree as ET

from tests.mutants.mutation import Mutation

TIMEOUT_S = 300.0  # of one run of pytest; a broker and Spark start within it
_IN_ORDER_S = 30.0  # for pytest to take down what its fixtures have started
_COPIED = ("eos", "eos_pytest", "jobs", "tests", "conf", "pyproject.toml")
_LINKED = (".venv", ".eos/jars")  # what is installed and downloaded once
# An exception of these does not come from a rule that is broken, but from a mutation that is no program.
_NO_PROGRAM = ("SyntaxError", "IndentationError", "ImportError", "ModuleNotFoundError", "NameError")
# Nor do these: a busy machine is late without it, too.
_LATE = ("DeadlineExceeded", "FailedHealthCheck")
_TIMED_OUT = "Failed: Timeout (>"  # of pytest-timeout
_UNBOUND = "E9,F821,F822,F823"  # rules of ruff: it does not parse, or uses a name that nothing binds


class Verdict(StrEnum):
    """What became of a mutation."""

    KILLED = "killed"
    SURVIVED = "SURVIVED"
    STALE = "STALE"


class Outcome(StrEnum):
    """How a test ended; the later one of a test's parameters and phases counts."""

    PASSED = "passed"
    SKIPPED = "skipped"
    FAILED = "failed"
    BROKEN = "broken"  # not collected, or its fixture failed
    LATE = "late"  # a limit of time ended it
    NO_PROGRAM = "no program"  # an import or a name failed


_DID_NOT_RUN = "did not run: a collection, a fixture or an import failed"
_NO_VERDICT: Mapping[Outcome | None, str] = {
    None: _DID_NOT_RUN,
    Outcome.BROKEN: _DID_NOT_RUN,
    Outcome.NO_PROGRAM: _DID_NOT_RUN,
    Outcome.LATE: "ran into a limit of time, which says nothing of the rule",
}


@dataclass(frozen=True)
class Judged:
    """A verdict, and why."""

    verdict: Verdict
    why: str = ""


@contextmanager
def copied(repository: Path) -> Iterator[Path]:
    """A copy of the part of the repository that tests need; the repository itself is never changed."""
    with TemporaryDirectory(prefix="eos-mutants-", ignore_cleanup_errors=True) as folder:
        tree = Path(folder)
        for name in _COPIED:
            source = repository / name
            if source.is_dir():
                shutil.copytree(source, tree / name)
            elif source.exists():
                shutil.copy2(source, tree / name)
        for name in _LINKED:
            if (repository / name).exists():
                (tree / name).parent.mkdir(exist_ok=True)
                (tree / name).symlink_to(repository / name)
        yield tree


def baseline(
    repository: Path, tests: Collection[str], *, timeout_s: float = TIMEOUT_S
) -> Mapping[str, Judged]:
    """Why named tests cannot judge a mutation: they do not exist, or are not green without one. Those that can are left out."""
    with copied(repository) as tree:
        ran = run(tree, tests, timeout_s=timeout_s) or {}
    found: dict[str, Judged] = {}
    for test in tests:
        if (outcome := _of(test, ran)) is None:
            found[test] = Judged(
                Verdict.STALE,
                f"{test}, or another one of its run, does not exist, or did not end within {timeout_s:g} s",
            )
        elif outcome is not Outcome.PASSED:
            found[test] = Judged(Verdict.STALE, f"{test} is {outcome} without the mutation")
    return found


def judge(
    repository: Path,
    mutation: Mutation,
    unfit: Mapping[str, Judged] | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
) -> Judged:
    """Break the rule in a copy, and run the named tests there; ``unfit`` is what :func:`baseline` has found of them."""
    text = (repository / mutation.file).read_text()
    if why := mutation.is_stale(text):
        return Judged(Verdict.STALE, why)
    unfit = baseline(repository, mutation.tests, timeout_s=timeout_s) if unfit is None else unfit
    for test in mutation.tests:
        if test in unfit:
            return unfit[test]
    with copied(repository) as tree:
        mutant = tree / mutation.file
        mutant.unlink()
        mutant.write_text(mutation.applied(text))
        for compiled in mutant.parent.glob(f"__pycache__/{mutant.stem}.*.pyc"):
            compiled.unlink()
        if why := _no_program(mutant):
            return Judged(Verdict.STALE, f"the mutation is no program: {why}")
        ran = run(tree, mutation.tests, timeout_s=timeout_s)
    if ran is None:
        return Judged(Verdict.STALE, f"no end within {timeout_s:g} s")
    outcomes = {test: _of(test, ran) for test in mutation.tests}
    for test, outcome in outcomes.items():
        if outcome in _NO_VERDICT:
            return Judged(Verdict.STALE, f"{test} {_NO_VERDICT[outcome]}")
    if green := [test for test, outcome in outcomes.items() if outcome is not Outcome.FAILED]:
        return Judged(Verdict.SURVIVED, f"green: {', '.join(green)}")
    return Judged(Verdict.KILLED)


def run(tree: Path, tests: Iterable[str], *, timeout_s: float) -> dict[str, Outcome] | None:
    """Run tests in a tree; how each one ended, by its name with dots. None: they did not end in time."""
    report = tree / "outcomes.xml"
    report.unlink(missing_ok=True)
    options = [f"--junitxml={report}", "-o", "junit_family=xunit1", "-q", "-p", "no:cacheprovider"]
    # The same examples each time: a mutation that is killed today is not left to chance tomorrow.
    if _pytest(tree, [*options, *_IN_THEIR_ORDER, *tests], timeout_s) is None:
        return None
    return _outcomes(report) if report.exists() else {}


# --- inside ------------------------------------------------------------------------------------------------

_LOG = "pytest.log"
_IN_THEIR_ORDER = ("-p", "no:randomly", "-p", "tests.mutants.unshrunk", "--hypothesis-seed=0")


def _pytest(tree: Path, arguments: Iterable[str], timeout_s: float) -> int | None:
    """The exit status; None: it took too long, and was ended with all that it had started in its session."""
    command = [sys.executable, "-m", "pytest", *arguments]
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
    }  # for the processes that tests start in other folders
    with (tree / _LOG).open("wb") as log:
        process = subprocess.Popen(
            command, cwd=tree, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number, seconds in ((signal.SIGINT, _IN_ORDER_S), (signal.SIGKILL, None)):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            continue


def _no_program(module: Path) -> str:
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", _UNBOUND, "--output-format"]
    done = subprocess.run([*command, "concise", str(module)], capture_output=True, text=True, check=False)
    return done.stdout.partition("\n")[0] if done.returncode else ""


def _outcomes(report: Path) -> dict[str, Outcome]:
    found: dict[str, Outcome] = {}
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - written a moment ago by pytest
        # By its class, not by its file: for a state machine that is one of hypothesis.
        test = f"{case.get('classname')}.{case.get('name')}"
        found[test] = max(found.get(test, Outcome.PASSED), _outcome(case), key=_WORSE.index)
    return found


# What a test that has failed leaves behind may fail its fixture's end, too.
_WORSE = [
    Outcome.PASSED,
    Outcome.SKIPPED,
    Outcome.BROKEN,
    Outcome.LATE,
    Outcome.FAILED,
    Outcome.NO_PROGRAM,
]


def _outcome(case: ET.Element) -> Outcome:
    if (failure := case.find("failure")) is not None:
        message = failure.get("message", "")
        kind = message.partition(":")[0].rpartition(".")[2].strip()
        if kind in _LATE or message.startswith(_TIMED_OUT):
            return Outcome.LATE
        return Outcome.NO_PROGRAM if kind in _NO_PROGRAM else Outcome.FAILED
    if case.find("error") is not None:
        return Outcome.BROKEN
    return Outcome.PASSED if case.find("skipped") is None else Outcome.SKIPPED


def _of(test: str, ran: Mapping[str, Outcome]) -> Outcome | None:
    """How a named test ended: with parameters it has failed where one of them has. None: it did not run."""
    name = test.replace(".py::", ".").replace("::", ".").replace("/", ".")
    mine = [outcome for found, outcome in ran.items() if _is_of(name, found)]
    return max(mine, key=_WORSE.index) if mine else None


def _is_of(test: str, found: str) -> bool:
    """Whether what pytest has run is the named test, or the one with parameters, or in the named class."""
    return found == test or found.startswith((f"{test}[", f"{test}."))
