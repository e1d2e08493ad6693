"""Texts of commands: what their helps share, and tables."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import typer

from eos.exits import ExitCode
from eos.printable import printable, printable_lines

_NARROW = 60  # characters; in less, the columns of a table are too narrow to read

Command = TypeVar("Command", bound=Callable[..., Any])

_MEANS = {
    ExitCode.DONE: "done",
    ExitCode.UNEXPECTED: "unexpected error",
    ExitCode.CONFIGURATION: "a setting, a grant or the command line is wrong",
    ExitCode.FENCED: "fenced: another owner holds the shard",
    ExitCode.POISON: "poison: a record cannot be processed; the log has its coordinates",
    ExitCode.UNAVAILABLE: "the cluster did not answer in time, brought no records of a partition, or an open transaction "
    "held input back: start again later",
    ExitCode.OFFSET_GAP: "input was deleted before it was processed",
    ExitCode.NOT_EXACTLY_ONCE: "the verification found a difference, or had nothing to compare or to show",
}


def command(
    commands: typer.Typer, *codes: ExitCode, name: str | None = None, unavailable: str = ""
) -> Callable[[Command], Command]:
    """Make a function a command: its docstring is the help, which ends in its exit codes.

    Args:
        commands: the group that it belongs to.
        *codes: the exit codes that it may end with.
        name: its name, if that is not the function's.
        unavailable: what UNAVAILABLE means for it, if not what it means for the others.
    """
    means = {ExitCode.UNAVAILABLE: unavailable} if unavailable else {}

    def decorate(function: Command) -> Command:
        help_text = help_of(function.__doc__ or "")
        return commands.command(name, help=help_text, epilog=exit_codes(codes, means))(function)

    return decorate


def exit_codes(codes: Iterable[ExitCode], means: Mapping[ExitCode, str] | None = None) -> str:
    """The epilog of a help: these exit codes and their meaning."""
    known = {**_MEANS, **(means or {})}
    return "\n".join(["", "[bold]Exit codes[/bold]", *(f"  {int(code)}  {known[code]}" for code in codes)])


def help_of(text: str) -> str:
    """A help text, its paragraphs as one line each, for the terminal's width; indented lines stay as they are.

    Square brackets are typer's markup: a backslash before them keeps them.
    """
    lines: list[str] = []
    for line in inspect.cleandoc(text).splitlines():
        if line and lines and lines[-1] and not line.startswith(" "):
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

    shown = [[printable(text) for text in row] for row in rows]
    console = Console(highlight=False, markup=False, emoji=False)
    if console.width < _NARROW:
        _print_below_each_other(head, [*shown, *([list(foot)] if foot else [])])
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=any(head), show_footer=bool(foot))
    for number, name in enumerate(head):
        justify = "right" if figures and number else "left"
        table.add_column(name, foot[number] if foot else "", overflow="fold", justify=justify)  # type: ignore[arg-type]
    for row in shown:
        table.add_row(*row)
    console.print(table)


def _print_below_each_other(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """For a narrow terminal, where columns would be a few letters wide: each row's texts in lines of their own."""
    for row in rows:
        first, *others = zip(head, row, strict=True)
        typer.echo(first[1] if others and not others[-1][0] else ": ".join(filter(None, first)))
        for name, text in others:
            if text:
                typer.echo(f"  {name}: {text}" if name else f"  {text}")


def say(text: str, *, lines: bool = False) -> None:
    """Print a line on stdout, or several; what is not printable in it is escaped."""
    typer.echo(printable_lines(text) if lines else printable(text))


def age(seconds: float) -> str:
    """A duration in its largest unit."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
