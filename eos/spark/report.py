"""Report: what a task returns to the driver for each shard, and the result that the driver makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from eos.events import Listener, TransactionCommitted
from eos.offsets import OffsetVector
from eos.spark.done import Done
from eos.spark.failures import decoded

_COLUMNS = {
    "shard": ("INT", pa.int32()),
    "state": ("STRING", pa.string()),
    "records": ("LONG", pa.int64()),
    "seconds": ("DOUBLE", pa.float64()),
    "commit_seconds": ("DOUBLE", pa.float64()),
    "open_seconds": ("DOUBLE", pa.float64()),
    "computed": ("STRING", pa.string()),
    "written": ("STRING", pa.string()),
    "failure": ("STRING", pa.string()),
}
_SCHEMA = ", ".join(f"{name} {kind}" for name, (kind, _) in _COLUMNS.items())
_ARROW = pa.schema([(name, kind) for name, (_, kind) in _COLUMNS.items()])


class ShardState(StrEnum):
    """What became of a shard in a run."""

    COMMITTED = "committed"  # this run's task committed its records and offsets
    EMPTY = "empty"  # it had no records; this run's task committed its offsets
    SKIPPED = "skipped"  # a twin, an earlier try or another driver had committed it
    FAILED = "failed"  # for good: another try would fail as well


@dataclass(frozen=True, slots=True)
class ShardReport:
    """What a task returns to the driver for a shard. Times are in seconds."""

    state: ShardState
    records: int = 0
    seconds: float = 0.0  # from begin to the commit's answer
    commit_seconds: float = 0.0
    open_seconds: float = 0.0  # of the init
    computed: str = ""  # what the rows came to
    written: str = ""  # what is written of them
    failure: str = ""

    def as_arrow(self, shard: int) -> pa.RecordBatch:
        """As a row that Spark brings to the driver."""
        row = {"shard": shard, **asdict(self), "state": str(self.state)}
        return pa.RecordBatch.from_pylist([row], schema=_ARROW)


@dataclass(frozen=True, slots=True)
class ShardResult:
    """What became of one transaction of a run. Times are in seconds.

    ``state`` is SKIPPED where an earlier try of the task, or another driver, had committed it: its records were
    written then, and ``records_out`` is 0.
    """

    shard: str
    state: ShardState
    offsets: OffsetVector
    records_out: int
    seconds: float
    commit_seconds: float


Reports = Sequence[tuple[int, ShardReport]]  # by shard number


def reports_of(rows: DataFrame, writing: Any) -> Reports:
    """Run the tasks; what they report.

    Args:
        rows: those of each shard in one task, and behind them its end marks.
        writing: the function that writes them.
    """
    found = rows.mapInArrow(lambda batches: writing(batches), _SCHEMA).collect()  # noqa: PLW0108 - Spark asks for a function
    reports = [row.asDict() for row in sorted(found, key=lambda row: row.shard)]
    return [(one.pop("shard"), ShardReport(**one | {"state": ShardState(one["state"])})) for one in reports]


def results_of(reports: Reports, done: Done, listener: Listener) -> list[ShardResult]:
    """What became of the shards; the listener is called with each commit.

    Raises:
        EosError: what a task failed for; the other tasks have ended by then.
    """
    results: list[ShardResult] = []
    failures = [one.failure for _, one in reports if one.state is ShardState.FAILED]
    for number, one in reports:
        if one.state is ShardState.FAILED:
            continue
        shard, offsets = done.shard(number).transactional_id, done.offsets(number)
        results.append(ShardResult(shard, one.state, offsets, one.records, one.seconds, one.commit_seconds))
        if one.state is not ShardState.SKIPPED:
            listener(
                TransactionCommitted(
                    shard,
                    0,  # how many rows a shard's records were made of is not known to their writer
                    one.records,
                    offsets,
                    one.seconds,
                    one.commit_seconds,
                )
            )
    if failures:
        error = decoded(failures[0])
        error.add_note(f"{len(results)} of the shards are committed; the next run goes on behind them")
        raise error
    return results
