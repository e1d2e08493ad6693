"""BoundTransform: applies a job's transform, and checks and copies the outputs that it returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol

from eos.base.process_limits import lacking
from eos.base.raised_at import raised_at
from eos.deadletter import dead_letter
from eos.errors import ProcessLimitError, UsageError, reason_of
from eos.headers import refuse_unreadable
from eos.records import (
    InputBatch,
    InputRecord,
    OutputBatch,
    OutputRecord,
    OutputRefusedError,
    UnfitTextError,
    batches_of,
    by_topic,
    no_columns,
    not_writable,
    own_headers,
    require_bytes,
    require_fields,
    take,
)

Transform = Callable[[InputRecord], Iterable[OutputRecord]]
BatchTransform = Callable[[InputBatch], Iterable[OutputBatch]]

_NO_HEADERS = ()
_NO_TOPIC: Any = object()  # before the first output; any other value may be one that a transform gives


def require_function(what: str, function: object, *, arguments: Sequence[str]) -> None:
    """Refuse what cannot be called with these arguments, or gives nothing before it is awaited.

    Found here, it ends the start. Found at the first record, it would make each record poison.

    Raises:
        UsageError: what it is, and the fix.
    """
    if not callable(function):
        raise UsageError(f"{what} is {type(function).__name__}, not a function")
    for called in (function, type(function).__call__):
        if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
            raise UsageError(f"{what} is async, and eos awaits nothing. Fix: def instead of async def")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a built-in function, say
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        given = f"one argument, {arguments[0]}" if arguments else "no argument, for the job has no settings="
        raise UsageError(f"{what} takes {signature}, and is called with {given} ({error})") from None


def refuse_limit(error: Exception, place: str) -> None:
    """An exception that says what the process lacks, not what is wrong with a record, ends the process: no record is poison for it.

    Raises:
        ProcessLimitError: it is one.
    """
    if lacks := lacking(error):
        raise ProcessLimitError(
            f"{place}: the transform raised {type(error).__name__}{raised_at(error)}: this process has no more {lacks}. That is its "
            "condition, not the record's fault, so poison.policy does not apply. Nothing is lost: the next start goes on here. "
            "Fix: what uses it up, or the limit; if it comes back at this very record, `eos skip`, or let the transform raise "
            "another exception for it"
        ) from error


class Applied(Protocol):
    """A transform of a job, applied to records. What its outputs are, the job's destination knows."""

    @property
    def reads_topics(self) -> Literal[True]: ...

    @property
    def dead_letters(self) -> str | None:
        """The topic of dead letters, if there is one."""
        ...

    @property
    def takes_batches(self) -> bool: ...
    @property
    def one_fetch_at_a_time(self) -> bool:
        """Whether each fetch is to be a transaction now, with nothing transformed ahead of its commit."""
        ...

    def batch(self, batch: InputBatch) -> list[Any]: ...
    def records(
        self, batch: InputBatch, failed: Callable[[InputRecord, Exception], Iterable[Any]]
    ) -> list[Any]:
        """The outputs of all records; ``failed`` makes those of a record that raised."""
        ...

    def grouped(self, outputs: Sequence[Any]) -> list[Any]:
        """Outputs one by one as :meth:`records` returns them."""
        ...

    def size_of(self, outputs: Sequence[Any]) -> int:
        """Bytes, about: what ``transaction.max_bytes`` counts."""
        ...

    def require_dead_letters(self) -> str: ...
    def dead_letter(self, record: InputRecord, error: BaseException) -> Any: ...
    def surroundings(self, settings: Any) -> Any:
        """What an owner of the job is handed (`eos.core.surroundings`), if its destination is not Kafka."""
        ...

    def close(self) -> None:
        """All owners have ended."""


class BoundTransform:
    """A job's transform, ready to be applied to a record or to a batch.

    Each application raises what the user's function raises, and OutputRefusedError if an output is not what was declared. For records
    one by one also ProcessLimitError.

    Attributes:
        dead_letters: the dead-letter topic, if the job declares one.
        one_fetch_at_a_time: never.

    Args:
        name: the job's name, for messages.
        topics: every topic that the job may write to.
        dead_letters: the dead-letter topic, if the job declares one.
        per_record: the user's function for one record, or None.
        per_batch: the user's function for a batch, or None.
    """

    reads_topics: ClassVar[Literal[True]] = True
    one_fetch_at_a_time = False

    def __init__(
        self,
        name: str,
        topics: frozenset[str],
        dead_letters: str | None,
        per_record: Transform | None,
        per_batch: BatchTransform | None,
    ) -> None:
        for shape, function, given in (("", per_record, "the record"), ("_batch", per_batch, "the batch")):
            if function is not None:
                require_function(f"Job {name!r}: transform{shape}", function, arguments=[given])
        self._name = name
        self.dead_letters = dead_letters
        self._outputs = Outputs(name, topics)
        self._per_record = per_record
        self._per_batch = per_batch

    @property
    def takes_batches(self) -> bool:
        """Whether the user gave a batch function."""
        return self._per_batch is not None

    def batch(self, batch: InputBatch) -> list[OutputBatch]:
        """Apply the batch function."""
        if self._per_batch is None:
            raise UsageError(f"Job {self._name!r} has no transform_batch")
        # The function gets its own columns, which it may change: a later pass record by record, and the offsets, use the
        # records as received. It may also reuse its lists for the next batch while these outputs wait for a commit in
        # flight, so each output is copied at once.
        made = self._per_batch(batch.as_received())
        try:
            return [self._outputs.batch(output) for output in self._outputs.listed(made, OutputBatch)]
        except OutputRefusedError as error:
            raise self._placed(error, batch) from None

    def record(self, record: InputRecord) -> list[OutputRecord]:
        """The outputs of one record, in order, by either shape of function."""
        if self._per_record is not None:
            return list(self._outputs.records(self._per_record(record)))
        return [out for batch in self.batch(InputBatch.of([record])) for out in batch]

    def records(
        self, batch: InputBatch, failed: Callable[[InputRecord, Exception], Iterable[OutputRecord]]
    ) -> list[OutputBatch]:
        """The outputs of all records of a batch, by topic and in order; ``failed`` makes those of a record that raised.

        Of one whose output is text that cannot be written, too: all are then made again, and looked at one by one.
        """
        try:
            return self._records(batch, failed, carefully=False)
        except UnfitTextError:
            return self._records(batch, failed, carefully=True)

    def _records(  # noqa: C901, PLR0912 - in one piece: a call per record would be a tenth of its cost
        self,
        batch: InputBatch,
        failed: Callable[[InputRecord, Exception], Iterable[OutputRecord]],
        *,
        carefully: bool,
    ) -> list[OutputBatch]:
        apply = self._per_record or self.record
        columns, topic = no_columns(), _NO_TOPIC
        values: list[Any] = []
        keys: list[Any] = []
        for record in batch:
            try:
                made = apply(record)
                plain = made.__class__ is list and not carefully
                # One output, of the topic of the last one: most records have no other. The way below takes 90 ns more of 760.
                if plain and len(made) == 1:  # type: ignore[arg-type] # a list
                    output = made[0]  # type: ignore[index]
                    if (
                        output.__class__ is OutputRecord
                        and output.topic is topic
                        and output.headers is _NO_HEADERS
                        and output.timestamp_ms is None
                        and output.partition is None
                    ):
                        values.append(output.value)
                        keys.append(output.key)
                        continue
                # A call per output would be a tenth of the cost of this loop; these comparisons take 40 ns. CPython has one
                # empty tuple; another empty value only means a second check.
                for output in made if plain else ():
                    if (
                        output.__class__ is not OutputRecord
                        or output.headers is not _NO_HEADERS
                        or output.timestamp_ms is not None
                        or output.partition is not None
                    ):
                        plain = False
                        break
                if not plain:
                    made = list(self._outputs.records(made))
            except OutputRefusedError as error:
                raise self._placed(error, InputBatch.of([record])) from None
            except Exception as error:  # noqa: BLE001 - the user's code may raise anything, classes of eos too
                refuse_limit(error, InputBatch.of([record]).place)
                made, plain = list(self._outputs.records(failed(record, error))), False
            # All of a record's outputs are fine, or none of them is taken.
            for output in made:
                if not plain:
                    take(output, columns)
                    continue
                if output.topic is not topic:
                    topic = output.topic
                    try:
                        values, keys, _ = columns[topic]
                    except TypeError:  # a topic that cannot be hashed is no name
                        raise self._placed(self._outputs.undeclared(topic), InputBatch.of([record])) from None
                values.append(output.value)
                keys.append(output.key)
        try:
            return self._outputs.checked(batches_of(columns))
        except OutputRefusedError as error:
            raise self._placed(error, batch) from None

    def grouped(self, outputs: Sequence[OutputRecord]) -> list[OutputBatch]:
        """By topic and in order."""
        return by_topic(outputs)

    def size_of(self, outputs: Sequence[OutputBatch]) -> int:
        """The bytes of their values."""
        return sum(map(_size_of, outputs))

    def surroundings(self, _: Any) -> None:
        """Those of an owner that writes to Kafka."""

    def close(self) -> None:
        """Nothing is left open."""

    def _placed(self, error: OutputRefusedError, batch: InputBatch) -> OutputRefusedError:
        """The refusal with the place of the record whose output it is, if one alone has it, which is tried again."""
        if error.placed:
            return error
        for record in batch if len(batch) > 1 else ():
            try:
                self._outputs.checked(by_topic(self.record(record)))
            except OutputRefusedError as found:
                error, batch = found, InputBatch.of([record])
                break
            except Exception:  # noqa: BLE001, S112 - it is another record's output that is refused
                continue
        return error if error.placed else OutputRefusedError(f"{batch.place}: {error}", placed=True)

    def require_dead_letters(self) -> str:
        """The job's dead-letter topic.

        Raises:
            UsageError: the job declares none.
        """
        if self.dead_letters is None:
            raise UsageError(
                f"Job {self._name!r}: poison policy 'dead-letter' needs a topic. Fix: Job(dead_letters='…'), or "
                "poison.policy = 'stop'"
            )
        return self.dead_letters

    def dead_letter(self, record: InputRecord, error: BaseException) -> OutputRecord:
        """The dead letter of a record whose transform raised; as `require_dead_letters`."""
        return dead_letter(record, reason_of(error), topic=self.require_dead_letters())


def _size_of(output: OutputBatch) -> int:
    try:
        return sum(map(len, output.values))  # type: ignore[arg-type] # a third cheaper, and there mostly are no tombstones
    except TypeError:
        return sum(map(len, filter(None, output.values)))


class Outputs:
    """The one place where outputs of a transform are checked against the job's declaration, and copied.

    Every method raises OutputRefusedError if an output is not what the job declares, and ValueError if the client would
    replace one of its fields.
    """

    def __init__(self, name: str, topics: frozenset[str]) -> None:
        self._name = name
        self._topics = topics

    def listed(self, made: object, kind: type[OutputRecord | OutputBatch]) -> Iterable[Any]:
        """What the user's function returned, if it is iterable. A generator runs when it is iterated."""
        if not isinstance(made, Iterable) or isinstance(
            made, (OutputRecord, OutputBatch, str, bytes, Mapping)
        ):
            fix = f"return [{kind.__name__}(…), …], or [] if there is nothing to write"
            if callable(made):
                fix = (
                    "transform_factory= (or transform_batch_factory=) for a function that makes the transform"
                )
            raise OutputRefusedError(
                f"Job {self._name!r}: the transform returned {type(made).__name__}, not a list of {kind.__name__}. Fix: {fix}"
            )
        return made

    def batch(self, output: OutputBatch) -> OutputBatch:
        """The batch, checked, in columns of its own."""
        self._check(output, OutputBatch)
        copied = output.copied()
        _require_writable(copied.topic, copied.timestamps_ms, copied.partitions, copied.headers)
        return copied

    def records(self, made: object) -> Iterator[OutputRecord]:
        """Copies of the records that the user's function returned, each checked as it comes: a generator may use one again."""
        for output in self.listed(made, OutputRecord):
            self._check(output, OutputRecord)
            headers, time_ms, partition = own_headers(output.headers), output.timestamp_ms, output.partition
            if headers or time_ms is not None or partition is not None:
                _require_writable(output.topic, [time_ms], [partition], [headers])
            if isinstance(output.value, str) or isinstance(output.key, str):
                require_bytes(output.topic, (output.value, output.key))
            yield OutputRecord(output.topic, output.value, output.key, headers, time_ms, partition)

    def _check(self, output: object, kind: type[OutputRecord | OutputBatch]) -> None:
        if not isinstance(output, kind):
            raise OutputRefusedError(
                f"Job {self._name!r}: the transform returned {type(output).__name__}, not {kind.__name__}"
            )
        if isinstance(output, OutputRecord):
            refuse_unreadable([output.headers])
        elif output.headers is not None:
            refuse_unreadable(output.headers)
        if not isinstance(output.topic, str) or output.topic not in self._topics:
            raise self.undeclared(output.topic)

    def undeclared(self, topic: object) -> OutputRefusedError:
        """The refusal of an output to another topic than the job declares."""
        return OutputRefusedError(
            f"Job {self._name!r} produced to {topic!r}, which is not declared. "
            f"Fix: add it to outputs (now: {', '.join(sorted(self._topics))})"
        )

    def checked(self, batches: list[OutputBatch]) -> list[OutputBatch]:
        """Their values, keys and topics, in C: a call per record would cost too much."""
        for batch in batches:
            require_bytes(batch.topic, batch.values)
            require_bytes(batch.topic, batch.keys or ())
            if batch.topic not in self._topics:
                self._check(batch, OutputBatch)
        return batches


def _require_writable(
    topic: str,
    timestamps_ms: Iterable[int | None] | None,
    partitions: Iterable[int | None] | None,
    headers: Iterable[Any] | None,
) -> None:
    """Refuse what the client would replace. It counts as raised by the transform: its input record is poison.

    Raises:
        ValueError: librdkafka would replace a timestamp, a partition or a header's name.
        OutputRefusedError: one is of a type that it does not take.
    """
    require_fields(topic, timestamps_ms, partitions, headers)
    if (unfit := not_writable(timestamps_ms, partitions, headers)) is not None:
        raise ValueError(f"output to {topic}: {unfit[1]}")
