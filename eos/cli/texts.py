"""Texts of commands: what their helps share, and tables."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence

from eos.exits import ExitCode

_MEANS = {
    ExitCode.DONE: "done",
    ExitCode.UNEXPECTED: "unexpected error",
    ExitCode.CONFIGURATION: "a setting, a grant or the command line is wrong",
    ExitCode.FENCED: "fenced: another owner holds the shard",
    ExitCode.POISON: "poison: a record cannot be processed; the log has its coordinates",
    ExitCode.UNAVAILABLE: "the cluster did not answer in time, brought no records of a partition, or an open transaction "
    "held input back: start again later",
    ExitCode.OFFSET_GAP: "input was deleted before it was processed",
    ExitCode.NOT_EXACTLY_ONCE: "the verification found a difference, or no record was processed",
}


def exit_codes(*codes: ExitCode) -> str:
    """The epilog of a help: these exit codes and their meaning."""
    return "\n".join(["", "[bold]Exit codes[/bold]", *(f"  {int(code)}  {_MEANS[code]}" for code in codes)])


def help_of(text: str) -> str:
    """A help text, its paragraphs as one line each, for the terminal's width; indented lines stay as they are.

    Square brackets are typer's markup: a backslash before them keeps them.
    """
    lines: list[str] = []
    for line in inspect.cleandoc(text).splitlines():
        goes_on = bool(line and lines and lines[-1]) and not line.startswith(" ")
        if goes_on:
            lines[-1] += f" {line}"
        else:
            lines.append(line)
    # typer dedents what follows the first paragraph by its second line, an example's; a blank line more is its second.
    return "\n".join(lines).replace("\n\n", "\n\n\n", 1)


def print_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, foot: Sequence[str] = (), figures: bool = False
) -> None:
    """Print a table on stdout, as wide as the terminal.

    Args:
        head: the names of the columns; empty names show no head.
        rows: their texts.
        foot: below the columns.
        figures: whether all columns but the first are figures, which stand at the right.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=any(head), show_footer=bool(foot))
    for number, name in enumerate(head):
        justify = "right" if figures and number else "left"
        table.add_column(name, foot[number] if foot else "", overflow="fold", justify=justify)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, markup=False, emoji=False).print(table)
