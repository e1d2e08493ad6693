"""Printing: a command's answer, with two faces: JSON for programs, lines and tables for people."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from eos.base.printable import printable, printable_lines

if TYPE_CHECKING:
    from eos.offsets import Partition

_NARROW = 60  # characters; in less, the columns of a table are too narrow to read


class Table(NamedTuple):
    """As `print_table` prints it."""

    head: Sequence[str]
    rows: Iterable[Sequence[str]]


def answer(
    plain: object, shown: Callable[[], Iterable[str | Table]], *, as_json: bool, indent: int | None = 2
) -> None:
    """Print an answer: ``plain`` for programs, and else what ``shown`` yields, a line or table each."""
    if as_json:
        typer.echo(json.dumps(plain, indent=indent))
        return
    for one in shown():
        if isinstance(one, Table):
            print_table(*one)
        else:
            say(one)


def picked(one: object | None, *names: str) -> dict[str, Any]:
    """These attributes, by their names; without the object, None each."""
    return {name: one if one is None else getattr(one, name) for name in names}


def at(partition: Partition) -> dict[str, Any]:
    """A partition, for programs."""
    return {"topic": partition.topic, "partition": partition.number}


def print_table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    foot: Sequence[str] = (),
    figures: bool = False,
    unbroken: bool = False,
) -> None:
    """Print a table on stdout, as wide as the terminal.

    Args:
        head: the names of the columns; empty names show no head.
        rows: their texts.
        foot: below the columns.
        figures: whether all columns but the first are figures, which stand at the right.
        unbroken: whether each row has to fit into one line; where one does not, all are printed below each other.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    shown = [[printable(text) for text in row] for row in rows]
    console = Console(highlight=False, markup=False, emoji=False)
    if console.width < (_width(head, shown) if unbroken else _NARROW):
        _print_below_each_other(head, [*shown, *([list(foot)] if foot else [])])
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=any(head), show_footer=bool(foot))
    for number, name in enumerate(head):
        justify = "right" if figures and number else "left"
        table.add_column(name, foot[number] if foot else "", overflow="fold", justify=justify)  # type: ignore[arg-type]
    for row in shown:
        table.add_row(*row)
    console.print(table)


def _width(head: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """How wide the table is if no text is folded: columns are three characters apart, and have one on either side."""
    columns = zip(*[head, *rows], strict=True)
    return sum(max(map(len, column)) + 3 for column in columns) - 1


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
