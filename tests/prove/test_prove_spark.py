"""`eos prove` of jobs for Spark: drivers, executors and tasks are killed, and what was written is judged."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from tests.support.documents import blocks

if TYPE_CHECKING:
    from tests.support.command_line import Eos

pytestmark = [pytest.mark.broker, pytest.mark.timeout(1200)]

REPOSITORY = Path(__file__).parents[2]
# The lines of the document, with fewer faults.
BATCH, STREAM = (
    shlex.split(line.removeprefix("eos prove "))[:3]
    for line in blocks("docs/guides/fault-injection.md", "sh")["On Spark"].splitlines()
)
IN_ONE_MACHINE = ["--master", "local[2,4]"]
# The batch that says which input each output is made of: each transaction is held against the offsets that it commits.
TAGGED = """
from eos.prove import tagged
from eos.spark.jobs import SparkJob

job = SparkJob.applying(tagged.job, name="tagged-batch")
sample_input = tagged.sample_input
"""


def prove(*arguments: str, app_dir: Path = REPOSITORY) -> str:
    """What it prints; it has to end well."""
    command = [
        sys.executable,
        "-m",
        "eos.cli",
        "prove",
        *arguments,
        "--rate",
        "100",
        "--app-dir",
        str(app_dir),
    ]
    ended = subprocess.run(
        [*command, "--set", f"local.jars={REPOSITORY / '.eos/jars'}"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"exactly once +yes", ended.stdout)
    return ended.stdout


@pytest.mark.slow
def test_a_batch_stays_exactly_once_when_tasks_executors_and_drivers_are_killed(tmp_path: Path) -> None:
    report = tmp_path / "proof"
    shown = prove(*BATCH, "--seed", "1", "--faults", "6", "--only", "kill", "--report", str(report))
    assert re.search(r"faults that happened +6 \(6 kill\)", shown)
    page = (report / "report.html").read_text()
    for role in ("task", "executor", "driver"):
        assert re.search(rf"process \d+, {role}", page), role


@pytest.mark.slow
def test_a_batch_commits_with_each_output_the_input_that_it_is_made_of(tmp_path: Path) -> None:
    (tmp_path / "tagged_batch.py").write_text(TAGGED)
    kinds = "kill,pause,late,drop,error,input,broker"
    prove(
        "tagged_batch:job",
        "--seed",
        "430",
        "--faults",
        "7",
        "--only",
        kinds,
        *IN_ONE_MACHINE,
        app_dir=tmp_path,
    )


@pytest.mark.slow
def test_a_stream_stays_exactly_once_under_every_kind_of_fault(tmp_path: Path) -> None:
    prove(*STREAM, "--seed", "906", "--faults", "8", *IN_ONE_MACHINE)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([*BATCH, "--only", "kill,zombie"], "--only zombie: a driver has no ordinal"),
        ([*STREAM, "--only", "rebalance"], "--only rebalance: Spark divides the work"),
        ([*BATCH, "--run", "python loop.py"], "--run: jobs.refunds_batch:job is for Spark"),
        (["jobs.settlement_report:job"], "--judge-by"),
        (["jobs.settlement_report:job", "--judge-by", "jobs.refunds:job"], "settlement_report:job writes"),
        (["jobs.refunds:job", "--judge-by", "jobs.refunds:job"], "Fix: leave --judge-by out"),
        ([*BATCH, "--conf", "spark.driver.memory"], "--conf needs KEY=VALUE"),
    ],
)
def test_what_cannot_be_tried_on_spark_is_said_before_anything_starts(
    eos: Eos, monkeypatch: pytest.MonkeyPatch, arguments: list[str], named: str
) -> None:
    monkeypatch.chdir(REPOSITORY)
    ended = eos("prove", *arguments)
    assert ended.code == 2
    assert named in ended.err
    assert "Traceback" not in ended.err
