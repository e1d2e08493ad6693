"""`eos prove` of plain loops that share their input by a group: those that are right pass, those that are wrong do not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eos.local import LocalKafka
from tests.prove.group_loops import MISTAKES, STUCK
from tests.prove.test_prove import MODULE, REPOSITORY

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

LOOPS = Path(__file__).with_name("group_loops.py")
JAVA = Path(__file__).with_name("PlainLoop.java")
FOREIGN = "input/foreign records aborted,input/foreign transaction open, then aborted"


def prove(
    directory: Path, command: str, *arguments: str, **environment: str
) -> tuple[int, dict[str, Any], str]:
    """Its exit code, its figures, and what it said."""
    (directory / "copying.py").write_text(MODULE)
    given = ["copying:job", "--run", command, "--figures", "figures.json", "--quiet", "0.2", *arguments]
    ended = subprocess.run(
        [sys.executable, "-m", "eos.cli", "prove", *given, "--set", f"local.jars={REPOSITORY / '.eos/jars'}"],
        cwd=directory,
        env={**os.environ, "PARTITIONER": "murmur2_random", **environment},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    figures = directory / "figures.json"
    return (
        ended.returncode,
        json.loads(figures.read_text()) if figures.exists() else {},
        ended.stdout + ended.stderr,
    )


def loop(mistake: str, *more: str) -> str:
    return " ".join(["exec", sys.executable, str(LOOPS), mistake, *more])


def test_only_expiries_that_the_brokers_have_written_down_are_counted(tmp_path: Path) -> None:
    """The program's transactions live for twice as long as the settings say."""
    faults = ["--seed", "1", "--faults", "1", "--only", "expiry"]
    code, figures, said = prove(tmp_path, loop("none"), *faults, TIMEOUT_MS="20000")
    assert code == 0, said
    assert figures["faults"] == 1
    assert figures["transactions"]["aborted"] >= 1, figures


@pytest.mark.parametrize("option", [(), ("--partitioner", "consistent_random")], ids=["", "partitioner said"])
def test_a_plain_loop_with_librdkafkas_partitioner_passes_once_that_is_said(
    tmp_path: Path, option: tuple[str, ...]
) -> None:
    faults = ["--seed", "1", "--faults", "1", "--only", "kill", *option]
    code, figures, said = prove(tmp_path, loop("none"), *faults, PARTITIONER="consistent_random")
    assert code == (0 if option else 7), said
    named = [
        one for one in figures["against"] if "misplaced" in one and "--partitioner consistent_random" in one
    ]
    assert bool(named) is not bool(option), figures["against"]
    assert ("--partitioner consistent_random" in figures["again"]) is bool(option)


@pytest.mark.slow
def test_a_fault_that_cannot_happen_to_a_program_is_exit_code_7_and_the_last_line(tmp_path: Path) -> None:
    """It has no transactions."""
    program = f"exec {sys.executable} {LOOPS.with_name('naive_loops.py')} no-transaction"
    owned = ["--set", "ownership.mode=partition", "--set", "ownership.instances=2"]
    code, figures, said = prove(tmp_path, program, "--seed", "1", "--faults", "1", "--only", "expiry", *owned)
    assert code == 7, said
    assert figures["faults"] == 0
    assert "expiry did not happen in 12 tries (expiry: no transaction began)" in figures["not_shown"]
    assert figures["exactly_once"] is False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds_per_record", "faults"),
    [
        pytest.param("0.5", ["--faults", "2", "--only", "kill,drop", "--each"], id="slow records"),
        pytest.param("0", ["--faults", "2", "--only", FOREIGN, "--each"], id="aborted records at the end"),
        pytest.param(
            "0", ["--faults", "1", "--only", "input/partition added"], id="default metadata refresh"
        ),
        pytest.param("0", ["--faults", "3", "--only", "rebalance"], id="rebalances"),
    ],
)
def test_a_plain_loop_that_is_right_passes(
    tmp_path: Path, seconds_per_record: str, faults: list[str]
) -> None:
    code, figures, said = prove(tmp_path, loop("none", seconds_per_record), "--seed", "1", *faults)
    assert code == 0, said
    assert figures["records"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mistake", "faults", "found"),
    [
        ("two-transactions", ["--only", "pause", "--faults", "1"], "with outputs and without offsets"),
        ("too-high", ["--only", "pause", "--faults", "1"], "outputs belong to several commits of offsets"),
        ("no-revoke", ["--only", "rebalance", "--faults", "6", "--each"], "duplicated"),
    ],
)
def test_a_plain_loop_that_is_wrong_does_not_pass(
    tmp_path: Path, mistake: str, faults: list[str], found: str
) -> None:
    """The one without a revoke commits every 150 ms: that may be over before a rebalance is, unless a member is late."""
    assert mistake in MISTAKES
    code, figures, said = prove(tmp_path, loop(mistake), "--seed", "1", *faults, BATCH_S="0.15")
    assert code == 7, said
    assert any(found in one for one in figures["against"]), figures["against"]


@pytest.mark.slow
def test_a_loop_that_is_right_and_does_not_catch_up_is_not_finished_and_not_wrong(tmp_path: Path) -> None:
    faults = ["--seed", "1", "--faults", "1", "--only", "pause", "--report", "page"]
    code, figures, said = prove(tmp_path, loop(STUCK), *faults)
    assert (code, figures["against"], figures["exactly_once"]) == (5, [], False), said
    assert any("did not catch up" in one for one in figures["unfinished"])
    assert figures["records"] > 0
    assert "not finished: nothing speaks against what is committed" in said
    assert "not finished: nothing" in (tmp_path / "page" / "report.html").read_text()


@pytest.mark.slow
def test_a_loop_whose_id_is_drawn_at_each_start_does_not_pass_with_the_default_timeout_either(
    tmp_path: Path,
) -> None:
    """What its predecessor has left open holds its successor back for a minute, and fences nobody."""
    program = f"exec {sys.executable} {LOOPS.with_name('naive_loops.py')} random-id"
    owned = ["--set", "ownership.mode=partition", "--set", "ownership.instances=2"]
    faults = ["--seed", "1", "--faults", "4", "--only", "zombie", "--each"]
    code, figures, said = prove(tmp_path, program, *faults, *owned, TIMEOUT_MS="60000")
    assert code == 7, said
    assert any("duplicated" in one for one in figures["against"]), figures["against"]


@pytest.mark.slow
def test_a_loop_in_java_has_every_fault_at_its_requests_and_passes(tmp_path: Path) -> None:
    """It connects by sockets of IPv6, and its transactions send no AddPartitionsToTxn."""
    if shutil.which("javac") is None:
        pytest.skip("there is no JDK to compile a Java source with")
    jars = LocalKafka(tmp_path / "unused", jars=REPOSITORY / ".eos/jars").classpath
    subprocess.run(["javac", "-cp", jars, "-d", str(tmp_path), str(JAVA)], check=True)
    program = f"exec java -Xmx128m -cp '{tmp_path}:{jars}' PlainLoop originals copies"
    kinds = "kill,expiry,late,drop,error,zombie"
    code, figures, said = prove(tmp_path, program, "--seed", "8", "--faults", "12", "--only", kinds)
    assert code == 0, said
    assert figures["faults"] == 12
    assert not any("ADD_PARTITIONS" in one or "ADD_OFFSETS" in one for one in figures["faults_by_what"])
