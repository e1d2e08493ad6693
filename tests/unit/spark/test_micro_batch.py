"""A shard's rows in a stream are counted as they pass, also those of a shard that is written already."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa

from eos.errors import TransactionExpiredError
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition
from eos.spark.stream.commit_log import CommitLog
from eos.spark.stream.division import DIGEST
from eos.spark.stream.log_entry import Checksum, EntryMetadata, LogEntry, RunningChecksum
from eos.spark.stream.log_rules import BatchPlan, LedgerChangedError
from eos.spark.stream.micro_batch import EntryRecord
from eos.spark.write.commit_record import ShardRecord
from tests.support.settings import settings_of

PARTITION, ENTRY = Partition("out", 0), LogEntry(7, "q", 3)
INPUT = Partition("in", 0)


def rows(*hashes: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({DIGEST: pa.array(hashes, pa.int64())})


def some() -> Iterator[pa.RecordBatch]:
    return iter([rows(10, 20), rows(30)])


def shard(number: int = 1, **plan: object) -> ShardRecord:
    store = CommitLog(settings_of(), "app", "app", "out", ("in",))
    given = {"entries": {number: ENTRY}} | plan
    return EntryRecord(store, BatchPlan("q", 7, 3, **given), OffsetVector({INPUT: 5})).in_task(number, 0)  # type: ignore[arg-type] # as given


def stored(entry: LogEntry, content: Checksum | None = None) -> dict[Partition, Committed]:
    metadata = EntryMetadata.of(entry, "out#1", RunningChecksum(content) if content else None)
    return {PARTITION: Committed(entry.next_batch, str(metadata))}


def test_rows_pass_unchanged_and_what_they_came_to_is_in_the_metadata() -> None:
    done = shard()
    assert [part.num_rows for part in done.counted(some())] == [2, 1]
    entry = LogEntry.parse(8, str(done.metadata))
    assert entry is not None
    assert entry.checksum == Checksum(3, 60)
    assert done.contents() == (str(Checksum(3, 60)), str(Checksum(3, 60)))


def test_rows_of_a_shard_that_is_written_are_compared_with_what_is_written() -> None:
    done = shard(entries={}, done={1: Checksum(9, 9)})
    assert done.was_done()
    list(done.counted(some()))
    assert done.contents() == (str(Checksum(3, 60)), str(Checksum(9, 9)))


def test_entry_that_a_twin_has_written_is_what_the_rows_are_compared_with() -> None:
    done = shard(entries={1: LogEntry.parse(7, str(EntryMetadata.of(ENTRY, "out#1", None)))})
    assert done.is_done(stored(LogEntry(8, "q", 3), Checksum(4, 4)))
    list(done.counted(some()))
    assert done.contents() == (str(Checksum(3, 60)), str(Checksum(4, 4)))


def test_entry_of_another_driver_is_a_conflict() -> None:
    with pytest.raises(LedgerChangedError, match="stop one of them"):
        shard().is_done(stored(LogEntry(9, "q", 3)))


def test_mark_of_a_former_input_is_not_the_entry_that_says_that_a_shard_is_written() -> None:
    """Its offset may be the very number of the next batch."""
    mark = stored(LogEntry(8, "q", 3, on="another"))
    with pytest.raises(LedgerChangedError, match="says nothing now"):
        shard().is_done(mark)
    assert shard().is_done(stored(LogEntry(8, "q", 3, on="out")))


def test_transaction_that_expires_while_its_rows_are_computed_is_not_tried_again_in_the_same_way() -> None:
    store = CommitLog(settings_of(), "app", "app", "out")
    plan = BatchPlan("q", 7, 3, entries={1: ENTRY})
    in_place, behind = (EntryRecord(store, plan, OffsetVector(), computing=one) for one in (True, False))
    assert in_place.in_task(1, 0).for_good == (TransactionExpiredError,)
    assert behind.in_task(1, 0).for_good == ()


def test_only_the_first_shard_has_marks() -> None:
    first, other = shard(0), shard(1)
    assert set(first.partitions) == {PARTITION, INPUT}
    assert set(other.partitions) == {PARTITION}
    assert first.to_commit() == OffsetVector({PARTITION: 8, INPUT: 5})
    assert other.to_commit() == OffsetVector({PARTITION: 8})
    assert "marks=1" in str(first.metadata)
    assert "marks" not in str(other.metadata)
