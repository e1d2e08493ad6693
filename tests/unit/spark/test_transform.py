"""A batch of Arrow rows behaves as the one of the loop: a batch function gets all records, in columns of its own."""

from __future__ import annotations

import pyarrow as pa

from eos.events import ignore_event
from eos.job import Job
from eos.poison import PoisonFilter
from eos.records import InputBatch, InputRecord, OutputBatch, OutputRecord
from eos.spark.transform import ArrowInputBatch

VALUES = [b"v0", None, b"v2"]


def rows() -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "topic": ["in"] * 3,
            "partition": pa.array([0, 0, 1], pa.int32()),
            "offset": [7, 8, 3],
            "key": [b"k0", b"k1", None],
            "value": VALUES,
            "headers": pa.array(
                [None, [], [("n", b"1"), ("n", None)]],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
            "timestampType": pa.array([-1, -1, 0], pa.int32()),
            "timestamp_ms": [1, 2, 3],
        }
    )


def test_a_batch_function_gets_every_record() -> None:
    """Its outputs are committed with the offsets of all of them: what it is not given is lost."""
    job = Job(
        name="j",
        inputs=["in"],
        outputs=["out"],
        transform_batch=lambda b: [OutputBatch("out", b.values, b.keys)],
    )
    outputs = PoisonFilter(job.bound(), "stop", shard="s", listener=ignore_event).apply(
        ArrowInputBatch(rows())
    )
    assert [record.value for batch in outputs for record in batch] == VALUES


def test_a_function_of_one_record_gets_every_record() -> None:
    given = list(ArrowInputBatch(rows()))
    assert given == [
        InputRecord("in", 0, 7, b"k0", b"v0", (), None),
        InputRecord("in", 0, 8, b"k1", None, (), None),
        InputRecord("in", 1, 3, None, b"v2", (("n", b"1"), ("n", None)), 3),
    ]
    job = Job(name="j", inputs=["in"], outputs=["out"], transform=lambda r: [OutputRecord("out", r.value)])
    outputs = PoisonFilter(job.bound(), "stop", shard="s", listener=ignore_event).apply(
        ArrowInputBatch(rows())
    )
    assert [record.value for batch in outputs for record in batch] == VALUES
    assert ArrowInputBatch(rows())[2] == given[2]


def test_columns_that_a_batch_function_changes_are_its_own() -> None:
    batch = ArrowInputBatch(rows())
    changed: InputBatch = batch.as_received()
    changed.values[0] = b"changed"
    assert batch.values == VALUES
    assert list(batch) == list(ArrowInputBatch(rows()))
