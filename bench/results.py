"""Where figures go: tables on the terminal, JSON files in bench/results/."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import confluent_kafka

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Row = Mapping[str, str]

RESULTS = Path(__file__).resolve().parent / "results"


def say(text: str) -> None:
    """Print a line at once, for those who watch a long run through a pipe."""
    print(text, flush=True)


def show(title: str, rows: Sequence[Row], notes: Sequence[str] = ()) -> None:
    """Print rows as a table in plain text, and, if it is given, what each row's first cell stands for. A row may lack cells."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    rows = [{column: row.get(column, "-") for column in columns} for row in rows]
    widths = {column: max(len(column), *(len(row[column]) for row in rows)) for column in columns}
    say(f"\n{title}")
    say("  ".join(column.ljust(widths[column]) for column in columns))
    for row in rows:
        say("  ".join(row[column].ljust(widths[column]) for column in columns))
    for row, note in zip(rows, notes, strict=bool(notes)):
        say(f"  {row[columns[0]]}: {note}")


def spread(ratios: Sequence[float]) -> str:
    """The middle one, and how far they lie apart."""
    if not ratios:
        return "-"
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})"


def write(name: str, settings: Mapping[str, object], outcomes: Sequence[DataclassInstance]) -> Path:
    """Keep every outcome, and what it was measured with, in a file named after the moment."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json"
    content = {
        "benchmark": name,
        "settings": settings,
        "machine": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "confluent_kafka": confluent_kafka.version(),
            "librdkafka": confluent_kafka.libversion()[0],
        },
        "outcomes": [asdict(outcome) for outcome in outcomes],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
    say(f"written to {path}")
    return path
