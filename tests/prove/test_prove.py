"""`eos prove` on a real broker: a job that is exactly once is shown to be, and one that is not is convicted."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from eos.prove import proving
from tests.prove.naive_loops import MISTAKES
from tests.support.documents import blocks

if TYPE_CHECKING:
    from tests.support.command_line import Eos

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]

REPOSITORY = Path(__file__).parents[2]
GUIDE = "docs/guides/fault-injection.md"
PAGE = blocks(GUIDE)
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
HALVES = """
import itertools
from eos import Job, OutputBatch

def halved(batch):
    return [OutputBatch("halves", [half + value for value in batch.values]) for half in (b"a", b"b")]

def sample_input(seed):
    return (b"%d" % n for n in itertools.count())

job = Job(name="halves", inputs=["wholes"], outputs=["halves"], transform_batch=halved)
"""
NO_INPUT = """
from eos import Job
job = Job(name="copy", inputs=["originals"], outputs=["copies"], transform=lambda record: [])
def without_seed():
    yield b"value"
def of_text(seed):
    yield "value"
def of_nothing(seed):
    yield from ()
def that_fails(seed):
    yield b"value" if seed < 0 else open("missing").read()
"""


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """Where the jobs' modules are."""
    (tmp_path / "copying.py").write_text(MODULE)
    (tmp_path / "silent.py").write_text(NO_INPUT)
    (tmp_path / "shout.py").write_text(blocks("README.md")["A job"])
    (tmp_path / "shout_input.py").write_text(PAGE["1. Give it input"])
    (tmp_path / "relay.py").write_text(PAGE["Any other program"])
    return tmp_path


# A zombie that has just produced; twice a commit that is answered as if it was fenced; a kill; offsets that cannot be added.
ONE_SCHEDULE = ["--seed", "3894", "--faults", "5", "--only", "kill,error,zombie"]
NAIVE = [
    "copying:job",
    *ONE_SCHEDULE,
    *("--set", "ownership.mode=partition", "--set", "ownership.instances=2"),
]


def naive_loop(mistake: str) -> list[str]:
    """`eos prove` of a plain loop."""
    command = f"exec {sys.executable} {Path(__file__).with_name('naive_loops.py')} {mistake}"
    return [*NAIVE, "--run", command]


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
    ended = prove(jobs, *arguments, "--faults", "2", "--only", "kill,late,drop")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"faults that happened +2 \(", ended.stdout)
    assert re.search(r"exactly once +yes", ended.stdout)
    (logs,) = re.findall(r"logs in (\S+)", ended.stderr)
    assert not Path(logs).exists(), "nothing of it stays where all is well"
    (read, fed) = re.search(r"processed +([\d,]+) of ([\d,]+)", ended.stdout).groups()  # type: ignore[union-attr]
    assert read == fed != "0"


def test_the_documents_loop_of_ones_own_is_tried_by_its_command_line(jobs: Path) -> None:
    (line,) = [line for line in blocks(GUIDE, "console")["Any other program"].splitlines() if line]
    assert line.startswith("$ eos prove ")
    arguments = shlex.split(line.removeprefix("$ eos prove ").replace("python ", f"exec {sys.executable} "))
    ended = prove(jobs, *arguments, "--seed", "4", "--faults", "1", "--only", "kill,drop")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"exactly once +yes", ended.stdout)


@pytest.mark.parametrize(
    ("mistake", "anomaly"),
    [
        pytest.param("no-transaction", "duplicated", marks=pytest.mark.slow),
        ("offsets-outside", "duplicated"),
        pytest.param("no-rewind", "lost", marks=pytest.mark.slow),
        pytest.param("no-comparison", "duplicated", marks=pytest.mark.slow),
        pytest.param("random-id", "duplicated", marks=pytest.mark.slow),
    ],
)
def test_a_loop_with_one_mistake_is_convicted(jobs: Path, mistake: str, anomaly: str) -> None:
    assert mistake in MISTAKES
    ended = prove(jobs, *naive_loop(mistake))
    assert ended.returncode == 7, ended.stdout + ended.stderr
    assert re.search(rf"^[\d,]+ {anomaly}$", ended.stdout, re.MULTILINE), ended.stdout
    assert "Again: eos prove copying:job" in ended.stderr
    assert re.search(rf"--only kill,error,zombie .*--run '[^']*{mistake}'", ended.stderr), ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("program", ["eos", "plain"])
def test_a_loop_without_the_mistakes_is_acquitted_under_the_same_schedule(jobs: Path, program: str) -> None:
    arguments = naive_loop("none")
    if program == "eos":
        loop = f'{REPOSITORY / "docs/examples/own_loop.py"} "$EOS_KAFKA__BOOTSTRAP_SERVERS" originals copies'
        arguments = ["copying:job", *ONE_SCHEDULE, "--set", "group=relay-originals"]
        arguments += ["--run", f"exec {sys.executable} {loop}"]
    ended = prove(jobs, *arguments)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"faults that happened +5 \(", ended.stdout)


@pytest.mark.slow
def test_workers_that_own_partitions_stay_exactly_once(jobs: Path) -> None:
    arguments = ["--set", "ownership.mode=partition", "--set", "ownership.instances=2"]
    ended = prove(jobs, "copying:job", *arguments, *ONE_SCHEDULE[:3], "8", "--only", "kill,late,drop,zombie")
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.slow
def test_workers_and_instances_that_are_told_to_end_are_replaced_and_judged_after_each(jobs: Path) -> None:
    """Both ways come: the seed was chosen for that."""
    arguments = ["--seed", "2000", "--faults", "4", "--only", "term", "--quiet", "0.2", "--each"]
    ended = prove(jobs, "copying:job", *arguments, "--figures", "figures.json")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    figures = json.loads((jobs / "figures.json").read_text())
    assert (figures["exactly_once"], figures["against"]) == (True, [])
    assert figures["faults"] == figures["looks"] == len(figures["recoveries_s"]) == 4
    ways = {what.split(" at ")[0] for what in figures["faults_by_what"]}
    assert ways == {"term, worker", "term, instance"}
    assert figures["unknown"].keys() == {"committed", "aborted"}
    assert "--each" in figures["again"]


@pytest.mark.slow
def test_outputs_that_say_what_they_are_made_of_were_committed_with_just_that(jobs: Path) -> None:
    arguments = ["--seed", "5", "--faults", "8", "--set", "transaction.interval_ms=30"]
    ended = prove(
        jobs, "eos.prove.tagged:job", *arguments, "--only", "kill,pause,late,error,rebalance,zombie"
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"as the log has them +[\d,]+ \(.* committed\)", ended.stdout)


MISBEHAVING = """
import itertools
from eos.prove import misbehaving

def then(way):
    return lambda seed: ((None, way + b" %d" % n if n == 50 else b"plain %d" % n) for n in itertools.count())

"""
# What a record does, what else is set, and what the job ends with and says.
REFUSED = {
    "buffer": ([], 2, "Fix: bytes, str or None"),
    "view": ([], 2, "Fix: bytes, str or None"),
    "undeclared": ([], 2, "Fix: add it to outputs"),
    "large": ([], 4, "MSG_SIZE_TOO_LARGE"),
    "nowhere": ([], 4, "UNKNOWN_PARTITION"),
    "raise": ([], 4, "Fix: the transform, or poison.policy"),
    "exit!": ([], 1, "Fix: raise an exception there, or return"),
    "leave!": ([], 1, "Fix: raise an exception, or return"),
    "interrupt!": ([], 1, "KeyboardInterrupt"),
    "segv!": (["--set", "workers.max_restarts=3"], 1, "times in a row: giving up"),
    "slow!": (["--set", "ownership.max_poll_interval_ms=10000"], 2, "Fix: a value of ownership.max_poll"),
}


def misdeeds(jobs: Path) -> list[Path]:
    """What records have done beside their outputs, each the first time that it was seen."""
    return list((jobs / "proof" / "misbehaved").iterdir())


def test_job_whose_code_misbehaves_stays_exactly_once(jobs: Path) -> None:
    """An abort of its process is the first thing that this seed's input does."""
    arguments = ["--seed", "5", "--rate", "800", "--faults", "1", "--only", "error", "--report", "proof"]
    ended = prove(jobs, "eos.prove.misbehaving:job", *arguments)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert misdeeds(jobs)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("job", ["job", "batch_job"])
@pytest.mark.parametrize("mode", ["group", "partition"])
def test_job_whose_code_misbehaves_in_any_way_stays_exactly_once(jobs: Path, job: str, mode: str) -> None:
    owned = [] if mode == "group" else NAIVE[-4:]
    arguments = ["--seed", "12", "--minutes", "2", "--rate", "300", "--only", "kill,late,error,drop", *owned]
    arguments += ["--input", "eos.prove.misbehaving:with_poison", "--set", "poison.policy=dead-letter"]
    arguments += ["--set", "ownership.max_poll_interval_ms=10000", "--report", "proof"]
    ended = prove(jobs, f"eos.prove.misbehaving:{job}", *arguments)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert len(misdeeds(jobs)) >= 10


@pytest.mark.slow
@pytest.mark.parametrize("way", REFUSED)
def test_what_no_job_can_go_on_after_ends_it_and_nothing_is_wrong_before(jobs: Path, way: str) -> None:
    settings, code, says = REFUSED[way]
    (jobs / "ending.py").write_text(f"{MISBEHAVING}source = then({way.encode()!r})\n")
    ended = prove(
        jobs,
        "eos.prove.misbehaving:job",
        *("--input", "ending:source", "--seed", "1", "--faults", "1", "--only", "kill", *settings),
    )
    assert ended.returncode == 5, ended.stdout + ended.stderr
    (logged,) = re.findall(rf"instance 0 ended with exit code {code} \(its log: (\S+)\)", ended.stdout)
    assert says in Path(logged).read_text()
    wrong = r"^[\d,]+ (x |lost|duplicated|unexpected|failed)"
    assert not re.search(wrong, ended.stdout, re.MULTILINE), ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize("option", [(), ("--no-order",)], ids=["", "no order"])
def test_a_batch_function_that_orders_its_outputs_itself_passes_once_that_is_said(
    jobs: Path, option: tuple[str, ...]
) -> None:
    (jobs / "halves.py").write_text(HALVES)
    ended = prove(jobs, "halves:job", "--seed", "1", "--faults", "1", "--only", "kill", *option)
    assert ended.returncode == (0 if option else 7), ended.stdout + ended.stderr
    assert ("--no-order" in " ".join(ended.stdout.split())) is not bool(option), ended.stdout


@pytest.mark.slow
def test_input_that_lives_leaves_the_job_exactly_once(jobs: Path) -> None:
    """Each way once: the seed was chosen for that."""
    ended = prove(jobs, "eos.prove.tagged:job", "--seed", "19556", "--faults", "7", "--only", "input")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"faults that did not +0", ended.stdout), ended.stdout


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
        (["copying:job", "--only", "broker/quaked"], "--only broker/quaked"),
        (["copying:job", "--only", "kill/softly"], "--only kill/softly"),
        (["copying:job", "--faults", "1", "--minutes", "1"], "--faults and --minutes"),
        (["silent:job"], "eos: the job has no input to be tried with"),
        (["silent:job", "--input", "silent:job"], "--input silent:job: that is no function"),
        (["silent:job", "--input", "silent:without_seed"], "--input silent:without_seed(4) raised TypeError"),
        (["silent:job", "--input", "silent:of_text"], "the input's generator gave str"),
        (["silent:job", "--input", "silent:of_nothing"], "the input's generator gives no record"),
        (
            ["silent:job", "--input", "silent:that_fails"],
            "raised FileNotFoundError: [Errno 2] No such file or directory: 'missing', at its first record",
        ),
        (["copying:job", "--input", "copying:nothing"], "nothing"),
        (["copying:job", "--set", "ownership.mode=partition"], "ownership.mode"),
        (["copying:job", *NAIVE[-4:], "--only", "rebalance"], "--only rebalance"),
        (["copying:job", "--report", "."], "not empty"),
    ],
)
def test_what_cannot_be_tried_is_said_before_anything_starts(
    eos: Eos, jobs: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], named: str
) -> None:
    monkeypatch.chdir(jobs)
    monkeypatch.syspath_prepend(jobs)
    monkeypatch.setattr(proving, "trial_cluster", lambda *_: pytest.fail("a Kafka was to be started"))
    ended = eos("prove", *arguments, "--seed", "4")
    assert ended.code == 2
    assert named in ended.err
    assert "Fix: " in ended.err
    assert "Traceback" not in ended.err
