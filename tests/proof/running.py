"""Running: cells one after the other, as long as there is time; each result is written at once."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import mkdtemp

from eos.base.deadline import Deadline
from tests.proof.results import Result, Results, made_with, now
from tests.proof.row import Cell, Row

REPOSITORY = Path(__file__).parents[2]
Progress = Callable[[str, int, int], None]


def queue(
    rows: Sequence[Row], results: Results, *, again: bool = False, only: str = ""
) -> list[tuple[Row, Cell]]:
    """What is to be run: the first cell of each row, then each row as far as the others.

    Args:
        rows: whose cells.
        results: what is done already.
        again: run that, too.
        only: cells with this in their names.
    """
    placed = []
    for number, row in enumerate(rows):
        cells = list(row.cells())
        placed += [(at / len(cells), number, row, cell) for at, cell in enumerate(cells) if only in cell.name]
    placed.sort(key=lambda one: one[:2])
    return [(row, cell) for _, _, row, cell in placed if again or not results.is_done(row.id, cell.name)]


def run(
    waiting: Sequence[tuple[Row, Cell]],
    results: Results,
    directory: Path,
    *,
    hours: float,
    say: Callable[[str], None],
    progress: Progress = lambda *_: None,
) -> int:
    """Run what fits.

    Args:
        waiting: cells in their order.
        results: where theirs go.
        directory: each cell has one in it, which stays if it was not exact.
        hours: a cell that would end later is not begun.
        say: called with a line for each cell.
        progress: called with a stage, how much of it is done, and of how much.

    Returns:
        How many could not be run.
    """
    over, failed, versions = Deadline(hours * 3600), 0, made_with(REPOSITORY)
    for done, (row, cell) in enumerate(waiting):
        progress("cells", done, len(waiting))
        if cell.minutes * 60 > over.left_s:
            continue
        directory.mkdir(parents=True, exist_ok=True)
        place = Path(mkdtemp(prefix=f"{row.id}-", dir=directory))
        began = time.monotonic()
        try:
            outcome = cell.run(place)
        except KeyboardInterrupt:
            shutil.rmtree(place, ignore_errors=True)
            raise
        except Exception as error:  # noqa: BLE001 - the others are run all the same
            failed += 1
            say(f"{row.id} could not be run: {cell.name}: {error} (its files: {place})")
            continue
        seconds = round(time.monotonic() - began, 1)
        results.add(
            Result(
                row=row.id, cell=cell.name, ended=now(), seconds=seconds, made_with=versions, outcome=outcome
            )
        )
        if outcome.skipped:
            verdict = f"skipped: {outcome.note}"
        elif outcome.anomalies:
            verdict = f"NOT EXACT: {outcome.anomalies[0]} (its files: {place})"
        else:
            verdict = {None: "exact", True: "violation found", False: "NO VIOLATION FOUND"}[outcome.convicted]
        say(f"{row.id} {verdict}: {outcome.faults} {row.counts}, {seconds:.0f} s: {cell.name}")
        if not outcome.anomalies:
            shutil.rmtree(place, ignore_errors=True)
    return failed
