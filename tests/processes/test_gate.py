"""`make test`: what fails is run once more, alone; what may never be forgiven is red at once."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from eos.testing import GuaranteeViolated
from tests.support.outcomes import is_violation, without_group

_REPOSITORY = Path(__file__).parents[2]
_TIMEOUT_S = 250.0

Gate = Callable[..., "subprocess.CompletedProcess[str]"]

# What a file of tests is made of: `once()` is true at the first try only.
_HEAD = """
import os, pathlib, time
import pytest
from eos.testing import GuaranteeViolated

def once(name):
    flag = pathlib.Path(name)
    first = not flag.exists()
    flag.touch()
    return first

def read_committed():
    return [1] if once("read") else []
"""


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """A maker of runs of the gate over one file of tests, in a folder of its own."""
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n    slow: not run\n    timing: alone\n    canary: now and then\n    xdist_group: of xdist\n"
    )
    (tmp_path / "conftest.py").write_text(
        "import hypothesis\nhypothesis.settings.register_profile('gate', derandomize=True)\n"
    )

    def run(
        tests: str, *words: str, deadline_s: float = 900.0, command: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        (tmp_path / "test_it.py").write_text(_HEAD + tests)
        script = (_REPOSITORY / ".ci" / "gate.py").read_text()
        assert "_SECOND_TRY_S = 900.0" in script
        (tmp_path / ".ci").mkdir(exist_ok=True)
        (tmp_path / ".ci" / "gate.py").write_text(
            script.replace("_SECOND_TRY_S = 900.0", f"_SECOND_TRY_S = {deadline_s}")
        )
        return subprocess.run(
            [sys.executable, *(command or [".ci/gate.py"])],
            cwd=tmp_path,
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
                "PYTHONPATH": str(_REPOSITORY),
                "TESTS": shlex.join(["-n", "1", *words]),  # one process is enough, and starts sooner
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )

    return run


def closing_line(ran: subprocess.CompletedProcess[str]) -> str:
    line = ran.stdout.rstrip().splitlines()[-1]
    assert re.fullmatch(r"=+ .* in [\d.]+s( \([\d:]+\))? =+", line), ran.stdout
    return line


def test_tests_that_pass_alone_are_named_as_flaky_and_the_run_passes(gate: Gate) -> None:
    """Also with a group, which xdist writes into the id, and with an id that a shell would read otherwise."""
    ran = gate(
        """
@pytest.mark.xdist_group("a group")
@pytest.mark.parametrize("how", ["with $HOME; a [space]", "mail@example"])
def test_first(how):
    assert not once(how[0]), "a first line"

@pytest.fixture
def late():
    yield
    assert not once("late")

def test_torn_down_late(late): ...

def test_that_passes(): ...

@pytest.mark.slow
def test_slow(): assert False
"""
    )
    assert ran.returncode == 0, ran.stdout
    flaky = re.findall(r"^FLAKY (.*) - (.*) \(load \d+\.\d\)$", ran.stdout, re.MULTILINE)
    assert sorted(flaky) == [
        ("test_it.py::test_first[mail@example]", "AssertionError: a first line"),
        ("test_it.py::test_first[with $HOME; a [space]]", "AssertionError: a first line"),
        ("test_it.py::test_torn_down_late", "AssertionError: assert not True"),
    ]
    assert "4 passed, 3 flaky in" in closing_line(ran)


def test_tests_that_bound_seconds_run_behind_the_others(gate: Gate, tmp_path: Path) -> None:
    ran = gate(
        """
def note(name):
    with open("order", "a") as order:
        order.write(name)

@pytest.mark.timing
def test_bound():
    note("t")
    assert not once("bound")

@pytest.mark.slow
@pytest.mark.timing
def test_slow_bound(): note("s")

def test_a(): note("a")
"""
    )
    assert ran.returncode == 0, ran.stdout
    assert (tmp_path / "order").read_text() == "att"
    assert "FLAKY test_it.py::test_bound - " in ran.stdout
    assert "2 passed, 1 flaky" in closing_line(ran)


@pytest.mark.parametrize("how", ["os.abort()", "os.kill(os.getpid(), 9)"])
def test_crash_of_the_run_of_tests_that_bound_seconds_is_red(gate: Gate, how: str) -> None:
    """A negative exit code was less than that of the others' success."""
    ran = gate(f"def test_a(): ...\n@pytest.mark.timing\ndef test_bound(): {how}\n")
    assert ran.returncode > 2, ran.stdout


def test_canaries_run_where_the_lock_is_another_one_than_they_were_green_with(
    gate: Gate, tmp_path: Path
) -> None:
    (tmp_path / "tests" / "canaries").mkdir(parents=True)
    (tmp_path / "requirements.lock").write_text("one==1\n")
    tests = """
@pytest.mark.canary
def test_bird(): assert pathlib.Path("alive").exists()

def test_a(): ...
"""
    assert gate(tests, command=[".ci/gate.py", "canaries"]).returncode == 1
    (tmp_path / "alive").touch()
    skipped = "@pytest.mark.canary\n@pytest.mark.skip\ndef test_cat(): ...\n"
    assert gate(tests + skipped, command=[".ci/gate.py", "canaries"]).returncode == 0
    assert "2 passed" in closing_line(gate(tests)), "all of them were never green"
    assert gate(tests, command=[".ci/gate.py", "canaries"]).returncode == 0
    assert "1 passed" in closing_line(gate(tests))
    (tmp_path / "requirements.lock").write_text("one==2\n")
    assert "2 passed" in closing_line(gate(tests))


def test_test_that_fails_twice_is_red(gate: Gate) -> None:
    ran = gate("def test_a(): assert not once('a')\ndef test_b(): assert 1 == 2\ndef test_c(): ...\n")
    assert ran.returncode == 1, ran.stdout
    assert "FAILED test_it.py::test_b - assert 1 == 2" in ran.stdout
    assert "FLAKY test_it.py::test_a - " in ran.stdout
    assert "1 failed, 2 passed, 1 flaky in" in closing_line(ran)


def test_test_that_is_skipped_at_its_second_try_has_not_passed(gate: Gate) -> None:
    ran = gate("def test_a():\n    if once('a'): assert 1 == 2\n    pytest.skip('now')\n")
    assert ran.returncode == 1, ran.stdout
    assert "1 failed in" in closing_line(ran)


def test_violation_of_the_guarantee_gets_no_second_try(gate: Gate) -> None:
    ran = gate("def test_a():\n    if once('a'): raise GuaranteeViolated('1 record lost')\n")
    assert ran.returncode == 1, ran.stdout
    assert "No second try: test_it.py::test_a saw the guarantee violated." in ran.stdout
    assert "FLAKY" not in ran.stdout
    assert "1 failed in" in closing_line(ran)


def hidden() -> None:
    try:
        raise GuaranteeViolated("1 record lost")
    finally:
        int("no number")


def in_a_group() -> None:
    raise ExceptionGroup("two", [ValueError("no number"), GuaranteeViolated("1 record lost")])


def by_a_look_at_the_topics() -> None:
    def read_committed(topic: str) -> list[str]:
        return [topic]

    assert read_committed("out") == []


def by_a_look_at_something_else() -> None:
    told = ["ProducerSuspect"]
    assert told == []


def by_taking_too_long() -> None:
    raise TimeoutError("read_committed() did not settle")


@pytest.mark.parametrize(
    ("fails", "violation"),
    [
        (hidden, True),
        (in_a_group, True),
        (by_a_look_at_the_topics, True),
        (by_a_look_at_something_else, False),
        (by_taking_too_long, False),
    ],
)
def test_violation_is_told_from_other_failures(fails: Callable[[], None], violation: bool) -> None:
    with pytest.raises((Exception, ExceptionGroup)) as raised:
        fails()
    assert is_violation("tests/faults/test_it.py::test_a", raised) is violation
    of_a_model = violation or isinstance(raised.value, AssertionError)
    assert is_violation("tests/model/test_it.py::test_a", raised) is of_a_model


def test_crash_of_a_test_process_gets_no_second_try(gate: Gate) -> None:
    ran = gate("def test_a():\n    if once('a'): os.abort()\n")
    assert ran.returncode not in {0, 5}, ran.stdout
    assert "FLAKY" not in ran.stdout


def test_file_that_cannot_be_imported_gets_no_second_try(gate: Gate) -> None:
    ran = gate("if once('a'): raise ImportError('gone')\ndef test_a(): ...\n")
    assert ran.returncode not in {0, 5}, ran.stdout
    assert "FLAKY" not in ran.stdout


@pytest.mark.parametrize("failures", [12, 13])
def test_more_failures_than_twelve_get_no_second_try(gate: Gate, failures: int) -> None:
    ran = gate(
        f"@pytest.mark.parametrize('n', range({failures}))\ndef test_a(n): assert not once('flag' + str(n))\n"
    )
    assert ran.returncode == (0 if failures == 12 else 1), ran.stdout
    assert ran.stdout.count("\nFLAKY ") == (12 if failures == 12 else 0)
    assert ("more than 12 are no accident" in ran.stdout) == (failures == 13)


def test_part_of_the_tests_is_run_and_an_error_of_pytest_is_the_gates(gate: Gate) -> None:
    tests = "@pytest.mark.parametrize('n', ['a b', 'c'])\ndef test_a(n): ...\ndef test_b(): assert False\n"
    ran = gate(tests, "test_it.py::test_a[a b]")
    assert ran.returncode == 0, ran.stdout
    assert "1 passed" in closing_line(ran)
    assert gate(tests, "--no-such-option").returncode == 4  # pytest's own


def test_second_try_that_does_not_end_is_ended(gate: Gate) -> None:
    ran = gate("def test_a():\n    assert not once('a')\n    time.sleep(300)\n", deadline_s=5.0)
    assert ran.returncode in (2, 130), ran.stdout  # as pytest says it, and one that has only begun to load
    assert "Not finished after 5 s." in ran.stdout
    assert "1 failed in" in closing_line(ran)


def test_second_try_in_which_pytest_fails_beside_the_tests_is_red(gate: Gate, tmp_path: Path) -> None:
    with (tmp_path / "conftest.py").open("a") as conftest:
        conftest.write("def pytest_sessionfinish(session): session.exitstatus = 1\n")
    ran = gate("def test_a(): assert not once('a')\n")
    assert ran.returncode == 1, ran.stdout


def test_stress_counts_the_runs_in_which_a_test_is_red_and_fails_where_one_is_twice(gate: Gate) -> None:
    ran = gate(
        """
@pytest.mark.xdist_group("one")
def test_a():
    if once("a"): assert 1 == 2
    pathlib.Path("a").unlink()

def test_b(): assert not once("b")
""",
        command=["-m", "tests.stress", "2"],
    )
    assert ran.returncode == 1, ran.stdout
    first, second, *table = ran.stdout.splitlines()
    assert first.startswith("run 1 of 2: exit 0, 2 passed, 2 flaky in ")
    assert second.startswith("run 2 of 2: exit 0, 2 passed, 1 flaky in ")
    assert [line.split()[:4] for line in table] == [
        ["2", "of", "2", "test_it.py::test_a"],
        ["1", "of", "2", "test_it.py::test_b"],
    ]


def test_group_of_xdist_is_taken_off_an_id_and_nothing_else_is() -> None:
    assert without_group("a.py::test@one group") == "a.py::test"
    assert without_group("a.py::test[x]@one") == "a.py::test[x]"
    assert without_group("a.py::test[x@y]") == "a.py::test[x@y]"
