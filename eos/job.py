"""Job: the declaration of a job: its topics, its transform, its settings. Nothing here talks to Kafka."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from pydantic import BaseModel

from eos.errors import UsageError
from eos.events import Listener
from eos.identity import Identity, Kind, Naming
from eos.references import code_of_the_job, load_named
from eos.shards import APP_NAME, TOPIC_NAME, Shard
from eos.transform import Applied, BatchTransform, BoundTransform, Transform, require_function


@runtime_checkable
class Declaration(Protocol):
    """What every kind of job says of itself, and all that is asked of one by who does not run it."""

    @property
    def kind(self) -> Kind:
        """How it runs."""

    @property
    def applied(self) -> Job | None:
        """The loop's job that says what becomes of a single record; None if no one says it."""

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

    def identity(self, settings: Naming) -> Identity:
        """What it is to everything that looks at it from outside."""


@runtime_checkable
class Looping(Declaration, Protocol):
    """A job that a loop drives, in processes of its own: `Job`, and any whose outputs go elsewhere than to Kafka."""

    @property
    def settings(self) -> type[BaseModel] | None:
        """The model of its own settings."""

    def bound(self, settings: BaseModel | None = None) -> Applied | OwnLoops:
        """Its transform, which is applied to what its inputs hold; or loops of its own, where it reads no topic."""


class RunsShard(Protocol):
    """The loop of one shard."""

    def run(self) -> None:
        """Open, loop until it is stopped or has caught up, and close.

        Raises:
            EosError: what ended it.
        """


class OwnLoops(Protocol):
    """The loops of a job that reads no topic."""

    @property
    def reads_topics(self) -> Literal[False]: ...

    def shards(self, settings: Any) -> Sequence[Shard]:
        """Those of this process.

        Raises:
            ConfigError: a setting is not as the job needs it.
        """

    def loop(
        self, shard: Shard, settings: Any, *, until_caught_up: bool, stop: threading.Event, listener: Listener
    ) -> RunsShard:
        """The loop of one of them."""

    def close(self) -> None:
        """All loops have ended."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A consume-transform-produce job: inputs, outputs, and a pure map from records to records.

    Args:
        name: letters, digits, '_' and '-'; the app part of every transactional.id, and the default group.
        inputs: the topics read.
        outputs: every topic that the transform writes to. Producing elsewhere is a UsageError: access
            rules, preflight and verification are derived from this declaration.
        transform: one record -> its output records. What its code raises, a class of ``eos`` too, is answered by the poison
            policy.
        transform_batch: many records, by column -> output batches. It must be a pure map over records:
            the same outputs wherever the batch is cut. eos uses that to run it record by record when it
            raised (to find the record at fault) and to verify outputs. It may change the columns that it is
            given, and use the lists that it returned again: both are its own.
        dead_letters: the topic for records whose transform raised (poison policy ``dead-letter``); also
            allowed as an output of the transform itself.
        settings: a pydantic model of the job's own settings (table ``[job]``), for a factory.
        transform_factory: is called once per process, with the validated settings if the job declares a model for them,
            and returns the ``transform``.
        transform_batch_factory: the same for a ``transform_batch``.

    Exactly one of the four is given: a transform, or a factory of one.

    Raises:
        UsageError: the declaration contradicts itself.
    """

    kind: ClassVar[Literal[Kind.LOOP]] = Kind.LOOP

    name: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    transform: Transform | None = None
    transform_batch: BatchTransform | None = None
    transform_factory: Callable[..., Transform] | None = None
    transform_batch_factory: Callable[..., BatchTransform] | None = None
    dead_letters: str | None = None
    settings: type[BaseModel] | None = None

    def __post_init__(self) -> None:
        dead_letters = [] if self.dead_letters is None else [self.dead_letters]
        inputs, outputs = check_topics(self.name, self.inputs, self.outputs, dead_letters=dead_letters)
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "outputs", outputs)
        made = (self.transform_factory, self.transform_batch_factory)
        if [*made, self.transform, self.transform_batch].count(None) != 3:  # noqa: PLR2004 - all but one
            raise UsageError(
                f"Job {self.name!r}: give exactly one of transform=, transform_batch=, transform_factory= and "
                "transform_batch_factory="
            )
        if self.settings is not None and made == (None, None):
            raise UsageError(
                f"Job {self.name!r}: a transform does not get settings=. Fix: transform_factory=, a function from the settings "
                "to the transform"
            )

    @property
    def read_topics(self) -> frozenset[str]:
        """Every topic that the job reads."""
        return frozenset(self.inputs)

    @property
    def written_topics(self) -> frozenset[str]:
        """Every topic that the job may write to."""
        return frozenset((*self.outputs, *([] if self.dead_letters is None else [self.dead_letters])))

    @property
    def applied(self) -> Job:
        """Itself: its transform says what becomes of a single record."""
        return self

    def identity(self, settings: Naming) -> Identity:
        """What the job is to everything that looks at it from outside."""
        group = settings.group_for(self.name)
        return Identity(
            kind=self.kind,
            app=self.name,
            group=group,
            commits={group: self.read_topics},
            mode=settings.ownership.mode,
            inputs=tuple(sorted(self.inputs)),
            read=tuple(sorted(self.read_topics)),
            outputs=tuple(sorted(self.written_topics)),
            dead_letters=self.dead_letters,
        )

    def bound(self, settings: BaseModel | None = None) -> BoundTransform:
        """The job's transform as one interface over both shapes.

        Args:
            settings: the validated settings of the job; needed iff the job declares a model.

        Raises:
            UsageError: they are missing, there is no model for them, or the factory raised a class of eos.
            UnclassifiedError: the factory raised anything else.
        """
        if (self.settings is None) != (settings is None):
            raise UsageError(f"Job {self.name!r}: settings are given iff the job declares a model for them")
        arguments = () if settings is None else (settings,)
        for name in ("transform_factory", "transform_batch_factory"):
            if (factory := getattr(self, name)) is not None:
                given = ["the settings"][: len(arguments)]
                require_function(f"Job {self.name!r}: {name}", factory, arguments=given)
        per_record, per_batch = self.transform, self.transform_batch
        with code_of_the_job(
            f"Job {self.name!r}: the factory of its transform",
            otherwise="correct it there, or transform= where the function is the transform itself and takes a record",
        ):
            if self.transform_factory is not None:
                per_record = self.transform_factory(*arguments)
            if self.transform_batch_factory is not None:
                per_batch = self.transform_batch_factory(*arguments)
        if per_record is None and per_batch is None:
            raise UsageError(
                f"Job {self.name!r}: the factory of its transform returned nothing. Fix: return the transform"
            )
        return BoundTransform(self.name, self.written_topics, self.dead_letters, per_record, per_batch)


def load_looping(reference: str, app_dir: Path) -> Looping:
    """The job for a loop that ``package.module:name`` names.

    Raises:
        ConfigError: there is no such module or name, or it is no such job.
    """
    kind: type[Looping] = Looping  # type: ignore[type-abstract]  # it is only asked whether an object fits
    return load_named(reference, app_dir, kind, "eos.Job")


def check_topics(
    name: str,
    inputs: Iterable[str],
    outputs: Iterable[str] | None,
    *,
    also_read: Iterable[str] = (),
    dead_letters: Sequence[str] = (),
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The inputs and outputs of a job, once they and its name are shown to be fit for one; ``outputs`` None: it writes to no topic.

    Raises:
        UsageError: one of them is not a name, or a topic is both read and written.
    """
    read = checked_topics("inputs", inputs)
    written = () if outputs is None else checked_topics("outputs", outputs)
    if dead_letters:
        checked_topics("dead_letters", dead_letters)
    checked_name(name)
    if loop := sorted({*read, *also_read} & {*written, *dead_letters}):
        raise UsageError(f"Job {name!r}: {loop} is input and output; the job would feed itself forever")
    return read, written


def checked_name(name: str) -> str:
    """The name of a job.

    Raises:
        UsageError: it cannot stand in a transactional.id.
    """
    if not APP_NAME.fullmatch(name):
        raise UsageError(f"Job name {name!r}: use 1 to 60 letters, digits, '_' or '-'")
    return name


def checked_topics(name: str, topics: Iterable[str]) -> tuple[str, ...]:
    """The topics of a declaration, each named once.

    Raises:
        UsageError: there are none, one is named twice, or one is no topic name.
    """
    if isinstance(topics, str):
        raise UsageError(f"Job: {name} is a list of topics, not one string: [{topics!r}]")
    found = tuple(topics)
    if not found or len(set(found)) != len(found):
        raise UsageError(f"Job: {name} needs at least one topic, each named once; got {list(found)}")
    if wrong := [topic for topic in found if not TOPIC_NAME.fullmatch(topic)]:
        raise UsageError(f"Job: {wrong} in {name} are not topic names (letters, digits, '.', '_', '-')")
    return found
