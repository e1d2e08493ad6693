"""Accidents of a batch's tasks, for tests: a transform that stalls, and a writer that sleeps in its transaction.

Spark's workers cannot import the tests, so this module goes to them by value.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext, cloudpickle

from eos.spark.write.writer import Writing
from tests.support.patience import PATIENCE_S

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import DataFrame

    from tests.support.exactly_once import Output, SeenRecord

# A stalled function's rows reach the writer only if nothing on the way gathers them.
SMALL_BATCHES = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20",
    "spark.sql.execution.pandas.udf.buffer.size": "1024",
}
# Within a test, only a fence ends a transaction, and not its timeout.
LONG_TRANSACTIONS = {"transaction.timeout_ms": 280_000, "spark.twin_wait_ms": 60_000}
_WAIT_S = 2 * PATIENCE_S  # longer than any test makes a task wait
_STEP_S = 0.05

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call] # not ours


def copied(output: str, record: SeenRecord) -> list[Output]:
    """What every transform of this module makes of a record."""
    return [(output, record.key, (record.value or b"") + b"!")]


@dataclass(frozen=True)
class Copy:
    """A transform that copies each record with a mark, and may be slow or stall on the way.

    Args:
        flag: the common start of the names of the files by which tasks and test tell each other things.
        stalls: shard -> for each try of its task, what it waits for in the middle of the shard: seconds, or the
            end of a file's name, ``<flag>.<end>``. While it waits, ``<flag>.<shard>.<try>`` exists, with its
            process id. Later tries don't wait.
        after: rows of the shard that are passed on before.
        slow_s: seconds that every row takes.
    """

    flag: str = ""
    stalls: tuple[tuple[int, tuple[float | str, ...]], ...] = ()
    after: int = 0
    slow_s: float = 0.0

    def __call__(self, frame: DataFrame) -> DataFrame:
        rows = frame.selectExpr("shard", "key", "concat(value, X'21') AS value")
        if not self.stalls and not self.slow_s:
            return rows
        return rows.mapInArrow(lambda batches: self._slowly(batches), rows.schema)  # noqa: PLW0108 - Spark asks for a function

    def _slowly(self, batches: Iterator[Any]) -> Iterator[Any]:
        seen = 0
        for batch in batches:
            if self.stalls and seen <= self.after < seen + batch.num_rows:
                yield batch.slice(0, self.after - seen)
                self._stall(batch.column("shard")[0].as_py())
                yield batch.slice(self.after - seen)
            elif self.slow_s:
                for row in range(batch.num_rows):
                    time.sleep(self.slow_s)
                    yield batch.slice(row, 1)
            else:
                yield batch
            seen += batch.num_rows

    def _stall(self, shard: int) -> None:
        context = TaskContext.get()
        assert context is not None
        tries = dict(self.stalls).get(shard, ())
        attempt = context.attemptNumber()
        if attempt >= len(tries):
            return
        _tell(f"{self.flag}.{shard}.{attempt}")
        what = tries[attempt]
        if isinstance(what, str):
            _wait_for(f"{self.flag}.{what}")
        else:
            time.sleep(what)


@dataclass(frozen=True)
class SleepyWriting(Writing):
    """A writer that sleeps in the middle of its transaction, and survives the end of its JVM.

    While it sleeps, ``<flag>.asleep`` holds its process id; it wakes when ``<flag>.go`` exists. ``<flag>.outcome``
    holds what became of the shard, or the name of the exception.

    Args:
        flag: the common start of the files' names.
        shard: the only one that sleeps.
    """

    flag: str = ""
    shard: int = 0

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Write the shards of the task."""
        # What ends a Python worker with its daemon. One whose daemon was killed first does not get it.
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            for report in Writing.__call__(self, self._drowsy(batches)):
                if report.column("shard")[0].as_py() == self.shard:
                    _tell(f"{self.flag}.outcome", report.column("state")[0].as_py())
                yield report
        except Exception as error:
            _tell(f"{self.flag}.outcome", f"{type(error).__name__}: {error}")
            raise
        finally:
            signal.signal(signal.SIGHUP, before)

    def _drowsy(self, batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            # The writer asks for the second one when it has produced the first.
            if number == 1 and batch.column("shard")[0].as_py() == self.shard:
                _tell(f"{self.flag}.asleep")
                _wait_for(f"{self.flag}.go")
            yield batch


def make_sleepy(monkeypatch: pytest.MonkeyPatch, flag: Path, shard: int) -> None:
    """The next runs of this process have a writer that sleeps."""

    def writing(*arguments: Any) -> Writing:
        made = Writing(*arguments)
        given = {field.name: getattr(made, field.name) for field in fields(Writing)}
        return SleepyWriting(**given, flag=str(flag), shard=shard)

    monkeypatch.setattr("eos.spark.batch.batch.Writing", writing)


def _tell(name: str, text: str = "") -> None:
    # Whole or not at all: the test reads it as soon as it is there.
    unfinished = Path(f"{name}~{os.getpid()}")
    unfinished.write_text(text or str(os.getpid()))
    unfinished.rename(name)


def _wait_for(name: str) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not Path(name).exists() and time.monotonic() < deadline:
        time.sleep(_STEP_S)
