"""Records and batches of records: what goes into a transform and what comes out of it.

Single records are NamedTuples: they are immutable, picklable, and cost a third of a frozen dataclass
to make. Batches are columnar and lazy: a column is read from the client's messages only when asked
for, so a batch function pays for what it uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol, cast

Header = tuple[str, bytes | None]
Headers = tuple[Header, ...]


class InputRecord(NamedTuple):
    """One consumed record. ``timestamp_ms`` is milliseconds since the epoch, or None if the record has none."""

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
    clients. ``timestamp_ms`` is milliseconds since the epoch; None, and 0, let the client take its clock.
    """

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int | None = None


class ConsumedMessage(Protocol):
    """The part of a client's message that a batch reads; confluent_kafka.Message has it."""

    def topic(self) -> str | None: ...
    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> Sequence[Header] | Mapping[str, bytes | None] | None: ...
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

    def __len__(self) -> int:
        return len(self._messages)

    def __repr__(self) -> str:
        return f"InputBatch({len(self)} records)"

    def __iter__(self) -> Iterator[InputRecord]:
        # By column, and past the constructor: half the cost of making one record after another.
        columns = (
            self.topics,
            self.partitions,
            self.offsets,
            self.keys,
            self.values,
            self.headers,
            self.timestamps_ms,
        )
        return map(_make_record, zip(*columns, strict=True))

    def __getitem__(self, index: int) -> InputRecord:
        return next(iter(InputBatch(self._messages[index : index + 1] or [self._messages[index]])))

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
        """Record timestamps in milliseconds since the epoch."""
        return [time if kind else None for kind, time in [m.timestamp() for m in self._messages]]

    @cached_property
    def headers(self) -> list[Headers]:
        """Headers as tuples of (name, value)."""
        return [_tuple(h) if h else () for h in [m.headers() for m in self._messages]]


@dataclass(frozen=True, slots=True)
class OutputBatch:
    """Records to produce to one topic, by column.

    Args:
        topic: the output topic, one of the job's declared outputs.
        values: one value per record; None is a tombstone.
        keys: as long as ``values``, or None for records without keys.
        headers: as long as ``values``, or None.
        timestamps_ms: as long as ``values``, or None for the client's clock.
        partitions: as long as ``values``, or None to let the keys decide.

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
                msg = f"OutputBatch: {name} has {len(column)} entries, values has {len(self.values)}"
                raise ValueError(msg)

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[OutputRecord]:
        for i, value in enumerate(self.values):
            yield OutputRecord(
                self.topic,
                value,
                self.keys[i] if self.keys is not None else None,
                self.headers[i] if self.headers is not None else (),
                self.timestamps_ms[i] if self.timestamps_ms is not None else None,
                self.partitions[i] if self.partitions is not None else None,
            )


def _tuple(headers: Sequence[Header] | Mapping[str, bytes | None]) -> Headers:
    return tuple(headers.items()) if isinstance(headers, Mapping) else tuple(headers)


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
