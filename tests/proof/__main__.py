"""``python -m tests.proof``: the command line of `make prove`."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from eos.cli.bars import bars
from eos.cli.printing import print_table
from eos.exits import ExitCode
from tests.proof.page import HEAD, pages, summaries
from tests.proof.page import again as anew
from tests.proof.results import Results
from tests.proof.rows import ROWS
from tests.proof.running import REPOSITORY, queue, run

_RESULTS = REPOSITORY / "docs/proof.jsonl"
_SHOWN = (
    "row",
    "reached",
    "cells",
    "anomalies",
    "recovery",
    "wrong loops found",
    "time",
)  # what a terminal is wide enough for

commands = typer.Typer(add_completion=False, rich_markup_mode=None)


@commands.command()
def prove(
    *,
    hours: Annotated[float, typer.Option(min=0.0, help="A cell that would end later is not begun.")] = 1.0,
    rows: Annotated[str, typer.Option(metavar="A1,…", help="These rows; all if not given.")] = "",
    cell: Annotated[str, typer.Option(metavar="TEXT", help="Cells with this in their names.")] = "",
    again: Annotated[bool, typer.Option("--again", help="What is done is run once more.")] = False,
    results: Annotated[Path, typer.Option(help="A line for each cell; the pages are beside it.")] = _RESULTS,
    directory: Annotated[
        Path, typer.Option(help="Files of the cells; those that are not exact stay.")
    ] = Path(".eos/proof"),
) -> None:
    """Run the rows of the proof, as far as they fit the hours, and write docs/PROOF.md and docs/proof-cells.md of all results.

    It goes on where it has ended. Exit code 7: an anomaly, with the line that makes its faults again; 1: a cell could not be
    run, or no violation was found in a loop that is wrong on purpose.
    """
    known = {row.id: row for row in ROWS}
    names = [name.strip() for name in rows.split(",") if name.strip()] or list(known)
    if unknown := sorted(set(names) - set(known)):
        raise typer.BadParameter(f"{', '.join(unknown)}: no such row. There are {', '.join(known)}")
    chosen = [known[name] for name in names]
    found = Results(results)
    waiting = queue(chosen, found, again=again, only=cell)
    with bars() as progress:
        try:
            failed = run(waiting, found, directory.absolute(), hours=hours, say=typer.echo, progress=progress)
        finally:
            for name, text in pages(ROWS, found).items():
                results.with_name(name).write_text(text)
    shown = summaries(chosen, found)
    print_table(
        _SHOWN, [[dict(zip(HEAD, one.texts(), strict=True))[name] for name in _SHOWN] for one in shown]
    )
    for one in shown:
        for result, text in one.anomalies:
            typer.echo(f"{one.row.id}: {text}\n  Again: {anew(result)}", err=True)
        for result in one.missed:
            typer.echo(
                f"{one.row.id}: no violation found in a loop that is wrong on purpose: {anew(result)}",
                err=True,
            )
    if any(one.anomalies for one in shown):
        raise typer.Exit(ExitCode.NOT_EXACTLY_ONCE)
    if failed or any(one.missed for one in shown):
        raise typer.Exit(ExitCode.UNEXPECTED)


if __name__ == "__main__":
    # Both signals leave through the blocks that end what was started; a shell's background would ignore SIGINT, here and below.
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, signal.default_int_handler)
    commands(prog_name="python -m tests.proof")
