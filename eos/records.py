"""Records and batches of records: what goes into a transform and what comes out of it.

Single records are NamedTuples: they are immutable, picklable, and cost a third of a frozen dataclass
to make. Batches are columnar and lazy: a column is read from the client's messages only when asked
for, so a batch function pays for what it uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import blake2b
from itertools import repeat
from operator import countOf, itemgetter
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from eos.errors import UsageError
from eos.headers import Headers, WithHeaders, any_unreadable, headers_of, refuse_unreadable

Column = TypeVar("Column", bound=Sequence[Any] | None)


class InputRecord(NamedTuple):
    """One consumed record. ``timestamp_ms`` is milliseconds since the epoch, or None if the record has none.

    If the name of a header is not UTF-8, any look at ``headers`` raises, and to write them to an output as well.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None


class OutputRecord(NamedTuple):
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


class ConsumedMessage(WithHeaders, Protocol):
    """The part of a client's message that a batch reads; confluent_kafka.Message has it."""

    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def timestamp(self) -> tuple[int, int]: ...


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
        return cls([_RecordAsMessage(record) for record in records])

    def as_received(self) -> InputBatch:
        """The same records with columns of its own: what is done to the columns of the one does not show in the other."""
        return InputBatch(self._messages)

    def __len__(self) -> int:
        return len(self._messages)

    def __repr__(self) -> str:
        return f"InputBatch({len(self)} records)"

    def __iter__(self) -> Iterator[InputRecord]:
        # By column, and past the constructor: half the cost of making one record after another.
        places = (self.topics, self.partitions, self.offsets)
        contents = (self.keys, self.values, self._headers, self.timestamps_ms)
        return map(_make_record, zip(*places, *contents, strict=True))

    def __getitem__(self, index: int) -> InputRecord:
        return next(iter(InputBatch(self._messages[index : index + 1] or [self._messages[index]])))

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
        # -1, whatever its kind, is Kafka's word for none.
        return [
            time if kind and time >= 0 else None for kind, time in [m.timestamp() for m in self._messages]
        ]

    @cached_property
    def headers(self) -> list[Headers]:
        """Headers as tuples of (name, value).

        Raises:
            ValueError: of a record among these the name of a header is not UTF-8.
        """
        refuse_unreadable(self._headers if self.any_unreadable_headers else ())
        return self._headers

    @property
    def any_unreadable_headers(self) -> bool:
        """Whether to look at the headers of some record would raise."""
        return any_unreadable(self._headers)

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
        headers = None if self.headers is None else [tuple(of_record or ()) for of_record in self.headers]
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


_topic_of = itemgetter(OutputRecord._fields.index("topic"))  # half the cost of access by name


def by_topic(records: Sequence[OutputRecord]) -> list[OutputBatch]:
    """The records by column: a batch for each topic, whose records keep their order."""
    runs: dict[str, Sequence[OutputRecord]]
    if len(set(map(_topic_of, records))) == 1:  # the usual case; a third of the cost of a look-up per record
        runs = {records[0].topic: records}
    else:
        lists: dict[str, list[OutputRecord]] = {}
        for record in records:
            lists.setdefault(record.topic, []).append(record)
        runs = {**lists}
    return [_by_column(topic, run) for topic, run in runs.items()]


def _by_column(topic: str, records: Sequence[OutputRecord]) -> OutputBatch:
    _, values, keys, headers, timestamps_ms, partitions = zip(*records, strict=True)
    return OutputBatch(
        topic,
        values,
        keys,
        headers if any(headers) else None,
        None if timestamps_ms.count(None) == len(records) else timestamps_ms,
        None if partitions.count(None) == len(records) else partitions,
    )


def not_writable(
    timestamps_ms: Iterable[int | None] | None,
    partitions: Iterable[int | None] | None,
    headers: Iterable[Any] | None,
) -> tuple[int, str] | None:
    """The first record of which a field would be replaced by another value on its way, and why; None if there is none."""
    if (at := _first_below(1, timestamps_ms)) is not None:
        return at[0], (
            f"timestamp {at[1]} cannot be written: librdkafka takes 0 for none and writes the client's clock, and Kafka has "
            "none below 0. Fix: milliseconds since the epoch, 1 or more, or None for the client's clock"
        )
    if (at := _first_below(0, partitions)) is not None:
        return at[0], (
            f"partition {at[1]} does not exist: librdkafka takes -1 for any partition. Fix: 0 or more, or None to let the "
            "key choose"
        )
    for at_record, of_record in enumerate(headers or ()):
        if (name := _cut_name(of_record)) is not None:
            return at_record, (
                f"the header {name!r} cannot be written: librdkafka ends its name at the NUL. Fix: a name without one"
            )
    return None


def _cut_name(headers: Any) -> str | None:
    try:
        for name, _ in headers or ():
            if isinstance(name, str) and "\0" in name:
                return name
    except (TypeError, ValueError):  # no headers: the client says what they should be
        pass
    return None


def _first_below(least: int, column: Iterable[int | None] | None) -> tuple[int, int] | None:
    try:
        for at, number in enumerate(column or ()):
            if number is not None and number < least:
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


_HEADER_TYPES = (str, bytes | str | None)
_PLAIN_TYPES = frozenset({bytes, str, type(None)})


def all_plain(column: Sequence[object]) -> bool:
    """Whether every entry is bytes, str or None: no buffer, and nothing derived.

    Mostly all are bytes, which to count takes 11 ns per entry; a set of all their types takes 29.
    """
    return countOf(map(type, column), bytes) == len(column) or _PLAIN_TYPES.issuperset(map(type, column))


def require_bytes(topic: str, column: Sequence[object]) -> None:
    """Refuse values or keys whose content may change before they are written.

    Raises:
        UsageError: naming the type.
    """
    if all_plain(column):
        return
    if others := {kind for kind in set(map(type, column)) if not issubclass(kind, bytes | str | None)}:
        raise OutputRefusedError(
            f"{topic}: a value or key is {', '.join(sorted(kind.__name__ for kind in others))}. Fix: bytes, str or None; "
            "bytes(…) of a buffer"
        )


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


def _own(column: Column) -> Column:
    return column if column is None or column.__class__ is tuple else cast("Column", list(column))


_make_record = cast("Callable[[tuple[Any, ...]], InputRecord]", partial(tuple.__new__, InputRecord))


class _RecordAsMessage:
    """An InputRecord behind the interface of a client's message."""

    __slots__ = ("_record",)

    def __init__(self, record: InputRecord) -> None:
        self._record = record

    def topic(self) -> str:
        return self._record.topic

    def partition(self) -> int:
        return self._record.partition

    def offset(self) -> int:
        return self._record.offset

    def key(self) -> bytes | None:
        return self._record.key

    def value(self) -> bytes | None:
        return self._record.value

    def headers(self) -> Headers:
        return self._record.headers

    def timestamp(self) -> tuple[int, int]:
        timestamp_ms = self._record.timestamp_ms
        return (0, -1) if timestamp_ms is None else (1, timestamp_ms)
