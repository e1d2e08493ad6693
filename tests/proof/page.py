"""Pages: what the results say, as docs/PROOF.md, a summary, and docs/proof-cells.md, every cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from shlex import quote
from statistics import quantiles

from eos.base.listing import counted
from tests.proof.results import Result, Results
from tests.proof.row import Row

SUMMARY_PAGE, CELLS_PAGE = "PROOF.md", "proof-cells.md"

HEAD = (
    "row",
    "reached",
    "cells",
    "records",
    "anomalies",
    "unknown",
    "recovery",
    "at most",
    "wrong loops found",
    "time",
)
_SUMMARY = ("row", "fault", "reached", "anomalies", "recovery", "at most", "wrong loops found")
_INTRODUCTION = """\
# Proof

What came of the faults that eos was put through, by the hundred. [Guarantees](GUARANTEES.md) says what is promised. `make prove` writes this page and
[every cell](proof-cells.md) from [proof.jsonl](proof.jsonl); nothing here is written by hand.
"""
_HOW_TO_READ = """\
## How to read it

- *reached*: faults that are known to have happened, of how many are wanted. A fault that did not happen is not counted.
- *anomalies*: cells with a record that is lost, doubled, torn, in the wrong order or visible though aborted, with committed offsets that are not the
  output's, with a transaction that stays open, or with a job that does not catch up. Each one is listed with [its row](proof-cells.md).
- *recovery*: the time from a fault's end until all input is committed and no transaction is open, p50 and p99. It includes half a second in which input
  still comes. It is measured where each fault is judged by itself; in A13 and A14 until the next commit.
- *at most*: the share of such faults that may still break it, at 95 % confidence, when none of *n* has: 3/*n*. It holds for faults of these kinds, as
  independent as their seeds; it is never 0.
- *wrong loops found*: loops that are wrong on purpose, under the same faults. A proof that finds no violation in them shows nothing.

`eos verify` and the brokers' own log judge each cell at its end. Many cells are judged after each fault too.

## See it yourself

```console
$ make prove                          # what fits an hour; it goes on where it ended
$ make prove HOURS=8
$ make prove ROWS=A1,A6               # these rows
$ make prove ROWS=A1 AGAIN=1          # once more, though it is done
```

Each cell can be run alone: the [list](proof-cells.md) has its command, often an `eos prove` line.
"""
_CELLS = """\
# Proof, cell by cell

The appendix of [the proof](PROOF.md), which says how to read the first columns. A *cell* is one run, with a seed of its own.

- *unknown*: transactions whose end no worker learned, because it was dead or the answer was lost; the brokers' log says what became of them. (It is not known of
  a loop of your own.)
- *looks*: how often the whole output was compared with the committed offsets before the cell's end. If it is as large as the number of faults, that was
  after each of them.
"""
_MADE_WITH = """\
## Versions and machine
"""


_LISTED = 40


@dataclass(frozen=True)
class Summary:
    """What a row has come to so far."""

    row: Row
    results: Sequence[Result]  # of those of its cells that were run, in their order
    cells: int

    @property
    def ours(self) -> list[Result]:
        """Those of eos, not of a loop that is wrong on purpose."""
        return [one for one in self.results if one.outcome.convicted is None and not one.outcome.skipped]

    @property
    def naive(self) -> list[Result]:
        """Those of a loop that is wrong on purpose."""
        return [one for one in self.results if one.outcome.convicted is not None]

    @property
    def anomalies(self) -> list[tuple[Result, str]]:
        """Everything that speaks against it."""
        return [(one, text) for one in self.ours for text in one.outcome.anomalies]

    @property
    def missed(self) -> list[Result]:
        """Wrong loops in which no violation was found."""
        return [one for one in self.naive if not one.outcome.convicted]

    def texts(self) -> list[str]:
        """The row of the table."""
        ours = [one.outcome for one in self.ours]
        faults = sum(one.faults for one in ours)
        times = sorted(second for one in ours for second in one.recoveries_s)
        unknown = sum(one.committed_unknown for one in ours), sum(one.aborted_unknown for one in ours)
        convicted = f"{len(self.naive) - len(self.missed)} of {len(self.naive)}" if self.naive else ""
        recovery = ""
        if len(times) > 1:
            cuts = quantiles(times, n=100, method="inclusive")
            recovery = f"{cuts[49]:.1f} s, {cuts[98]:.1f} s"
        return [
            self.row.id,
            f"{faults:,} of {self.row.goal:,} {self.row.counts}",
            f"{len(self.ours) + len(self.naive)} of {self.cells}",
            f"{sum(one.records for one in ours):,}",
            f"{sum(bool(one.anomalies) for one in ours)}",
            f"{unknown[0]:,} committed, {unknown[1]:,} aborted" if any(unknown) else "",
            recovery,
            _bound(faults) if faults and not self.anomalies else "",
            convicted,
            f"{sum(one.seconds for one in self.results) / 60:.0f} min",
        ]


def summaries(rows: Sequence[Row], results: Results) -> list[Summary]:
    """Of each row."""
    made = []
    for row in rows:
        names = [cell.name for cell in row.cells()]
        found = [one for name in names if (one := results.of(row.id, name)) is not None]
        made.append(Summary(row, found, len(names)))
    return made


def pages(rows: Sequence[Row], results: Results) -> dict[str, str]:
    """File name -> its text."""
    shown = [one for one in summaries(rows, results) if one.results]
    cells = [_CELLS]
    for summary in shown:
        cells += _section(summary)
    return {
        SUMMARY_PAGE: "\n".join(
            [_INTRODUCTION, _table(_SUMMARY, [_short(one) for one in shown]), _HOW_TO_READ]
        ),
        CELLS_PAGE: "\n".join([*cells, _MADE_WITH, *_made_with(shown)]),
    }


def _short(summary: Summary) -> list[str]:
    row = summary.row
    texts = dict(zip(HEAD, summary.texts(), strict=True))
    return [f"[{row.id}]({CELLS_PAGE}#{row.id.lower()})", row.title, *(texts[name] for name in _SUMMARY[2:])]


def _section(summary: Summary) -> Iterator[str]:
    row = summary.row
    yield f"## {row.id}\n"
    yield f"{row.title[0].upper()}{row.title[1:]}. Again: `make prove ROWS={row.id} AGAIN=1`\n"
    yield _table(HEAD, [summary.texts()])
    if summary.anomalies:
        yield "Anomalies:\n"
        yield "\n".join(f"- {text} (again: `{again(one)}`)" for one, text in summary.anomalies) + "\n"
    what = sum((Counter(one.outcome.what) for one in summary.ours), Counter[str]())
    if what:
        yield "; ".join(f"{name}: {count}" for name, count in sorted(what.items())) + ".\n"
    listed = [one for one in summary.results if len(summary.results) <= _LISTED or _is_odd(one)]
    if len(listed) < len(summary.results):
        yield f"{len(summary.results):,} cells, each a line of proof.jsonl; those of which more is to be said:\n"
    cells = [
        (
            f"`{again(one)}`",
            f"{one.outcome.faults:,}",
            f"{one.outcome.looks:,}",
            f"{one.outcome.records:,}",
            _verdict(one),
            f"{one.seconds:.0f} s",
        )
        for one in listed
    ]
    yield _table(("cell", row.counts, "looks", "records", "", "time"), cells)


def again(one: Result) -> str:
    """The command that makes the faults of a cell again."""
    return one.outcome.again or f"python -m tests.proof --rows {one.row} --again --cell {quote(one.cell)}"


def _is_odd(one: Result) -> bool:
    outcome = one.outcome
    return bool(outcome.anomalies or outcome.skipped or outcome.note or outcome.convicted is False)


def _verdict(one: Result) -> str:
    outcome = one.outcome
    if outcome.skipped:
        said = "skipped"
    elif outcome.convicted is not None:
        said = "violation found" if outcome.convicted else "NO VIOLATION FOUND"
    else:
        said = "NOT EXACT" if outcome.anomalies else "exact"
    note = outcome.note.removeprefix("convicted of: ")  # as results of 2026-11-24 and before have it
    return f"{said}: {note}" if note else said


def _bound(faults: int) -> str:
    return f"{min(1.0, 3 / faults):.1%}" if faults < 300 else f"{3 / faults:.2%}"


def _made_with(shown: Sequence[Summary]) -> Iterator[str]:
    """By which versions, when and where; one line for each that differ."""
    by: dict[tuple[tuple[str, str], ...], list[Result]] = {}
    for one in (result for summary in shown for result in summary.results):
        by.setdefault(tuple(one.made_with.items()), []).append(one)
    for versions, made in sorted(by.items(), key=lambda one: min(result.ended for result in one[1])):
        ended = sorted(one.ended for one in made)
        what = ", ".join(value if name == "machine" else f"{name} {value}" for name, value in versions)
        yield f"- {counted(len(made), 'cell')}, {ended[0]} to {ended[-1]}: {what}"
    yield ""


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *([text.replace("|", "\\|") for text in line] for line in lines)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"
