"""SparkJob: what a user declares for Spark, and how it is run: by `eos spark run`, or from a script of one's own."""

from __future__ import annotations

import argparse
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from pyspark.sql import DataFrame, SparkSession

from eos.errors import UsageError
from eos.events import Event, InputPlanned, Listener, StartPolicyApplied, ignore_event
from eos.job import Job, checked_topics
from eos.offsets import OffsetVector
from eos.settings import Settings
from eos.settings.binding import own_settings
from eos.spark.again import again
from eos.spark.batch import BatchResult, ExactlyOnceBatch
from eos.spark.declared import Declared
from eos.spark.placing import Placement
from eos.spark.plan import Commit, InputPlan
from eos.spark.planning import plan_input
from eos.spark.script import parser, run_submitted
from eos.spark.source import read_snapshot

log = logging.getLogger("eos.spark")


@dataclass(frozen=True)
class SparkRun:
    """One run, as the factory of a job's transform sees it.

    Attributes:
        spark: the session.
        settings: the job's own settings, validated; None if it declares no model.
        plan: what the run reads.
        all_settings: the settings of the run.
    """

    spark: SparkSession
    settings: Any
    plan: InputPlan
    all_settings: Settings
    _job: SparkJob

    def snapshot(self, topic: str) -> DataFrame:
        """The records of a topic from its beginning to its last stable offset now, as Spark's Kafka columns.

        No offsets are committed for it: two runs read what the topic holds at each one's start.

        Raises:
            UsageError: the job does not declare it in ``snapshots``.
            ConfigError: the topic does not exist.
        """
        if topic not in self._job.snapshots:
            raise UsageError(f"{self._job} reads {topic!r}, which is not declared. Fix: add it to snapshots")
        return read_snapshot(self.spark, self.all_settings, topic)


@dataclass(frozen=True, kw_only=True)
class SparkJob(Declared[SparkRun]):
    """A batch job on Spark: input topics, output topics, and a deterministic transform of DataFrames.

    >>> job = SparkJob(  # doctest: +SKIP
    ...     name="copies", inputs=["in"], outputs=["out"],
    ...     transform=lambda df: df.select("shard", "key", "value"),
    ... )

    Args:
        name: letters, digits, '_' and '-'; the app part of every transactional.id, and the default group.
        inputs: the topics whose offsets each run commits.
        outputs: every topic that the transform writes to.
        transform: from the input to the output columns, see `ExactlyOnceBatch.run`.
        transform_factory: is called once per run that has something to read with its `SparkRun`, and returns the
            ``transform``. Exactly one of the two is given.
        commit: ``"partition"``: a transaction per input partition, in parallel; ``"batch"``: one for all of them.
        settings: a pydantic model of the job's own settings (table ``[job]``), for a factory.
        snapshots: topics that a run reads whole, beside its input.

    Raises:
        UsageError: the declaration contradicts itself.
    """

    commit: Commit = "partition"
    snapshots: Sequence[str] = ()

    @classmethod
    def applying(cls, job: Job, *, name: str) -> SparkJob:
        """A loop's job as a batch: its transform and its own settings, with ``commit="partition"``.

        Args:
            job: what `eos run` runs.
            name: of the batch; not the loop's, because both may run, each under its group.
        """
        return cls._applying(job, name, lambda run: run.all_settings)

    def __post_init__(self) -> None:
        if self.snapshots:
            object.__setattr__(self, "snapshots", checked_topics("snapshots", self.snapshots))
        super().__post_init__()
        if self.commit not in ("partition", "batch"):
            raise UsageError(f"{self}: commit={self.commit!r} is neither 'partition' nor 'batch'")

    @property
    def read_topics(self) -> frozenset[str]:
        """Every topic that the job reads."""
        return frozenset((*self.inputs, *self.snapshots))


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
    """Where a run of a job would write its rows now; reads and commits nothing. See `ExactlyOnceBatch.explain`.

    Raises:
        ConfigError: a setting is wrong, or the session is one that a run cannot keep its promise in.
        EosError: see `ExactlyOnceBatch.explain`.
    """
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
        reached = reached.merged(result.plan.ends)
        if not result.plan.ranges or all(reached.get(p, -1) >= end for p, end in goal.items()):
            return


def preview(job: SparkJob, settings: Settings) -> InputPlan:
    """What a run would read now; commits nothing.

    Raises:
        EosError: as `eos.spark.planning.plan_input`.
    """
    return plan_input(settings, job.inputs, app=job.name, commit=job.commit, preview=True)


def main(job: SparkJob, arguments: Sequence[str] | None = None) -> NoReturn:
    """The body of a script for ``spark-submit``: run the job in the session that it was submitted with, and exit.

    Settings come from options, ``EOS_…`` variables, mounted secret files and ``--config``; exit codes are those of
    `eos run`.

    >>> if __name__ == "__main__":  # doctest: +SKIP
    ...     eos.spark.main(job)

    Raises:
        SystemExit: always.
    """
    options = _parsed(job, arguments)

    def load() -> Settings:
        settings = Settings.load(
            options.config,
            {
                "input.start": options.start,
                "ownership.adopt_offsets": options.adopt_offsets or None,
                "spark.max_records_per_partition": options.max_records,
            },
        )
        own_settings(job, settings)
        return settings

    def work(spark: SparkSession, settings: Settings) -> None:
        if options.until_caught_up:
            for result in run_until_caught_up(job, spark, settings, listener=_logged):
                log.info("run done: %s", summary(result))
            return

        def run() -> None:
            nonlocal settings
            log.info("run done: %s", summary(run_job(job, spark, settings, listener=_logged)))
            settings = settings.once_started()

        if options.every is None:
            run()
            return
        again(options.every, run)

    run_submitted(job.name, load, work)


def summary(result: BatchResult) -> str:
    """A run in one line."""
    states = Counter(shard.state for shard in result.shards)
    transactions = ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "nothing new"
    rows = f"; {result.placement}" if result.placement else ""
    return f"{transactions}; {result.records_out} records written{rows}; {result.seconds:.1f} s"


def _parsed(job: SparkJob, arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser(
        f"Run {job.name} exactly once over what is new in its input.", "a group without offsets begins"
    )
    options.add_argument(
        "--adopt-offsets", action="store_true", help="once: take over offsets of another mode of ownership"
    )
    options.add_argument(
        "--max-records", type=int, metavar="N", help="of a partition, that a run takes at most"
    )
    how = options.add_mutually_exclusive_group()
    how.add_argument("--until-caught-up", action="store_true", help="run until all present input is done")
    how.add_argument("--every", type=float, metavar="SECONDS", help="run again so long after each run")
    return options.parse_args(arguments)


def _logged(event: Event) -> None:
    """The lines that a submitted run writes. `eos spark run` and a listener of one's own have more."""
    match event:
        case InputPlanned():
            offsets = sum(event.ends.values()) - sum(event.positions.values())
            log.info(
                "input planned: %d of %d partitions, %d offsets",
                len(event.ends),
                len(event.partitions),
                offsets,
            )
        case StartPolicyApplied():
            log.warning("start policy applied: %s, %d partitions", event.policy, len(event.positions))
