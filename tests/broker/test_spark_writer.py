"""A task of a batch that comes after its twin finds the shard done, under its own fence, and writes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from eos.offsets import OffsetVector, Partition
from tests.support.observer import committed_offsets, load, read_committed, unique
from tests.support.settings import settings_of

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa

from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.spark.batch.range_record import RangeRecord
from eos.spark.plan import InputPlan, OffsetRange
from eos.spark.write.commit_record import commit_offsets
from eos.spark.write.output import OutputColumns
from eos.spark.write.writer import ShardState, ShardWriter

if TYPE_CHECKING:
    from tests.conftest import NewTopic

pytestmark = pytest.mark.broker


def rows() -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_arrays([pa.array([b"1", b"2"], pa.binary())], names=["value"])


def test_task_that_comes_after_its_twin_writes_nothing(bootstrap: str, topic: NewTopic) -> None:
    source, out, app = topic("in"), topic("out"), unique("app")
    load(bootstrap, source, 2)
    settings, partition = settings_of(bootstrap), Partition(source, 0)
    plan = InputPlan(app, (partition,), (OffsetRange(partition, 0, 2),), app, "partition")
    done = RangeRecord(settings, plan, "run")
    commit_offsets(
        settings,
        done.in_task(0, 0).shard,
        app,
        [partition],
        lambda _: OffsetVector({partition: 0}),
        metadata=OffsetMetadata(OwnershipMode.PARTITION, source),
        started={source: 1},
    )
    states = [
        ShardWriter(settings, done.in_task(0, 0), OutputColumns((out,), ("value",))).write(rows()).state
        for _ in range(2)
    ]
    assert states == [ShardState.COMMITTED, ShardState.SKIPPED]
    assert [record.value for record in read_committed(bootstrap, out)] == [b"1", b"2"]
    assert committed_offsets(bootstrap, app, [(source, 0)])[source, 0][0] == 2
