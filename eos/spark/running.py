"""One way to run a job on Spark: :func:`run`, behind `eos spark run` and behind a submitted script (`eos.spark.submitted`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pyspark.sql import SparkSession

from eos.errors import ConfigError
from eos.events import Listener, ignore_event
from eos.identity import Kind
from eos.offsets import OffsetVector
from eos.settings import Settings
from eos.settings.binding import own_settings
from eos.spark.analysis.placement import Placement
from eos.spark.batch.batch import BatchResult, ExactlyOnceBatch, run_every
from eos.spark.batch.planning import plan_input
from eos.spark.jobs import SparkJob, SparkRun, StreamJob
from eos.spark.plan import InputPlan
from eos.spark.source import read_stream
from eos.spark.stream.query import StreamRun, write_stream


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How a job is run.

    Args:
        until_caught_up: end when all input that was there at the beginning is processed. Without it a `SparkJob` takes what
            one run takes, and a query goes on until it is stopped.
        every_s: of a SparkJob: run again so many seconds after each run, until SIGTERM.
        checkpoint: of a StreamJob: where the query keeps its place; one directory per query, never shared, copied or restored.
        max_offsets_per_batch: of a StreamJob, see `read_stream`.
        adopt: of a StreamJob, once: what a refusal said to pass.
        skip_deleted: of a StreamJob, once: go on behind input that was deleted before it was read.
    """

    until_caught_up: bool = False
    every_s: float | None = None
    checkpoint: str | None = None
    max_offsets_per_batch: int | None = None
    adopt: str | None = None
    skip_deleted: bool = False

    def require_fit(self, job: SparkJob | StreamJob) -> None:
        """Refuse options that this kind of job does not have.

        Raises:
            ConfigError: names the first.
        """
        if job.kind is Kind.STREAM:
            if self.checkpoint is None:
                raise ConfigError(
                    f"{job}: a query needs a checkpoint. Fix: --checkpoint DIR, for example "
                    f"--checkpoint .eos/checkpoints/{job.name}"
                )
            if self.every_s is not None:
                raise ConfigError(
                    f"{job}: --every is for a SparkJob. Fix: leave it out; a query runs on by itself"
                )
            return
        of_streams = {
            "--checkpoint": self.checkpoint is not None,
            "--max-offsets-per-batch": self.max_offsets_per_batch is not None,
            "--adopt": self.adopt is not None,
            "--skip-deleted": self.skip_deleted,
        }
        if given := [name for name, is_given in of_streams.items() if is_given]:
            raise ConfigError(
                f"{job}: {given[0]} is for a StreamJob, whose place is in a checkpoint. Fix: leave it out"
            )
        if self.every_s is not None and self.until_caught_up:
            raise ConfigError(
                f"{job}: --every runs the job again without an end. Fix: leave out --every or --until-caught-up"
            )


def run(
    job: SparkJob | StreamJob,
    spark: SparkSession,
    settings: Settings,
    options: RunOptions,
    *,
    listener: Listener = ignore_event,
    on_result: Callable[[BatchResult], object] = lambda _: None,
    call: Callable[[Callable[[], None]], None] = lambda work: work(),
) -> None:
    """Run a job as the options say.

    Args:
        job: what to run.
        spark: the session.
        settings: how to reach the cluster, where to start for the first time, table ``[spark]``.
        options: how.
        listener: called with each event (``eos.events``), on the driver.
        on_result: called with the result of each run of a SparkJob, also of those that found nothing new.
        call: is given each piece of work on Spark, and calls it: to show a bar beside it, or to end it by a signal.

    Raises:
        ConfigError: an option or a setting does not fit.
        EosError: as `run_job`, or as `StreamRun.wait`.
    """
    options.require_fit(job)
    if job.kind is Kind.STREAM:
        call(lambda: _run_query(job, spark, settings, options, listener))
        return

    def all_of_it() -> None:
        for result in run_until_caught_up(job, spark, settings, listener=listener):
            on_result(result)

    def once() -> None:
        on_result(run_job(job, spark, settings, listener=listener))

    def once_more() -> None:
        nonlocal settings
        call(once)
        settings = settings.once_started()

    if options.every_s is not None:
        run_every(options.every_s, once_more)
    else:
        call(all_of_it if options.until_caught_up else once)


def _run_query(
    job: StreamJob, spark: SparkSession, settings: Settings, options: RunOptions, listener: Listener
) -> None:
    query = start_stream(
        job,
        spark,
        settings,
        checkpoint=options.checkpoint or "",
        available_now=options.until_caught_up,
        max_offsets_per_batch=options.max_offsets_per_batch,
        adopt=options.adopt,
        skip_deleted=options.skip_deleted,
        listener=listener,
    )
    query.wait()
    query.sink.refresh()


# --- a batch -------------------------------------------------------------------------------------------


def run_job(
    job: SparkJob, spark: SparkSession, settings: Settings, *, listener: Listener = ignore_event
) -> BatchResult:
    """Run a job over what is new in its input, once; returns once all of it is committed.

    Raises:
        ConfigError: a setting is wrong, or the session is one that a run cannot keep its promise in.
        EosError: see `ExactlyOnceBatch.run`.
    """
    own = own_settings(job, settings)
    batch = ExactlyOnceBatch(
        spark, settings, name=job.name, inputs=job.inputs, outputs=job.outputs, listener=listener
    )
    plan = batch.plan(job.commit)
    run = SparkRun(spark, own, plan, settings, job)
    return batch.run(lambda frame: job.transformed(frame, run), commit=job.commit, plan=plan)


def explain(job: SparkJob, spark: SparkSession, settings: Settings) -> Placement:
    """Where a run of a job would write its rows now; reads and commits nothing. Raises as `ExactlyOnceBatch.explain` does."""
    own = own_settings(job, settings)
    batch = ExactlyOnceBatch(spark, settings, name=job.name, inputs=job.inputs, outputs=job.outputs)
    run = SparkRun(spark, own, preview(job, settings), settings, job)
    return batch.explain(lambda frame: job.transformed(frame, run), commit=job.commit)


def run_until_caught_up(
    job: SparkJob, spark: SparkSession, settings: Settings, *, listener: Listener = ignore_event
) -> Iterator[BatchResult]:
    """Run a job again and again until all that was there at the call is committed; yields each run's result.

    Every run takes ``spark.max_records_per_partition`` of each partition at most.

    Raises:
        EosError: as `run_job`.
    """
    unlimited = settings.spark.model_copy(update={"max_records_per_partition": None})
    goal = preview(job, settings.model_copy(update={"spark": unlimited})).ends
    reached = OffsetVector()
    while True:
        result = run_job(job, spark, settings, listener=listener)
        yield result
        settings = settings.once_started()
        reached = reached.merged(result.plan.ends)
        if not result.plan.ranges or all(reached.get(p, -1) >= end for p, end in goal.items()):
            return


def preview(job: SparkJob, settings: Settings) -> InputPlan:
    """What a run would read now; commits nothing. Raises as `plan_input` does."""
    return plan_input(settings, job.inputs, app=job.name, commit=job.commit, preview=True)


def summary(result: BatchResult) -> str:
    """A run in one line."""
    states = Counter(shard.state for shard in result.shards)
    transactions = ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "nothing new"
    rows = f"; {result.placement}" if result.placement else ""
    return f"{transactions}; {result.records_out} records written{rows}; {result.seconds:.1f} s"


# --- a stream ------------------------------------------------------------------------------------------


def start_stream(
    job: StreamJob,
    spark: SparkSession,
    settings: Settings,
    *,
    checkpoint: str,
    available_now: bool = False,
    max_offsets_per_batch: int | None = None,
    adopt: str | None = None,
    skip_deleted: bool = False,
    listener: Listener = ignore_event,
) -> StreamRun:
    """Start a job's query, from its checkpoint if there is one. The arguments are those of `run`, and of `RunOptions`.

    With ``available_now`` it ends when all input that is there now is processed.

    Raises:
        ConfigError: a setting is wrong, nothing says where to start, or the session has no Kafka connector. What else
            is wrong with the session comes from `StreamRun.wait`.
    """
    own_settings(job, settings)
    records = read_stream(
        spark,
        settings,
        job.inputs,
        checkpoint=checkpoint,
        max_offsets_per_batch=max_offsets_per_batch,
        skip_deleted=skip_deleted,
    )
    writer = write_stream(
        job.transformed(records, settings),
        settings,
        name=job.name,
        inputs=job.inputs,
        outputs=job.outputs,
        adopt=adopt,
        listener=listener,
    )
    return writer.start(checkpoint, available_now=available_now)
