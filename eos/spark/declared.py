"""What a job for Spark declares, as a batch or as a stream: its topics, its transform, its settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

from pydantic import BaseModel
from pyspark.sql import DataFrame

from eos.errors import UnavailableError, UsageError
from eos.job import Job, check_topics
from eos.raised_at import raised_at
from eos.references import code_of_the_job
from eos.settings import Settings
from eos.spark.failures import OF_SPARK, from_spark
from eos.spark.transform import records_transform

FrameTransform = Callable[[DataFrame], DataFrame]
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
