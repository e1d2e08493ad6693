"""SparkJob and StreamJob: what a user declares for Spark, as a batch or as a stream. `eos.spark.running` runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

from pydantic import BaseModel
from pyspark.sql import DataFrame, SparkSession

from eos.base.raised_at import raised_at
from eos.errors import UnavailableError, UsageError
from eos.identity import Identity, Kind, Naming
from eos.job import Job, check_topics, checked_topics
from eos.references import code_of_the_job
from eos.settings import Settings
from eos.shards import ledger_group
from eos.spark.plan import Commit, InputPlan
from eos.spark.session.thrown import OF_SPARK
from eos.spark.source import read_snapshot
from eos.spark.transform import FrameTransform, records_transform
from eos.spark.write.failures import from_spark

Run = TypeVar("Run")


@dataclass(frozen=True, kw_only=True)
class Declared(Generic[Run]):
    """What every job for Spark declares; see `SparkJob` and `StreamJob`.

    Attributes:
        applied: the loop's job whose transform it applies to each record, if it was made so: it says what the output must be.

    Raises:
        UsageError: the declaration contradicts itself.
    """

    name: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    transform: FrameTransform | None = None
    transform_factory: Callable[[Run], FrameTransform] | None = None
    settings: type[BaseModel] | None = None
    applied: Job | None = None

    @classmethod
    def _applying(cls, job: Job, name: str, settings_of: Callable[[Run], Settings]) -> Self:
        """A loop's job, with its transform applied to each record, and its own settings."""
        return cls(
            name=name,
            inputs=job.inputs,
            outputs=sorted(job.written_topics),
            transform_factory=lambda run: records_transform(job, settings_of(run)),
            settings=job.settings,
            applied=job,
        )

    def __post_init__(self) -> None:
        inputs, outputs = check_topics(self.name, self.inputs, self.outputs, also_read=self.read_topics)
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "outputs", outputs)
        if (self.transform is None) == (self.transform_factory is None):
            raise UsageError(f"{self}: give exactly one of transform= and transform_factory=")
        if self.settings is not None and self.transform_factory is None:
            raise UsageError(
                f"{self}: a transform does not get settings=. Fix: transform_factory=, a function that returns the transform"
            )

    def __str__(self) -> str:
        return f"{type(self).__name__} {self.name!r}"

    @property
    def read_topics(self) -> frozenset[str]:
        """Every topic that the job reads."""
        return frozenset(self.inputs)

    @property
    def written_topics(self) -> frozenset[str]:
        """Every topic that the job may write to."""
        return frozenset(self.outputs)

    def transformed(self, frame: DataFrame, run: Run) -> DataFrame:
        """The job's output for a frame.

        Raises:
            UsageError: the code raised a class of eos, asks Spark for what it refuses, or returned no DataFrame.
            UnavailableError: the cluster did not answer what the code asks of it: of a snapshot, say.
        """
        try:
            with code_of_the_job(f"{self}: its transform", passing=UnavailableError):
                transform = self.transform_factory(run) if self.transform_factory else self.transform
                found = transform(frame) if transform else None
        except OF_SPARK as error:
            meaning = from_spark(error)
            meaning.args = (f"{self}: its transform{raised_at(error)}: {meaning}",)
            raise meaning from error
        if not isinstance(found, DataFrame):
            raise UsageError(
                f"{self}: the transform returned {type(found).__name__}, not a DataFrame. Fix: a function that returns the "
                "transform is a transform_factory="
            )
        return found


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

    kind: ClassVar[Literal[Kind.BATCH]] = Kind.BATCH

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

    def identity(self, settings: Naming) -> Identity:
        """What the job is to everything that looks at it from outside."""
        group = settings.group_for(self.name)
        return Identity(
            kind=self.kind,
            app=self.name,
            group=group,
            commits={group: frozenset(self.inputs)},
            mode=self.commit,
            inputs=tuple(sorted(self.inputs)),
            read=tuple(sorted(self.read_topics)),
            outputs=tuple(sorted(self.written_topics)),
            keeps_order=self.applied is not None,  # a shuffle keeps none
        )


class StreamJob(Declared[Settings]):
    """A Structured Streaming query: input topics, output topics, and a deterministic transform of streaming DataFrames.

    Args:
        name: letters, digits, '_' and '-'; the app part of every transactional.id, and the default group.
        inputs: the topics that are read, from a checkpoint on.
        outputs: every topic that the transform writes to; a new commit log stands on the first one's partition 0.
        transform: from Spark's Kafka columns to the output columns, see `exactly_once_sink`.
        transform_factory: is called once per start with the settings, and returns the ``transform``. Exactly one of the two
            is given.
        settings: a pydantic model of the job's own settings (table ``[job]``), for a factory.

    Raises:
        UsageError: the declaration contradicts itself.
    """

    kind: ClassVar[Literal[Kind.STREAM]] = Kind.STREAM

    @classmethod
    def applying(cls, job: Job, *, name: str) -> StreamJob:
        """A loop's job as a query: its transform, applied to each record, and its own settings.

        Args:
            job: what `eos run` runs.
            name: of the query; not the loop's, because both may run, each under its group.
        """
        return cls._applying(job, name, lambda settings: settings)

    def identity(self, settings: Naming) -> Identity:
        """What the job is to everything that looks at it from outside."""
        group = settings.group_for(self.name)
        ledgers = [ledger_group(self.name, group, shard) for shard in range(settings.spark.sink_shards)]
        return Identity(
            kind=self.kind,
            app=self.name,
            group=group,
            # The first shard's entries have the marks of the input too.
            commits=dict.fromkeys(ledgers, self.written_topics)
            | {ledgers[0]: self.read_topics | self.written_topics},
            mode="sink",
            inputs=tuple(sorted(self.inputs)),
            read=tuple(sorted(self.read_topics)),
            outputs=tuple(sorted(self.written_topics)),
            keeps_order=False,
            ledgers=ledgers[0].removesuffix("0"),
            ledger_topic=self.outputs[0],
            fixed="is a streaming query: its place is in its checkpoint and its ledger, which belong together, and not in the "
            "offsets of a group. Fix: docs/operations/spark.md, 'Spark streams'",
        )
