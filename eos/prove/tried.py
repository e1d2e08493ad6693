"""Tried: a job as a trial sees it: how it is fed, how far it is, and what it wrote; here a job from topics to topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from eos.group.committed import committed_offsets, fresh_reader
from eos.job import Job
from eos.offsets import Partition
from eos.ops.verifier.verify import OnMade, verify
from eos.prove.catching_up import InputRoom
from eos.prove.compared import Compared
from eos.prove.gauge import Gauge
from eos.prove.inputs import Inputs
from eos.prove.load_generator import LoadGenerator
from eos.prove.source import Source
from eos.prove.trial import Trial
from eos.prove.trial_database import TrialDatabase
from eos.settings import Settings

JUDGED_S = 600.0
_CALL_S = 3.0


class Load(Protocol):
    """Writes the input."""

    def start(self) -> None: ...
    def stop(self) -> Sequence[str]: ...
    def held(self) -> AbstractContextManager[None]: ...


class Tried(Protocol):
    """What is tried."""

    @property
    def gauge(self) -> Gauge:
        """How far it is."""

    @property
    def load(self) -> Load:
        """What writes its input."""

    @property
    def inputs(self) -> Inputs:
        """Its input topics."""

    @property
    def database(self) -> TrialDatabase | None:
        """At one end of it."""

    @property
    def places(self) -> frozenset[str]:
        """The topics in whose partitions its workers say how far they are."""

    @property
    def fed(self) -> int:
        """How many records of input there are."""

    def compared(self, on_made: OnMade) -> Compared:
        """All that it wrote, compared with what it has processed.

        Raises:
            EosError: it cannot be compared.
        """


class FromTopics:
    """A job that reads topics."""

    database: TrialDatabase | None = None

    def __init__(self, trial: Trial, settings: Settings, source: Source) -> None:
        self._trial, self._settings, self._source = trial, settings, source
        self._group = next(iter(trial.job.commits), trial.job.group)
        self.places = frozenset(trial.job.inputs)
        self.gauge = Gauge(settings, self._group, *partitions_of(trial), places=self._stored)
        self.load = LoadGenerator(settings, source, trial.rate, InputRoom(self.gauge).room)
        self.inputs = Inputs(settings, self._group, self.gauge, source.take, self.load.held)

    @property
    def fed(self) -> int:
        return self._source.records - self.inputs.aborted

    def _stored(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        """Where the job is."""
        with fresh_reader(self._settings, self._group, stable=False) as reader:
            stored = committed_offsets(reader, partitions, timeout_s=_CALL_S)
        return {p: one.offset for p, one in stored.items()}


class OfTopics(FromTopics):
    """One that writes to topics."""

    def __init__(self, trial: Trial, job: Job, settings: Settings, source: Source) -> None:
        super().__init__(trial, settings, source)
        self._job = job

    def compared(self, on_made: OnMade) -> Compared:
        report = verify(
            self._job,
            self._settings,
            group=self._group,
            order=self._trial.order,
            partitioner=self._trial.partitioner,
            timeout_s=JUDGED_S,
            input_from=self.inputs.archived,
            archive=self.inputs.archive,
            on_made=on_made,
        )
        differences = [f"{count:,} {kind}" for kind, count in report.differences.items() if count]
        return Compared(
            records=report.records,
            complete=report.complete,
            against=[*differences, *report.problems, *map(str, report.examples)],
            shown=[
                ("output records", f"{report.found:,} found, {report.expected:,} expected"),
                ("order", report.order),
            ],
            committed={one.partition: one.committed for one in report.inputs if one.committed is not None},
            empty=not report.expected,
        )


def partitions_of(trial: Trial) -> tuple[list[Partition], list[Partition]]:
    """Those of the inputs, and of the outputs."""
    inputs, outputs = (
        [Partition(topic, number) for topic in topics for number in range(trial.partitions)]
        for topics in (trial.job.inputs, trial.job.outputs)
    )
    return inputs, outputs
