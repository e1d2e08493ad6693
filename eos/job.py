"""Job: what a user declares; nothing here talks to Kafka."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Protocol, runtime_checkable

from pydantic import BaseModel

from eos.deadletter import dead_letter
from eos.errors import EosError, UsageError
from eos.records import InputBatch, InputRecord, OutputBatch, OutputRecord

Transform = Callable[[InputRecord], Iterable[OutputRecord]]
BatchTransform = Callable[[InputBatch], Iterable[OutputBatch]]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,60}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


@runtime_checkable
class Declaration(Protocol):
    """What every kind of job says of itself: enough to check a cluster for it, and to create its topics."""

    @property
    def name(self) -> str:
        """The app part of every transactional.id, and the default group."""

    @property
    def inputs(self) -> Sequence[str]:
        """The topics whose offsets are committed."""

    @property
    def read_topics(self) -> frozenset[str]:
        """Every topic that is read."""

    @property
    def written_topics(self) -> frozenset[str]:
        """Every topic that may be written to."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A consume-transform-produce job: inputs, outputs, and a pure map from records to records.

    Args:
        name: letters, digits, '_' and '-'; the app part of every transactional.id, and the default group.
        inputs: the topics read.
        outputs: every topic that the transform writes to. Producing elsewhere is a UsageError: access
            rules, preflight and verification are derived from this declaration.
        transform: one record -> its output records.
        transform_batch: many records, by column -> output batches. It must be a pure map over records:
            the same outputs wherever the batch is cut. eos uses that to run it record by record when it
            raised (to find the record at fault) and to verify outputs.
        dead_letters: the topic for records whose transform raised (poison policy ``dead-letter``); also
            allowed as an output of the transform itself.
        settings: a pydantic model of the job's own settings (table ``[job]``). Given one, the transforms
            are *factories*: they are called once with the validated settings and return the function
            that is then applied to records.

    Exactly one of ``transform`` and ``transform_batch`` is given.

    Raises:
        UsageError: the declaration contradicts itself.
    """

    name: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    transform: Callable[..., Any] | None = None
    transform_batch: Callable[..., Any] | None = None
    dead_letters: str | None = None
    settings: type[BaseModel] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", checked_topics("inputs", self.inputs))
        object.__setattr__(self, "outputs", checked_topics("outputs", self.outputs))
        check_name(self.name)
        if (self.transform is None) == (self.transform_batch is None):
            msg = f"Job {self.name!r}: give exactly one of transform= and transform_batch="
            raise UsageError(msg)
        if self.dead_letters is not None:
            checked_topics("dead_letters", [self.dead_letters])
        if loop := set(self.inputs) & self.written_topics:
            msg = f"Job {self.name!r}: {sorted(loop)} is input and output; the job would feed itself forever"
            raise UsageError(msg)

    @property
    def read_topics(self) -> frozenset[str]:
        """Every topic that the job reads."""
        return frozenset(self.inputs)

    @property
    def written_topics(self) -> frozenset[str]:
        """Every topic that the job may write to."""
        extra = () if self.dead_letters is None else (self.dead_letters,)
        return frozenset((*self.outputs, *extra))

    def bound(self, settings: BaseModel | None = None) -> BoundTransform:
        """The job's transform as one interface over both shapes.

        Args:
            settings: the validated settings of the job; needed iff the job declares a model.

        Raises:
            UsageError: they are missing, or there is no model for them.
        """
        if (self.settings is None) != (settings is None):
            msg = f"Job {self.name!r}: settings are given iff the job declares a model for them"
            raise UsageError(msg)
        arguments = () if settings is None else (settings,)

        def resolve(function: Callable[..., Any] | None) -> Callable[..., Any] | None:
            return function(*arguments) if function is not None and arguments else function

        return BoundTransform(self, resolve(self.transform), resolve(self.transform_batch))


class BoundTransform:
    """A job's transform, ready to be applied: per record, or to a batch with its poison isolated."""

    def __init__(self, job: Job, per_record: Transform | None, per_batch: BatchTransform | None) -> None:
        self._job = job
        self._per_record = per_record
        self._per_batch = per_batch

    @property
    def takes_batches(self) -> bool:
        """Whether the user gave a batch function."""
        return self._per_batch is not None

    def batch(self, batch: InputBatch) -> list[OutputBatch]:
        """Apply the batch function.

        Raises:
            UsageError: an output is not what was declared.
            Exception: whatever the user's function raised.
        """
        if self._per_batch is None:
            msg = f"Job {self._job.name!r} has no transform_batch"
            raise UsageError(msg)
        outputs = self._listed(self._per_batch(batch), OutputBatch)
        for output in outputs:
            self._check(output, OutputBatch)
        return outputs

    def record(self, record: InputRecord) -> list[OutputRecord]:
        """The outputs of one record, in order, whichever shape of function the user gave.

        Raises:
            UsageError: an output is not what was declared.
            Exception: whatever the user's function raised.
        """
        if self._per_record is not None:
            outputs = self._listed(self._per_record(record), OutputRecord)
            for output in outputs:
                self._check(output, OutputRecord)
            return outputs
        return [out for batch in self.batch(InputBatch.of([record])) for out in batch]

    def records(
        self, batch: InputBatch, failed: Callable[[InputRecord, Exception], Iterable[OutputRecord]]
    ) -> list[OutputRecord]:
        """The outputs of all records of a batch, one record after another.

        Args:
            batch: the input.
            failed: what stands in for the outputs of a record whose transform raised.

        Raises:
            UsageError: an output is not what was declared.
        """
        apply = self.record if self._per_record is None else self._per_record
        outputs: list[OutputRecord] = []
        for record in batch:
            try:
                made = apply(record)
                if made.__class__ is not list:
                    made = self._listed(made, OutputRecord)
            except EosError:
                raise
            except Exception as error:  # noqa: BLE001 - the user's code may raise anything
                made = list(failed(record, error))
            outputs += made
        # Looked at together, in C: a check for each output is a tenth of the cost of this loop.
        if set(map(type, outputs)) - {OutputRecord} or not self._job.written_topics.issuperset(
            map(_topic_of, outputs)
        ):
            for output in outputs:
                self._check(output, OutputRecord)
        return outputs

    def require_dead_letters(self) -> str:
        """The job's dead-letter topic.

        Raises:
            UsageError: the job declares none.
        """
        if self._job.dead_letters is None:
            msg = (
                f"Job {self._job.name!r}: poison policy 'dead-letter' needs a topic. "
                "Fix: Job(dead_letters='…'), or poison.policy = 'stop'"
            )
            raise UsageError(msg)
        return self._job.dead_letters

    def dead_letter(self, record: InputRecord, error: BaseException) -> OutputRecord:
        """The dead letter of a record whose transform raised.

        Raises:
            UsageError: the job declares no dead-letter topic.
        """
        return dead_letter(record, f"{type(error).__name__}: {error}", topic=self.require_dead_letters())

    def _listed(self, made: object, kind: type[OutputRecord | OutputBatch]) -> list[Any]:
        """What the user's function returned, as a list; a generator raises here."""
        if not isinstance(made, Iterable) or isinstance(
            made, (OutputRecord, OutputBatch, str, bytes, Mapping)
        ):
            msg = (
                f"Job {self._job.name!r}: the transform returned {type(made).__name__}, not a list of {kind.__name__}. "
                f"Fix: return [{kind.__name__}(…), …], or [] if there is nothing to write"
            )
            raise UsageError(msg)
        return list(made)

    def _check(self, output: object, kind: type[OutputRecord | OutputBatch]) -> None:
        if not isinstance(output, kind):
            msg = (
                f"Job {self._job.name!r}: the transform returned {type(output).__name__}, not {kind.__name__}"
            )
            raise UsageError(msg)
        if output.topic not in self._job.written_topics:
            msg = (
                f"Job {self._job.name!r} produced to {output.topic!r}, which is not declared. "
                f"Fix: add it to outputs (now: {', '.join(sorted(self._job.written_topics))})"
            )
            raise UsageError(msg)


_topic_of = attrgetter("topic")


def check_name(name: str) -> None:
    """Refuse a name that could not be part of a transactional.id.

    Raises:
        UsageError: it is none.
    """
    if not _NAME.fullmatch(name):
        msg = f"Job name {name!r}: use 1 to 60 letters, digits, '_' or '-'"
        raise UsageError(msg)


def checked_topics(name: str, topics: Sequence[str]) -> tuple[str, ...]:
    """The topics of a declaration, each named once.

    Raises:
        UsageError: there are none, one is named twice, or one is no topic name.
    """
    if isinstance(topics, str):
        msg = f"Job: {name} is a list of topics, not one string: [{topics!r}]"
        raise UsageError(msg)
    found = tuple(topics)
    if not found or len(set(found)) != len(found):
        msg = f"Job: {name} needs at least one topic, each named once; got {list(found)}"
        raise UsageError(msg)
    if wrong := [topic for topic in found if not _TOPIC.fullmatch(topic)]:
        msg = f"Job: {wrong} in {name} are not topic names (letters, digits, '.', '_', '-')"
        raise UsageError(msg)
    return found
