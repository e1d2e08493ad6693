"""What `eos spark run` does in the session that it starts: one batch, batches one after another, or a query."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eos.cli.ending import Errors, end_at_signal
from eos.cli.texts import print_table, say

if TYPE_CHECKING:
    from eos.settings import Settings
    from eos.spark.batch import BatchResult
    from eos.spark.job import SparkJob
    from eos.spark.stream_job import StreamJob

_FILE_SYSTEM = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def run_batch(job: SparkJob, spark: Any, settings: Settings, *, until_caught_up: bool) -> list[BatchResult]:
    """Run a job once, or until it has caught up; each run's result."""
    from eos.cli.progress import polled_bar, quiet, shows_bars
    from eos.observe import LogListener, configure_logs
    from eos.spark.job import run_job, run_until_caught_up
    from eos.spark.session import interruptible, tasks_done

    listener, with_bar = LogListener(), shows_bars(settings)

    def work() -> list[BatchResult]:
        if until_caught_up:
            return list(run_until_caught_up(job, spark, settings, listener=listener))
        return [run_job(job, spark, settings, listener=listener)]

    with polled_bar(job.name, "tasks", lambda: tasks_done(spark)) if with_bar else nullcontext():
        if with_bar:  # to the bar's own stderr, which writes above it
            Errors.in_the_log = configure_logs(quiet(settings).observe)
        return interruptible(spark, work)


def run_every(seconds: float, job: SparkJob, spark: Any, settings: Settings) -> None:
    """Run a job again and again until SIGTERM; the run at work then ends first."""
    from eos.spark.again import again

    def run() -> None:  # each one is in the log
        nonlocal settings
        run_batch(job, spark, settings, until_caught_up=False)
        settings = settings.once_started()

    again(seconds, run)


def run_stream(
    job: StreamJob, spark: Any, settings: Settings, checkpoint: str, *, until_caught_up: bool
) -> None:
    """Run a query until it is stopped, or has caught up."""
    from eos.observe import LogListener
    from eos.spark.session import interruptible
    from eos.spark.stream_job import start_stream

    def work() -> None:
        run = start_stream(
            job,
            spark,
            settings,
            checkpoint=location_of(checkpoint),
            available_now=until_caught_up,
            listener=LogListener(),
        )
        run.wait()
        run.sink.refresh()

    interruptible(spark, work)


def location_of(checkpoint: str) -> str:
    """A checkpoint's place for Spark: what names its file system as it is, and any other path from this directory on.

    Hadoop takes what stands before the first colon for a file system, with two slashes behind it, one or none: hdfs:/x, file:/x.
    A directory with a colon in its name is given as ./NAME.
    """
    return checkpoint if _FILE_SYSTEM.match(checkpoint) else str(Path(checkpoint).absolute())


@contextmanager
def spark_session(name: str, master: str, jars: Sequence[Path], conf: dict[str, str]) -> Iterator[Any]:
    """A session, stopped at the end of the block, and with it every task. SIGTERM ends the block like Ctrl-C does."""
    from eos.spark.session import build_session
    from eos.spark.session_end import stopping

    before = signal.signal(signal.SIGTERM, end_at_signal)
    try:
        spark = build_session(f"eos {name}", master, jars, conf)
        with stopping(spark):
            yield spark
    finally:
        signal.signal(signal.SIGTERM, before)


def print_results(results: Sequence[BatchResult]) -> None:
    """Print what became of each run, and where the last one with input wrote its rows."""
    from eos.spark.report import ShardState

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
