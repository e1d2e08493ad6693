"""`eos prove` of jobs with a database at one end: those of eos pass, and programs with one mistake do not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eos.prove.database_proxy import Statement
from eos.prove.ends import ENDS
from eos.prove.faults import FaultKind, faults
from tests.prove.naive_databases import BY_ID, BY_XID, SINKS
from tests.prove.test_prove import REPOSITORY
from tests.support.databases import open_directory

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

SINK = ["tests.proof.database_jobs:sink", "--set", "transaction.interval_ms=50"]
RELAY = ["tests.proof.database_jobs:relay", "--input", "tests.proof.database_jobs:orders"]
OWNED = ["--set", "ownership.mode=partition", "--set", "ownership.instances=2"]
NAIVE = "tests.prove.naive_databases"
PROGRAM = f"exec {sys.executable} {Path(__file__).with_name('naive_databases.py')}"
KILLS_AT_COMMITS, ZOMBIES_AT_WRITES = 14, 329  # seeds


def prove(directory: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Its exit code, its figures, and what it said."""
    figures = directory / "figures.json"
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "eos.cli", "prove", *arguments, "--figures", str(figures)),
            *("--quiet", "0.2", "--set", f"local.jars={REPOSITORY / '.eos/jars'}"),
        ],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(directory)},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    found = json.loads(figures.read_text()) if figures.exists() else {}
    return ended.returncode, found, ended.stdout + ended.stderr


@pytest.fixture
def place() -> Iterator[Path]:
    with open_directory() as directory:
        yield directory


def test_a_sink_stays_exactly_once_when_it_is_killed_and_its_database_fails(place: Path) -> None:
    code, figures, said = prove(place, *SINK, "--seed", "2", "--faults", "3", "--only", "kill,database")
    assert code == 0, said
    assert figures["faults"] == 3
    assert figures["records"] > 0
    assert "rows of payments" in said


def test_a_relay_stays_exactly_once_when_it_is_killed_and_its_database_fails(place: Path) -> None:
    code, figures, said = prove(place, *RELAY, "--seed", "2", "--faults", "3", "--only", "kill,database")
    assert code == 0, said
    assert figures["faults"] == 3
    assert figures["transactions"]["committed"] > 0
    assert figures["records"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "job", [SINK, [*SINK, *OWNED], RELAY], ids=["sink", "sink that owns partitions", "relay"]
)
def test_every_kind_of_fault_leaves_a_job_with_a_database_exactly_once(place: Path, job: list[str]) -> None:
    code, figures, said = prove(place, *job, "--seed", "5", "--faults", "10")
    assert code == 0, said
    assert figures["faults"] == 10


@pytest.mark.parametrize(
    ("mistake", "seed", "kind"),
    [
        pytest.param("offsets-first", KILLS_AT_COMMITS, "kill", marks=pytest.mark.slow),
        ("offsets-behind", KILLS_AT_COMMITS, "kill"),
        pytest.param("dedup-without-lock", ZOMBIES_AT_WRITES, "zombie", marks=pytest.mark.slow),
    ],
)
def test_a_sink_with_one_mistake_is_found_out(place: Path, mistake: str, seed: int, kind: str) -> None:
    assert mistake in SINKS
    arguments = [f"{NAIVE}:sink", "--input", f"{NAIVE}:payments", *OWNED, "--seed", str(seed)]
    code, figures, said = prove(
        place, *arguments, "--faults", "2", "--only", kind, "--run", f"{PROGRAM} {mistake}"
    )
    assert code == 7, said
    assert any("balances: " in one and "changed" in one for one in figures["against"]), figures["against"]


@pytest.mark.slow
def test_a_relay_that_goes_by_the_ids_of_its_rows_is_found_out(place: Path) -> None:
    """Without any fault: transactions that commit later than others with higher ids are skipped."""
    arguments = [f"{NAIVE}:relay", "--input", f"{NAIVE}:orders", "--seed", "1", "--faults", "1"]
    code, figures, said = prove(place, *arguments, "--only", "pause", "--run", f"{PROGRAM} {BY_ID}")
    assert code == 7, said
    assert any("without a record" in one for one in figures["against"]), figures["against"]


def test_a_relay_that_goes_by_the_numbers_of_transactions_is_found_out(place: Path) -> None:
    """By the order: as long as its transactions live, it neither skips nor doubles a row."""
    arguments = [f"{NAIVE}:relay", "--input", f"{NAIVE}:orders", "--seed", "1", "--faults", "1"]
    arguments += ["--only", "pause", "--run", f"{PROGRAM} {BY_XID}"]
    code, figures, said = prove(place, *arguments)
    assert code == 7, said
    assert "(reordered)" in figures["against"][0], figures["against"]
    # A pause that outlives its transaction makes it double rows, too.
    if not figures["transactions"].get("aborted"):
        assert not any("without a record" in one or "more than" in one for one in figures["against"]), said


def test_the_seeds_meet_what_the_mistakes_cannot_survive() -> None:
    requests = ENDS["tables"].requests
    kills = faults(KILLS_AT_COMMITS, [FaultKind.KILL], requests=requests)
    assert [(one.api, one.edge.value) for one, _ in zip(kills, range(2), strict=False)] == [
        (Statement.COMMIT, "request"),
        (Statement.COMMIT, "reply"),
    ]
    zombies = faults(ZOMBIES_AT_WRITES, [FaultKind.ZOMBIE], requests=requests)
    assert [one.api for one, _ in zip(zombies, range(2), strict=False)] == [Statement.WRITE] * 2
