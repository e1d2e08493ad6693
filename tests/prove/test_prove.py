"""`eos prove` on a real broker: a job that is exactly once is shown to be, and one that is not is convicted."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.documents import blocks

if TYPE_CHECKING:
    from tests.support.command_line import Eos

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]

REPOSITORY = Path(__file__).parents[2]
MODULE = """
import itertools, os, time
from eos import Job, OutputRecord

def copied(record):
    return [OutputRecord("copies", record.value, record.key)]

def signed(record):
    # Not a function of the record: another process writes something else.
    return [OutputRecord("copies", b"%d" % os.getpid(), record.key)]

def sample_input(seed):
    return ((b"%d" % (n % 7), b"%d %d" % (seed, n)) for n in itertools.count())

job = Job(name="copy", inputs=["originals"], outputs=["copies"], transform=copied)
unfit = Job(name="unfit", inputs=["originals"], outputs=["copies"], transform=signed)
"""
NO_INPUT = """
from eos import Job
job = Job(name="copy", inputs=["originals"], outputs=["copies"], transform=lambda record: [])
"""


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """Where the jobs' modules are."""
    (tmp_path / "copying.py").write_text(MODULE)
    (tmp_path / "silent.py").write_text(NO_INPUT)
    (tmp_path / "shout.py").write_text(blocks("README.md")["A job"])
    (tmp_path / "shout_input.py").write_text(blocks("docs/TESTING.md")["Under fire"])
    return tmp_path


def prove(jobs: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "eos.cli",
            "prove",
            *arguments,
            "--set",
            f"local.jars={REPOSITORY / '.eos/jars'}",
        ],
        cwd=jobs,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_documents_job_stays_exactly_once_under_kills_and_late_and_lost_requests(jobs: Path) -> None:
    arguments = ["shout:job", "--input", "shout_input:whispers", "--seed", "4"]
    ended = prove(jobs, *arguments, "--faults", "4", "--only", "kill,late,drop")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"faults that happened +4 \(", ended.stdout)
    assert re.search(r"exactly once +yes", ended.stdout)
    (read, fed) = re.search(r"processed +([\d,]+) of ([\d,]+)", ended.stdout).groups()  # type: ignore[union-attr]
    assert read == fed != "0"


@pytest.mark.slow
def test_a_job_whose_output_is_no_function_of_its_input_is_convicted_and_the_report_says_so(
    jobs: Path,
) -> None:
    ended = prove(
        jobs, "copying:unfit", "--seed", "4", "--faults", "1", "--only", "kill", "--report", "proof"
    )
    assert ended.returncode == 7, ended.stdout + ended.stderr
    assert "unexpected" in ended.stdout
    assert "Again: eos prove copying:unfit" in ended.stderr
    assert "--seed 4 --faults 1 --only kill" in ended.stderr
    page = (jobs / "proof" / "report.html").read_text()
    assert "not exactly once" in page
    assert "<svg" in page
    assert not re.search(r"(src|href)=", page.replace("xlink:href", "")), "it opens anywhere"


@pytest.mark.slow
def test_every_kind_of_fault_on_three_brokers_leaves_the_job_exactly_once(jobs: Path) -> None:
    ended = prove(jobs, "copying:job", "--seed", "6", "--faults", "12", "--brokers", "3")
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["copying:job", "--only", "kill,quake"], "--only quake"),
        (["copying:job", "--faults", "1", "--minutes", "1"], "--faults and --minutes"),
        (["silent:job"], "sample_input"),
        (["copying:job", "--input", "copying:nothing"], "nothing"),
        (["copying:job", "--set", "ownership.mode=partition"], "ownership.mode"),
        (["copying:job", "--report", "."], "not empty"),
    ],
)
def test_what_cannot_be_tried_is_said_before_anything_starts(
    eos: Eos, jobs: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], named: str
) -> None:
    monkeypatch.chdir(jobs)
    monkeypatch.syspath_prepend(jobs)
    ended = eos("prove", *arguments)
    assert ended.code == 2
    assert named in ended.err
    assert "Fix: " in ended.err
    assert "Traceback" not in ended.err
