"""Row: a line of the proof: cells, each of which is run and judged at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a cell.

    Attributes:
        faults: that happened.
        records: input records that were judged.
        anomalies: in words; empty: exact.
        convicted: of a loop that is wrong on purpose: whether it was convicted; None: it is one of ours.
        committed_unknown: transactions whose end nobody was told, and that were committed.
        aborted_unknown: the same, and they were aborted.
        recoveries_s: per fault, seconds from its end to the next confirmed commit.
        note: what else is to be known, why it was skipped for example.
        skipped: it can't be run on this machine.
        again: the command that makes the same faults again, if that is another than the row's.
        looks: how often all of the output was judged before the end.
        what: the faults that happened, by what they were.
    """

    faults: int
    records: int
    anomalies: Sequence[str] = ()
    convicted: bool | None = None
    committed_unknown: int = 0
    aborted_unknown: int = 0
    recoveries_s: Sequence[float] = ()
    note: str = ""
    skipped: bool = False
    again: str = ""
    looks: int = 0
    what: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is run and judged at once.

    Attributes:
        name: unique in its row, with all that decides it: by it a run that is continued knows what is done.
        run: in a fresh directory.
        minutes: about how long it takes, for what fits the hours.
    """

    name: str
    run: Callable[[Path], Outcome]
    minutes: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of the proof.

    Attributes:
        id: "A5", say.
        title: what happens to the job.
        goal: how many of what is counted it has to reach.
        counts: what is counted, in words: "kills", "held requests".
        cells: makes them.
    """

    id: str
    title: str
    goal: int
    counts: str
    cells: Callable[[], Iterable[Cell]]
