"""What the demonstration shows at its end: the proof, and the accident that it was put to."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich import box
from rich.console import Console
from rich.table import Table

from eos.check.report import VerificationReport


@dataclass
class Takeover:
    """What the kill met, and what came after it.

    Attributes:
        ordinal, pid, producer_id: the worker that was killed, and its producer.
        open_partitions: of its transaction, as the coordinator saw it while the worker stood still; 0 = none open.
        epochs_before, epochs_after: producer epochs by transactional.id.
        seconds: from the kill until the replacement's session was open.
    """

    ordinal: int
    pid: int
    producer_id: int
    open_partitions: int
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
        "lost",
        "duplicated",
        "unexpected",
        "reordered",
    )
    for topic in report.outputs:
        figures = (
            topic.expected,
            topic.found,
            topic.lost,
            topic.duplicated,
            topic.unexpected,
            topic.reordered,
        )
        outputs.add_row(topic.topic, *(f"{figure:,}" for figure in figures))
    console.print(outputs)
    console.print(f"  torn (some but not all outputs of a record): {report.torn:,}\n")
    for example in report.examples:
        console.print(f"[red]{example}[/]")


def show_takeover(console: Console, takeover: Takeover, aborted: int) -> None:
    """What happened to the worker, and the producer epochs around it."""
    shards = _table("the accident", "transactional.id", "producer epoch before", "after")
    for name, epoch in sorted(takeover.epochs_before.items()):
        shards.add_row(name, str(epoch), str(takeover.epochs_after.get(name, "?")))
    console.print(shards)
    where = (
        f"inside a transaction with {takeover.open_partitions} partitions"
        if takeover.open_partitions
        else "idle"
    )
    console.print(f"  worker {takeover.ordinal} (pid {takeover.pid}) got SIGKILL {where}")
    console.print(f"  its replacement was open after {takeover.seconds:.1f} s")
    console.print(f"  transactions aborted by the takeover: {aborted}")


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(
        title=f"[bold]{title}[/]",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 0, 0, 1),
    )
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right")
    return table
