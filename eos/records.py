"""Records and batches of records: what goes into a transform and what comes out of it.

A record function costs eos one object per input record, and its author one per output record: these two classes are made
for that (`docs/DESIGN.md`, "Records"). Batches are columnar and lazy: a column is read from the client's messages only when
asked for, so a batch function pays for what it uses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import repeat
from operator import countOf
from typing import Any, Never, Protocol, TypeVar, cast

from eos.errors import UsageError
from eos.headers import Headers, WithHeaders, any_unreadable, headers_of, refuse_unreadable

Column = TypeVar("Column", bound=Sequence[Any] | None)


class ConsumedMessage(WithHeaders, Protocol):
    """The part of a client's message that a batch reads; confluent_kafka.Message has it."""

    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def timestamp(self) -> tuple[int, int]: ...


class _Unfrozen:
    """An InputRecord while it is made: its fields can still be set."""

    __slots__ = ("_message", "key", "value")

    _message: ConsumedMessage
    key: bytes | None
    value: bytes | None


class InputRecord(_Unfrozen):
    """One consumed record; it cannot be changed.

    If the name of a header is not UTF-8, any look at ``headers`` raises, and to write them to an output as well.

    Attributes:
        topic: name of the input topic.
        partition: its number.
        offset: of the record itself.
        key: bytes, or None.
        value: bytes, or None of a tombstone.
        headers: (name, value) pairs.
        timestamp_ms: milliseconds since the epoch, or None if the record has none.
    """

    __slots__ = ()
    __match_args__ = ("topic", "partition", "offset", "key", "value", "headers", "timestamp_ms")

    def __new__(  # noqa: PYI034, PLR0917 - as it is unpickled, and as a person writes it in a test
        cls,
        topic: str,
        partition: int,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> InputRecord:
        return next(records_of([GivenMessage(topic, partition, offset, key, value, headers, timestamp_ms)]))

    @property
    def topic(self) -> str:
        return self._message.topic()  # type: ignore[return-value] # consumed: never None

    @property
    def partition(self) -> int:
        return self._message.partition()  # type: ignore[return-value]

    @property
    def offset(self) -> int:
        return self._message.offset()  # type: ignore[return-value]

    @property
    def headers(self) -> Headers:
        return headers_of([self._message])[0]

    @property
    def timestamp_ms(self) -> int | None:
        return _time_of(*self._message.timestamp())

    def __setattr__(self, name: str, _: object) -> Never:
        raise AttributeError(f"InputRecord.{name} cannot be set: a record stays as it was received")

    def __delattr__(self, name: str) -> Never:
        raise AttributeError(f"InputRecord.{name} cannot be deleted: a record stays as it was received")

    def __eq__(self, other: object) -> bool:
        return self._row() == other._row() if isinstance(other, InputRecord) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._row())

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__match_args__)
        return f"InputRecord({fields})"

    def __replace__(self, **changes: Any) -> InputRecord:
        """Another record with these fields: copy.replace(record, …) from Python 3.13 on."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__match_args__}
        return InputRecord(**fields | changes)

    def __reduce__(self) -> tuple[object, ...]:
        return InputRecord, self._row()

    def _row(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__match_args__)


def records_of(messages: Iterable[ConsumedMessage]) -> Iterator[InputRecord]:
    """A record for each message."""
    new = object.__new__
    for message in messages:
        record = new(_Unfrozen)
        record.key = message.key()
        record.value = message.value()
        record._message = message  # noqa: SLF001 - of this module
        # The layout is the same. This takes 60 ns; to set three fields of a class that refuses it takes 160.
        record.__class__ = InputRecord
        yield record  # type: ignore[misc] # a call of cast() takes another 40


def _time_of(kind: int, time_ms: int) -> int | None:
    return time_ms if kind and time_ms >= 0 else None  # -1, whatever its kind, is Kafka's word for none


@dataclass(slots=True)
class OutputRecord:
    """One record to produce.

    ``value=None`` is a tombstone. Without ``partition`` the key's murmur2 hash decides, as in Java
    clients. ``timestamp_ms`` is milliseconds since the epoch, 1 or more; None lets the client take its clock.
    """

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int | None = None


class InputBatch:
    """Consumed records by column: every column is a list with one entry per record, in the same order.

    Records of one partition are in offset order; records of several partitions may be interleaved.
    Offsets may have gaps (control records and aborted records take offsets too).
    """

    def __init__(self, messages: Sequence[ConsumedMessage]) -> None:
        self._messages = messages

    @classmethod
    def of(cls, records: Sequence[InputRecord]) -> InputBatch:
        """A batch of records that are already there: for tests, and for verification."""
        return cls([record._message for record in records])  # noqa: SLF001 - of this module

    def as_received(self) -> InputBatch:
        """The same records with columns of its own: what is done to the columns of the one does not show in the other."""
        return InputBatch(self._messages)

    def __len__(self) -> int:
        return len(self._messages)

    def __repr__(self) -> str:
        return f"InputBatch({len(self)} records)"

    def __iter__(self) -> Iterator[InputRecord]:
        return records_of(self._messages)

    def __getitem__(self, index: int) -> InputRecord:
        return next(records_of([self._messages[index]]))

    @property
    def place(self) -> str:
        """Where these records are in the input, in words."""
        offsets: dict[tuple[str, int], list[int]] = {}
        for topic, partition, offset in zip(self.topics, self.partitions, self.offsets, strict=True):
            offsets.setdefault((topic, partition), []).append(offset)
        return ", ".join(
            f"{topic}[{partition}] offset {of[0]}"
            if len(of) == 1
            else f"{topic}[{partition}] offsets {of[0]} to {of[-1]}"
            for (topic, partition), of in offsets.items()
        )

    @cached_property
    def values(self) -> list[bytes | None]:
        """Values as bytes; None where the record is a tombstone."""
        return [m.value() for m in self._messages]

    @cached_property
    def keys(self) -> list[bytes | None]:
        """Keys as bytes; None where the record has none."""
        return [m.key() for m in self._messages]

    @cached_property
    def topics(self) -> list[str]:
        """Topic names."""
        return [m.topic() for m in self._messages]  # type: ignore[misc] # consumed: never None

    @cached_property
    def partitions(self) -> list[int]:
        """Partition numbers."""
        return [m.partition() for m in self._messages]  # type: ignore[misc] # consumed: never None

    @cached_property
    def offsets(self) -> list[int]:
        """Offsets of the records themselves (the next offset to read is one more)."""
        return [m.offset() for m in self._messages]  # type: ignore[misc] # consumed: never None

    @cached_property
    def timestamps_ms(self) -> list[int | None]:
        """Record timestamps in milliseconds since the epoch; None where the record has none."""
        return [_time_of(*m.timestamp()) for m in self._messages]

    @cached_property
    def headers(self) -> list[Headers]:
        """Headers as tuples of (name, value).

        Raises:
            ValueError: of a record among these the name of a header is not UTF-8.
        """
        refuse_unreadable(self._headers if any_unreadable(self._headers) else ())
        return self._headers

    @cached_property
    def _headers(self) -> list[Headers]:
        return headers_of(self._messages)


@dataclass(frozen=True, slots=True)
class OutputBatch:
    """Records to produce to one topic, by column.

    Args:
        topic: the output topic, one of the job's declared outputs.
        values: one value per record; None is a tombstone.
        keys: as long as ``values``, or None for records without keys.
        headers: as long as ``values``, or None.
        timestamps_ms: as long as ``values``, 1 or more, or None for the client's clock.
        partitions: as long as ``values``, 0 or more, or None to let the keys decide.

    Raises:
        ValueError: a column is not as long as ``values``.
    """

    topic: str
    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None = None
    headers: Sequence[Headers] | None = None
    timestamps_ms: Sequence[int | None] | None = None
    partitions: Sequence[int | None] | None = None

    def __post_init__(self) -> None:
        for name in ("keys", "headers", "timestamps_ms", "partitions"):
            column = getattr(self, name)
            if column is not None and len(column) != len(self.values):
                raise ValueError(
                    f"OutputBatch: {name} has {len(column)} entries, values has {len(self.values)}"
                )

    def copied(self) -> OutputBatch:
        """The same records in columns of its own, so that the lists it was made of may be used again.

        Raises:
            UsageError: a value or key is neither bytes nor text: a buffer could be used again too.
        """
        require_bytes(self.topic, self.values)
        if self.keys is not None:
            require_bytes(self.topic, self.keys)
        headers = None if self.headers is None else [own_headers(of_record) for of_record in self.headers]
        return OutputBatch(
            self.topic,
            _own(self.values),
            _own(self.keys),
            headers,
            _own(self.timestamps_ms),
            _own(self.partitions),
        )

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[OutputRecord]:
        none: Iterable[None] = repeat(None)
        return map(
            OutputRecord,
            repeat(self.topic),
            self.values,
            none if self.keys is None else self.keys,
            repeat(()) if self.headers is None else self.headers,
            none if self.timestamps_ms is None else self.timestamps_ms,
            none if self.partitions is None else self.partitions,
        )


# Of a topic: values, keys, and by their place the headers, timestamp and partition of the few records that have any.
TopicColumns = tuple[list[Any], list[Any], dict[int, tuple[Headers, int | None, int | None]]]


def no_columns() -> defaultdict[str, TopicColumns]:
    """To take output records into as they come: what becomes of a record afterwards does not show."""
    return defaultdict(lambda: ([], [], {}))


def take(record: OutputRecord, columns: Mapping[str, TopicColumns]) -> None:
    """Take a record, behind the others of its topic."""
    values, keys, others = columns[record.topic]
    if record.headers or record.timestamp_ms is not None or record.partition is not None:
        others[len(values)] = (record.headers, record.timestamp_ms, record.partition)
    values.append(record.value)
    keys.append(record.key)


def batches_of(columns: Mapping[str, TopicColumns]) -> list[OutputBatch]:
    """A batch for each topic, in the order of their first records."""
    return [_batch_of(topic, *of_topic) for topic, of_topic in columns.items()]


def by_topic(records: Iterable[OutputRecord]) -> list[OutputBatch]:
    """The records by column: a batch for each topic, whose records keep their order."""
    columns = no_columns()
    for record in records:
        take(record, columns)
    return batches_of(columns)


def _batch_of(
    topic: str,
    values: list[Any],
    keys: list[Any],
    others: Mapping[int, tuple[Headers, int | None, int | None]],
) -> OutputBatch:
    if not others:
        return OutputBatch(topic, values, keys)
    nothing: tuple[Headers, None, None] = ((), None, None)
    rows = [others.get(at, nothing) for at in range(len(values))]
    headers, timestamps_ms, partitions = zip(*rows, strict=True)
    return OutputBatch(
        topic,
        values,
        keys,
        headers if any(headers) else None,
        None if timestamps_ms.count(None) == len(rows) else timestamps_ms,
        None if partitions.count(None) == len(rows) else partitions,
    )


_MOST_MS, _MOST_PARTITIONS = 2**63 - 1, 2**31 - 1


def not_writable(
    timestamps_ms: Iterable[int | None] | None,
    partitions: Iterable[int | None] | None,
    headers: Iterable[Any] | None,
) -> tuple[int, str] | None:
    """The first record of which a field would be replaced by another value on its way, and why; None if there is none."""
    if (at := _first_outside(1, _MOST_MS, timestamps_ms)) is not None:
        return at[0], (
            f"timestamp {at[1]} cannot be written: librdkafka takes 0 for none and writes the client's clock, and Kafka has "
            "none below 0 or of more than 63 bits. Fix: milliseconds since the epoch, 1 or more, or None for the client's clock"
        )
    if (at := _first_outside(0, _MOST_PARTITIONS, partitions)) is not None:
        return at[0], (
            f"partition {at[1]} does not exist: librdkafka takes -1 for any partition, and Kafka's numbers have 31 bits. Fix: 0 or "
            "more, or None to let the key choose"
        )
    for at_record, of_record in enumerate(headers or ()):
        if (unfit := _unfit_name(of_record)) is not None:
            return at_record, f"the header {unfit[0]!r} cannot be written: {unfit[1]}"
    return None


def _unfit_name(headers: Any) -> tuple[str, str] | None:
    try:
        for name, value in headers or ():
            if isinstance(value, str) and not _is_utf8(value):
                return name, f"its value {_NO_UTF8}. Fix: bytes, or a text without it"
            if not isinstance(name, str):
                continue
            if "\0" in name:
                return name, "librdkafka ends its name at the NUL. Fix: a name without one"
            if not (name.isascii() or _is_utf8(name)):  # confluent-kafka 2.16.1 would end the process
                return name, f"it {_NO_UTF8}. Fix: a name without it"
    except (TypeError, ValueError):  # no headers: the client says what they should be
        pass
    return None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _first_outside(least: int, most: int, column: Iterable[int | None] | None) -> tuple[int, int] | None:
    try:
        for at, number in enumerate(column or ()):
            if number is not None and not least <= number <= most:
                return at, number
    except TypeError:  # no number: the client says which
        pass
    return None


class OutputRefusedError(UsageError):
    """What a transform returned is refused. Only eos raises this class; every other exception of a transform comes from its own code.

    ``placed``: the message says which input it was made of.
    """

    def __init__(self, message: str, *, placed: bool = False) -> None:
        super().__init__(message)
        self.placed = placed


_NO_UTF8 = "has half of a surrogate pair, and so no form in UTF-8"
_HEADER_TYPES = (str, bytes | str | None)


class UnfitTextError(ValueError):
    """A value or key is text that cannot be written."""


def require_bytes(topic: str, column: Sequence[object]) -> None:
    """Refuse values or keys whose content may change before they are written, or that have no form in bytes.

    Raises:
        UsageError: naming the type.
        UnfitTextError: one is such a text.
    """
    # Mostly all are bytes, which to count takes 11 ns per entry; a set of all their types takes 29.
    if countOf(map(type, column), bytes) == len(column):
        return
    kinds = set(map(type, column))
    if others := {kind for kind in kinds if not issubclass(kind, bytes | str | None)}:
        raise OutputRefusedError(
            f"{topic}: a value or key is {', '.join(sorted(kind.__name__ for kind in others))}. Fix: bytes, str or None; "
            "bytes(…) of a buffer"
        )
    if any(issubclass(kind, str) for kind in kinds) and not all(
        one.isascii() or _is_utf8(one) for one in column if isinstance(one, str)
    ):
        raise UnfitTextError(f"output to {topic}: a value or key {_NO_UTF8}")


def require_fields(
    topic: str,
    timestamps_ms: Iterable[object] | None,
    partitions: Iterable[object] | None,
    headers: Iterable[Any] | None,
) -> None:
    """Refuse timestamps, partitions and headers of types that the client does not take.

    Raises:
        UsageError: naming the type.
    """
    for name, column in (("timestamp", timestamps_ms), ("partition", partitions)):
        for number in column or ():
            if number is not None and not hasattr(number, "__index__"):
                raise OutputRefusedError(
                    f"{topic}: a {name} is {type(number).__name__}. Fix: a whole number (int(…)) or None"
                )
    for of_record in headers or ():
        for header in of_record or ():
            if not (
                isinstance(header, tuple | list)
                and [isinstance(part, kind) for part, kind in zip(header, _HEADER_TYPES, strict=False)]
                == [True, True]
                and len(header) == len(_HEADER_TYPES)
            ):
                raise OutputRefusedError(
                    f"{topic}: a header is {_shape(header)}. Fix: (name, value) pairs of str and bytes, str or None; of a "
                    "mapping tuple(….items())"
                )


def _shape(header: object) -> str:
    if isinstance(header, tuple | list):
        return f"a {type(header).__name__} of ({', '.join(type(part).__name__ for part in header)})"
    return type(header).__name__


def fingerprint(topic: str, value: bytes | str | None, key: bytes | str | None) -> str:
    """A hash by which an output is found again, wherever it may be written."""
    digest = blake2b(digest_size=16)
    for part in (topic, value, key):
        data = part.encode() if isinstance(part, str) else part
        digest.update(b"-" if data is None else b"%d:%b" % (len(data), data))
    return digest.hexdigest()


def own_headers(headers: Any) -> Headers:
    """The same headers in tuples: a pair may be a list, which its author may use again. What is no pair stays, to be refused."""
    own = tuple(headers or ())
    if countOf(map(type, own), tuple) == len(own):
        return own
    return tuple(tuple(header) if isinstance(header, list) else header for header in own)


def _own(column: Column) -> Column:
    return column if column is None or column.__class__ is tuple else cast("Column", list(column))


class GivenMessage:
    """The fields of a record behind the interface of a client's message."""

    __slots__ = ("_fields",)

    def __init__(self, *fields: Any) -> None:
        self._fields = fields

    def topic(self) -> Any:
        return self._fields[0]

    def partition(self) -> Any:
        return self._fields[1]

    def offset(self) -> Any:
        return self._fields[2]

    def key(self) -> Any:
        return self._fields[3]

    def value(self) -> Any:
        return self._fields[4]

    def headers(self) -> Any:
        return self._fields[5]

    def timestamp(self) -> tuple[int, int]:
        timestamp_ms = self._fields[6]
        return (0, -1) if timestamp_ms is None else (1, timestamp_ms)
