"""The proof's own machinery: what a run says of anomalies, how it is continued, and the page that it writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner
from typer.testing import Result as Ended

from tests.proof import __main__ as command_line
from tests.proof.results import Results
from tests.proof.row import Cell, Outcome, Row
from tests.proof.rows import ROWS
from tests.proof.running import queue

Run = Callable[[Path], Outcome]
Prove = Callable[..., Ended]


def exact(_: Path) -> Outcome:
    return Outcome(
        faults=25, records=1_000, committed_unknown=2, aborted_unknown=3, recoveries_s=[0.5, 1.5], looks=25
    )


def wrong(_: Path) -> Outcome:
    return Outcome(faults=25, records=1_000, anomalies=["3 lost"], again="eos prove the:job --seed 7")


def interrupted(_: Path) -> Outcome:
    raise KeyboardInterrupt


def impossible(_: Path) -> Outcome:
    msg = "no broker came up"
    raise RuntimeError(msg)


@pytest.fixture
def prove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prove:
    def run(cells: dict[str, Run], *arguments: str) -> Ended:
        made = [Cell(name=name, run=one, minutes=1) for name, one in cells.items()]
        row = Row(id="A1", title="a worker dies", goal=50, counts="kills", cells=lambda: made)
        monkeypatch.setattr(command_line, "ROWS", (row,))
        options = ["--results", str(tmp_path / "proof.jsonl"), "--directory", str(tmp_path / "cells")]
        return CliRunner().invoke(command_line.commands, [*options, *arguments], env={"COLUMNS": "200"})

    return run


def test_cells_that_are_exact_end_with_0_and_the_page_says_how_much_was_shown(
    prove: Prove, tmp_path: Path
) -> None:
    ended = prove({"seed 1": exact, "seed 2": exact})
    assert ended.exit_code == 0, ended.output
    assert "| 50 of 50 kills | 0 | 1.0 s, 1.5 s | 6.0% |" in (tmp_path / "PROOF.md").read_text()
    page = (tmp_path / "proof-cells.md").read_text()
    assert (
        "| A1 | 50 of 50 kills | 2 of 2 | 2,000 | 0 | 4 committed, 6 aborted | 1.0 s, 1.5 s | 6.0% |" in page
    )
    assert "`make prove ROWS=A1 AGAIN=1`" in page
    assert not list((tmp_path / "cells").iterdir()), "the files of what was exact are gone"


def test_anomaly_ends_with_7_and_the_line_that_makes_it_again(prove: Prove, tmp_path: Path) -> None:
    ended = prove({"seed 1": wrong, "seed 2": exact})
    assert ended.exit_code == 7
    assert "A1: 3 lost\n  Again: eos prove the:job --seed 7" in ended.output
    assert "A1 exact" in ended.output, "the others are run all the same"
    (kept,) = (tmp_path / "cells").iterdir()
    assert str(kept) in ended.output
    page = (tmp_path / "proof-cells.md").read_text()
    assert "- 3 lost (again: `eos prove the:job --seed 7`)" in page
    assert "6.0%" not in page, "nothing is bounded by what has failed"
    assert prove({"seed 1": exact, "seed 2": exact}).exit_code == 7, "it stays until the cell is run again"
    assert prove({"seed 1": exact, "seed 2": exact}, "--again").exit_code == 0


def test_interrupted_run_goes_on_where_it_ended(prove: Prove, tmp_path: Path) -> None:
    ran: list[str] = []

    def counted(directory: Path) -> Outcome:
        ran.append(directory.name)
        return exact(directory)

    assert prove({"seed 1": counted, "seed 2": interrupted}).exit_code != 0
    assert "1 of 2" in (tmp_path / "proof-cells.md").read_text()
    assert not list((tmp_path / "cells").iterdir())
    with (tmp_path / "proof.jsonl").open("a") as file:
        file.write('{"row": "A1", "cell": "seed')  # killed while it wrote
    assert prove({"seed 1": counted, "seed 2": counted}).exit_code == 0
    assert len(ran) == 2
    results = Results(tmp_path / "proof.jsonl")
    assert results.is_done("A1", "seed 1")
    assert results.is_done("A1", "seed 2")


def test_cell_that_could_not_be_run_is_no_result(prove: Prove, tmp_path: Path) -> None:
    ended = prove({"seed 1": impossible, "seed 2": exact})
    assert ended.exit_code == 1
    assert "no broker came up" in ended.output
    assert not Results(tmp_path / "proof.jsonl").is_done("A1", "seed 1")


def test_cell_that_was_skipped_is_run_where_it_can_be(prove: Prove, tmp_path: Path) -> None:
    skipped = Outcome(faults=0, records=0, skipped=True, note="it needs root")
    assert prove({"seed 1": lambda _: skipped}).exit_code == 0
    assert "skipped: it needs root" in (tmp_path / "proof-cells.md").read_text()
    assert prove({"seed 1": exact}).exit_code == 0
    assert "25 of 50 kills" in (tmp_path / "PROOF.md").read_text()


def test_wrong_loop_without_a_violation_is_no_proof(prove: Prove, tmp_path: Path) -> None:
    convicted = {"naive": lambda _: Outcome(faults=5, records=9, convicted=True)}
    assert prove(convicted).exit_code == 0
    assert "| 0 of 50 kills |" in (tmp_path / "PROOF.md").read_text(), "its faults are none of ours"
    missed = {"naive": lambda _: Outcome(faults=5, records=9, convicted=False)}
    ended = prove(missed, "--again")
    assert ended.exit_code == 1
    assert (
        "no violation found in a loop that is wrong on purpose: python -m tests.proof --rows A1 --again --cell naive"
        in ended.output
    )


def test_cell_that_does_not_fit_the_hours_waits(prove: Prove, tmp_path: Path) -> None:
    assert prove({"seed 1": impossible}, "--hours", "0.01").exit_code == 0


def test_row_that_is_not_there_is_named(prove: Prove) -> None:
    ended = prove({"seed 1": exact}, "--rows", "A99")
    assert ended.exit_code == 2
    assert "A99" in ended.output


def test_result_says_what_it_was_made_with(prove: Prove, tmp_path: Path) -> None:
    prove({"seed 1": exact})
    (line,) = (tmp_path / "proof.jsonl").read_text().splitlines()
    made_with = json.loads(line)["made_with"]
    assert made_with["librdkafka"]
    assert made_with["Apache Kafka"]
    assert "processors" in made_with["machine"]


def test_rows_have_names_of_their_own_and_so_have_their_cells() -> None:
    ids = [row.id for row in ROWS]
    assert len(ids) == len(set(ids))
    for row in ROWS:
        names = [cell.name for cell in row.cells()]
        assert names
        assert len(names) == len(set(names)), row.id


def test_first_comes_a_cell_of_each_row() -> None:
    waiting = queue(ROWS, Results(Path("none")))
    assert [row.id for row, _ in waiting[: len(ROWS)]] == [row.id for row in ROWS]
