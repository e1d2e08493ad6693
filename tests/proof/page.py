"""Page: what the results say, as a table and as docs/PROOF.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from shlex import quote
from statistics import quantiles

from tests.proof.results import Result, Results
from tests.proof.row import Row

HEAD = (
    "row",
    "reached",
    "cells",
    "records",
    "anomalies",
    "unknown",
    "recovery",
    "at most",
    "convicted",
    "time",
)
_INTRODUCTION = """\
# Proof

Accidents that eos was put through, and what came of them. `make prove` writes this page from [proof.jsonl](proof.jsonl),
which has a line for each cell; nothing here is written by hand. What is promised, and what is not:
[Guarantees](GUARANTEES.md).
"""
_HOW_TO_READ = """\
How to read it:

- *reached*: faults that are known to have happened, of how many are wanted. What did not happen is not counted.
- *anomalies*: records lost, doubled, torn, in the wrong order or visible though aborted, committed offsets that are not the
  output's, transactions that stay open, a job that does not catch up. Whatever is not 0 is listed below.
- *unknown*: transactions whose end no worker was told, because it was dead or the answer was lost; the brokers' log says what
  became of them. (Of a loop of one's own it is not known.)
- *recovery*: where each fault is judged by itself, from its end until all input is committed and no transaction open, p50
  and p99, with half a second in which input still comes; in A13 until the next commit.
- *at most*: the share of such faults that may still break it, at 95 % confidence, when none of *n* has: 3/*n*. It holds for
  faults of these kinds, as independent as their seeds; it is never 0.
- *convicted*: loops that are wrong on purpose, under the same faults. A proof that convicts none shows nothing.

All of a cell is judged at its end, by `eos verify` and by the brokers' own log; the column *looks* says how often its whole output
was compared with the committed offsets before that: after each of its faults, where it is as large as their number.

To see it yourself: `make prove` runs what fits an hour, and goes on where it ended (`HOURS=8`: for longer); what is done is not
run again without `AGAIN=1`. A single cell is an `eos prove` line, or is run by the line in front of its row's cells.
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
    def acquitted(self) -> list[Result]:
        """Wrong loops that were not convicted."""
        return [one for one in self.naive if not one.outcome.convicted]

    def texts(self) -> list[str]:
        """The row of the table."""
        ours = [one.outcome for one in self.ours]
        faults = sum(one.faults for one in ours)
        times = sorted(second for one in ours for second in one.recoveries_s)
        unknown = sum(one.committed_unknown for one in ours), sum(one.aborted_unknown for one in ours)
        convicted = f"{len(self.naive) - len(self.acquitted)} of {len(self.naive)}" if self.naive else ""
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


def page(rows: Sequence[Row], results: Results) -> str:
    """The text of PROOF.md."""
    shown = [one for one in summaries(rows, results) if one.results]
    parts = [_INTRODUCTION, *_made_with(shown), _table(HEAD, [one.texts() for one in shown]), _HOW_TO_READ]
    for one in shown:
        parts += _section(one)
    return "\n".join(parts)


def _section(summary: Summary) -> Iterator[str]:
    row = summary.row
    yield f"## {row.id}: {row.title}\n"
    yield f"Again: `make prove ROWS={row.id} AGAIN=1`\n"
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
        said = "convicted" if outcome.convicted else "NOT CONVICTED"
    else:
        said = "NOT EXACT" if outcome.anomalies else "exact"
    return f"{said}: {outcome.note}" if outcome.note else said


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
        yield f"- {len(made)} cell(s), {ended[0]} to {ended[-1]}: {what}"
    yield ""


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *([text.replace("|", "\\|") for text in line] for line in lines)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"
