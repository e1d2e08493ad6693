"""What `eos spark run` does in the session that it starts: one batch, batches one after another, or a query."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eos.cli.exit import Errors, end_at_signal
from eos.cli.printing import print_table, say

if TYPE_CHECKING:
    from eos.settings import Settings
    from eos.spark.batch.batch import BatchResult
    from eos.spark.jobs import SparkJob, StreamJob
    from eos.spark.running import RunOptions

_FILE_SYSTEM = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def run_and_print(job: SparkJob | StreamJob, spark: Any, settings: Settings, options: RunOptions) -> None:
    """Run a job as the options say, with a bar beside each run of a batch; then print what became of the runs that have an end."""
    from eos.identity import Kind
    from eos.spark.log_listener import SparkLogListener
    from eos.spark.running import run
    from eos.spark.session.session import interruptible

    results: list[BatchResult] = []

    def call(work: Callable[[], None]) -> None:
        with _bar(job.name, spark, settings) if job.kind is Kind.BATCH else nullcontext():
            interruptible(spark, work)

    keep = options.every_s is None  # else each one is in the log
    run(
        job,
        spark,
        settings,
        options,
        listener=SparkLogListener(),
        on_result=lambda result: results.append(result) if keep else None,
        call=call,
    )
    if results:
        _print_results(results)


@contextmanager
def _bar(name: str, spark: Any, settings: Settings) -> Iterator[None]:
    from eos.cli.bars import polled_bar, quiet, shows_bars
    from eos.ops.observe import configure_logs
    from eos.spark.session.session import tasks_done

    if not shows_bars(settings):
        yield
        return
    with polled_bar(name, "tasks", lambda: tasks_done(spark)):
        # To the bar's own stderr, which writes above it.
        Errors.in_the_log = configure_logs(quiet(settings).observe)
        yield


def location_of(checkpoint: str) -> str:
    """A checkpoint's place for Spark: what names its file system as it is, and any other path from this directory on.

    Hadoop takes what stands before the first colon for a file system, with two slashes behind it, one or none: hdfs:/x, file:/x.
    A directory with a colon in its name is given as ./NAME.
    """
    return checkpoint if _FILE_SYSTEM.match(checkpoint) else str(Path(checkpoint).absolute())


@contextmanager
def spark_session(name: str, master: str, jars: Sequence[Path], conf: dict[str, str]) -> Iterator[Any]:
    """A session, stopped at the end of the block, and with it every task. SIGTERM ends the block like Ctrl-C does."""
    from eos.spark.session.session import build_session, stopping

    before = signal.signal(signal.SIGTERM, end_at_signal)
    try:
        spark = build_session(f"eos {name}", master, jars, conf)
        with stopping(spark):
            yield spark
    finally:
        signal.signal(signal.SIGTERM, before)


def _print_results(results: Sequence[BatchResult]) -> None:
    """Print what became of each run, and where the last one with input wrote its rows."""
    from eos.spark.write.writer import ShardState

    states = (ShardState.COMMITTED, ShardState.EMPTY, ShardState.SKIPPED)
    head = ("run", "partitions", *map(str, states), "records out", "seconds")
    rows = [
        (
            *(str(number), str(len(result.plan))),
            *(str(result.count(state)) for state in states),
            *(str(result.records_out), f"{result.seconds:.1f}"),
        )
        for number, result in enumerate(results, start=1)
    ]
    print_table(head, rows, figures=True)
    if placements := [result.placement for result in results if result.placement is not None]:
        say(f"rows: {placements[-1]}")
