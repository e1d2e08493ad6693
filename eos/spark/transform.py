"""records_transform: an eos.Job's transform applied by Spark, with the records that the loop gives for the same input."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from eos.events import Event, RecordDeadLettered
from eos.headers import Headers
from eos.job import Job
from eos.poison import PoisonFilter
from eos.records import ConsumedMessage, GivenMessage, InputBatch, InputRecord, OutputBatch
from eos.settings import Settings
from eos.settings.binding import bind
from eos.spark.plan import SHARD
from eos.spark.write.failures import WORD, marked
from eos.spark.write.output import headers_of

FrameTransform = Callable[[DataFrame], DataFrame]

_NO_TIMESTAMP = -1  # org.apache.kafka.common.record.TimestampType
_INPUT = ("topic", "partition", "offset", "key", "value", "headers", "timestampType")
_TIME_MS = "timestamp_ms"
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_OUTPUT = pa.schema(
    [
        (SHARD, pa.int32()),
        ("topic", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("partition", pa.int32()),
        ("headers", _HEADERS),
        (_TIME_MS, pa.int64()),
    ]
)
_OUTPUT_SQL = (
    f"{SHARD} INT, topic STRING, key BINARY, value BINARY, partition INT, "
    f"headers ARRAY<STRUCT<key: STRING, value: BINARY>>, {_TIME_MS} BIGINT"
)

_log = logging.getLogger(__name__)


def records_transform(job: Job, settings: Settings) -> FrameTransform:
    """A DataFrame transform that applies the transform of ``job`` to every record of the input.

    The records are those of the loop, in its order per input partition: dead letters by the poison policy,
    headers, timestamps and partitions as the job set them. It is row-wise: input partitions stay tasks.

    Args:
        job: its module must be importable where the tasks run.
        settings: the job's own settings (``[job]``) and the poison policy.

    Raises:
        ConfigError: a value of ``[job]`` is wrong, or given to a job that has no settings.
        UsageError: the policy is ``dead-letter`` and the job declares no topic for it.
    """
    _filter(job, settings)  # what is wrong is said on the driver
    word = WORD  # the driver's: in a task's process it is another one

    def apply(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with marked(word):
            poison_filter = _filter(job, settings)
            for batch in batches:
                for shard, rows in _by_shard(batch):
                    yield from _arrow(poison_filter.apply(ArrowInputBatch(rows)), shard)

    def transform(frame: DataFrame) -> DataFrame:
        rows = frame.select(SHARD, *_INPUT, F.unix_millis("timestamp").alias(_TIME_MS))
        applied = rows.mapInArrow(apply, _OUTPUT_SQL)
        return applied.withColumn("timestamp", F.timestamp_millis(_TIME_MS)).drop(_TIME_MS)

    return transform


class ArrowInputBatch(InputBatch):
    """Input records by column, from an Arrow batch of the source's columns; read only when asked for."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._rows = (
            rows  # the client's messages, which a batch has otherwise, are made of them when asked for
        )

    def as_received(self) -> ArrowInputBatch:
        return ArrowInputBatch(self._rows)

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def __getitem__(self, index: int) -> InputRecord:
        place = range(len(self))[index]
        return next(iter(ArrowInputBatch(self._rows.slice(place, 1))))

    @cached_property
    def values(self) -> list[bytes | None]:
        return self._column("value")

    @cached_property
    def keys(self) -> list[bytes | None]:
        return self._column("key")

    @cached_property
    def topics(self) -> list[str]:
        return self._column("topic")

    @cached_property
    def partitions(self) -> list[int]:
        return self._column("partition")

    @cached_property
    def offsets(self) -> list[int]:
        return self._column("offset")

    @cached_property
    def timestamps_ms(self) -> list[int | None]:
        has_one = pc.not_equal(self._rows.column("timestampType"), _NO_TIMESTAMP)
        found: list[int | None] = pc.if_else(has_one, self._rows.column(_TIME_MS), None).to_pylist()
        return found

    @cached_property
    def _headers(self) -> list[Headers]:
        return headers_of(self._rows.column("headers")) or [()] * len(self)

    @cached_property
    def _messages(self) -> Sequence[ConsumedMessage]:  # type: ignore[override] # a cached property can be set
        columns = (self.topics, self.partitions, self.offsets, self.keys, self.values, self._headers)
        return list(map(GivenMessage, *columns, self.timestamps_ms))

    def _column(self, name: str) -> list[Any]:
        found: list[Any] = self._rows.column(name).to_pylist()
        return found


# --- inside ----------------------------------------------------------------------------------------------


def _filter(job: Job, settings: Settings) -> PoisonFilter:
    return PoisonFilter(
        bind(job, settings),
        settings.poison.policy,
        shard=job.name,
        listener=_log_poison,
        max_in_a_row=settings.poison.max_in_a_row,
    )


def _log_poison(event: Event) -> None:
    # A task cannot tell the driver's listener: what it writes are records, and the dead letters among them.
    if isinstance(event, RecordDeadLettered):
        done = "skipped" if event.skipped else "dead-lettered"
        _log.warning("%s offset %d %s", event.partition, event.offset, done)


def _by_shard(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Runs of rows of one shard; a batch of the source itself is one run."""
    ends = pc.run_end_encode(batch.column(SHARD))
    bounds = [0, *ends.run_ends.to_pylist()]
    for (start, end), shard in zip(pairwise(bounds), ends.values.to_pylist(), strict=True):
        yield shard, batch.slice(start, end - start)


def _arrow(outputs: Iterable[OutputBatch], shard: int) -> Iterator[pa.RecordBatch]:
    for output in filter(len, outputs):
        none = [None] * len(output)
        columns: list[Sequence[Any]] = [
            [shard] * len(output),
            [output.topic] * len(output),
            output.keys or none,
            output.values,
            output.partitions or none,
            none if output.headers is None else [_structs(of_record) for of_record in output.headers],
            output.timestamps_ms or none,
        ]
        arrays = [_array(column, field.type) for column, field in zip(columns, _OUTPUT, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=_OUTPUT)


def _array(column: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if kind == pa.binary():  # the loop takes text as well, and Kafka gets its UTF-8 bytes
        column = [item.encode() if isinstance(item, str) else item for item in column]
    return pa.array(column, type=kind)


def _structs(headers: Iterable[tuple[str, bytes | None]]) -> list[dict[str, Any]] | None:
    return [
        {"key": name, "value": value.encode() if isinstance(value, str) else value} for name, value in headers
    ] or None
