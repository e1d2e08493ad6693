"""What the demonstration shows at its end: the proof, and the accident that it was put to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from eos.ops.check.transactions import TransactionDescription
from eos.ops.verifier.report import Difference, VerificationReport
from jobs.demo_books import Books
from jobs.demo_way import Outcome

_PER_TOPIC = [kind for kind in Difference if kind not in (Difference.TORN, Difference.FAILED)]


@dataclass
class Accident:
    """What a kill met, and what came after it.

    Attributes:
        victim: the process that was killed.
        open_shards: the transactions that were open at that moment, as their coordinator saw them.
        epochs_before, epochs_after: producer epochs by transactional.id.
        seconds: from the kill until the shard had its next owner.
    """

    victim: str
    open_shards: dict[str, TransactionDescription]
    epochs_before: dict[str, int]
    epochs_after: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


def show_report(console: Console, report: VerificationReport) -> None:
    """Inputs, then outputs against the transform applied again."""
    inputs = _table("input", "partition", "committed offset", "records before it")
    for one in report.inputs:
        inputs.add_row(str(one.partition), f"{one.committed or 0:,}", f"{one.records:,}")
    console.print(inputs)
    outputs = _table(
        "output (read_committed)",
        "topic",
        "expected",
        "found",
        *_PER_TOPIC,
    )
    for topic in report.outputs:
        figures = (topic.expected, topic.found, *(topic.differences[kind] for kind in _PER_TOPIC))
        outputs.add_row(topic.topic, *(f"{figure:,}" for figure in figures))
    console.print(outputs)
    console.print(f"  torn (some but not all outputs of a record): {report.torn:,}\n")
    for example in report.examples:
        console.print(f"[red]{example}[/]")


def show_accident(console: Console, accident: Accident, aborted: int) -> None:
    """What happened to the victim, and the producer epochs around it."""
    shards = _table("the accident", "transactional.id", "producer epoch before", "after")
    for name, epoch in sorted(accident.epochs_before.items()):
        shards.add_row(name, "-" if epoch < 0 else str(epoch), str(accident.epochs_after.get(name, "?")))
    console.print(shards)
    opened = len(accident.open_shards)
    partitions = sum(len(state.partitions) for state in accident.open_shards.values())
    console.print(
        f"  {accident.victim} got SIGKILL with {opened} transaction(s) open on {partitions} partitions"
        if opened
        else f"  {accident.victim} got SIGKILL while no transaction was open"
    )
    console.print(f"  its work had a new owner after {accident.seconds:.1f} s")
    console.print(f"  transactions aborted by the takeover: {aborted}")


def show_settlement_report(console: Console, reports: Sequence[Mapping[str, Any]]) -> None:
    """A few of the records that the settlement report has written."""
    title = "settlement report (some merchants; amounts in minor units)"
    table = _table(title, "merchant", "day", "settled", "refunded", "share")
    table.add_column("top reason", no_wrap=True)
    for report in reports:
        reasons = report.get("top_reasons") or [{"reason": "-"}]
        for number, total in enumerate(report["totals"]):
            is_first = number == 0
            table.add_row(
                report["name"] if is_first else "",
                report["day"] if is_first else "",
                f"{total['settled_minor']:,} {total['currency']}",
                f"{total['refunded_minor']:,}",
                f"{total['refunded_share']:.1%}",
                reasons[0]["reason"] if is_first else "",
            )
    console.print(table)


def show_books(console: Console, books: Books, outcome: Outcome) -> None:
    """The books of both databases, and the accidents on the way between them."""
    sums = _table(
        "the books (SQL over both databases; amounts in minor units)",
        "currency",
        "asked for",
        "amount",
        "decided",
        "amount",
        "refunded",
        "amount",
    )
    for currency in sorted({currency for _, currency in books.asked.keys() | books.decided.keys()}):
        figures = [
            figure
            for book in (books.asked, books.decided, books.refunded)
            for figure in _of_currency(book, currency)
        ]
        sums.add_row(currency, *(f"{figure:,}" for figure in figures))
    console.print(sums)
    accidents = _table("the accidents", "process", "pid", "went on after", "its transaction was undone")
    for stage in outcome.stages:
        undone = "yes" if stage.inside.was_undone() else "[red]no[/]"
        accidents.add_row(stage.name, str(stage.victim), f"{stage.seconds:.1f} s", undone)
    console.print(accidents)
    compared = len(books.asked.keys() | books.decided.keys())
    console.print(
        f"  {outcome.written:,} settlements were committed, and {outcome.rolled_back:,} rolled back"
    )
    console.print(
        f"  counts and sums by merchant and currency: {compared:,} compared, {books.differing:,} differ"
    )
    console.print(
        f"  lost: {books.lost:,}   doubled: {books.doubled:,}   torn: {books.torn:,}   of no settlement: {books.unasked:,}"
    )


def _of_currency(book: Mapping[tuple[str, str], tuple[int, int]], currency: str) -> tuple[int, int]:
    found = [sums for (_, of), sums in book.items() if of == currency]
    return sum(count for count, _ in found), sum(amount for _, amount in found)


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(
        title=f"[bold]{title}[/]",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=0,
    )
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", overflow="fold")
    return table
