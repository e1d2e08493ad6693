"""A job for records_transform with everything that a record may be. Spark's workers get this module by value."""

from __future__ import annotations

import sys

from pyspark import cloudpickle

from eos.job import Job
from eos.records import InputBatch, InputRecord, OutputBatch, OutputRecord

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call] # PySpark's copy

POISON = b"poison"


def written(record: InputRecord, copies: str, audit: str) -> list[OutputRecord]:
    """Two records of each; every third goes to a partition of its own and keeps its timestamp."""
    if record.value == POISON:
        raise ValueError("this record cannot be processed")
    headers = (*record.headers, ("from", b"%d-%d" % (record.partition, record.offset)), ("none", None))
    if record.offset % 3 == 0:
        return [
            OutputRecord(copies, record.value, record.key, headers, record.timestamp_ms, record.partition)
        ]
    return [
        OutputRecord(copies, record.value, record.key, headers),
        OutputRecord(audit, None, record.key, headers),
    ]


def per_record(source: str, copies: str, audit: str, dead: str) -> Job:
    """A job with a function of one record."""

    def transform(record: InputRecord) -> list[OutputRecord]:
        return written(record, copies, audit)

    return Job(
        name="records", inputs=[source], outputs=[copies, audit], dead_letters=dead, transform=transform
    )


def per_batch(source: str, copies: str, audit: str, dead: str) -> Job:
    """The same job with a function of a batch."""

    def transform(batch: InputBatch) -> list[OutputBatch]:
        made = [one for record in batch for one in written(record, copies, audit)]
        return [_columns(topic, [one for one in made if one.topic == topic]) for topic in (copies, audit)]

    return Job(
        name="records", inputs=[source], outputs=[copies, audit], dead_letters=dead, transform_batch=transform
    )


def _columns(topic: str, records: list[OutputRecord]) -> OutputBatch:
    return OutputBatch(
        topic,
        [one.value for one in records],
        [one.key for one in records],
        [one.headers for one in records],
        [one.timestamp_ms for one in records],
        [one.partition for one in records],
    )
