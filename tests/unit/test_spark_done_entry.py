"""A shard's rows in a stream are counted as they pass, also those of a shard that is written already."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa

from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition
from eos.spark.done import ShardDone
from eos.spark.done_entry import DoneEntries
from eos.spark.ledger import BatchPlan, LedgerChangedError
from eos.spark.ledger_entry import Content, EntryMetadata, LedgerEntry, Tally
from eos.spark.ledger_store import LedgerStore
from eos.spark.stream_rows import DIGEST, HASH
from tests.support.settings import settings_of

PARTITION, ENTRY = Partition("out", 0), LedgerEntry(7, "q", 3)
INPUT = Partition("in", 0)


def rows(*hashes: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {HASH: pa.array(hashes, pa.int64()), DIGEST: pa.array([one + 1 for one in hashes], pa.int64())}
    )


def some() -> Iterator[pa.RecordBatch]:
    return iter([rows(10, 20), rows(30)])


def shard(number: int = 1, **plan: object) -> ShardDone:
    store = LedgerStore(settings_of(), "app", "app", "out", ("in",))
    given = {"entries": {number: ENTRY}} | plan
    return DoneEntries(store, BatchPlan("q", 7, 3, **given), OffsetVector({INPUT: 5})).in_task(number, 0)  # type: ignore[arg-type] # as given


def stored(entry: LedgerEntry, content: Content | None = None) -> dict[Partition, Committed]:
    metadata = EntryMetadata.of(entry, "out#1", Tally(content) if content else None)
    return {PARTITION: Committed(entry.next_batch, str(metadata))}


def test_rows_pass_unchanged_and_what_they_came_to_is_in_the_metadata() -> None:
    done = shard()
    assert [part.num_rows for part in done.counted(some())] == [2, 1]
    entry = LedgerEntry.parse(8, str(done.metadata))
    assert entry is not None
    assert entry.content == Content(3, 63)
    assert done.contents() == (str(Content(3, 63)), str(Content(3, 63)))


@pytest.mark.parametrize(
    ("written", "computed"),
    [(Content(9, 9), Content(3, 63)), (Content(9, 9, of_keys=True), Content(3, 60))],
    ids=["now", "earlier version"],
)
def test_content_is_of_whole_rows_or_as_earlier_versions_counted_it(
    written: Content, computed: Content
) -> None:
    """An entry of an earlier version is compared with what that version would have computed."""
    done = shard(entries={}, done={1: written})
    assert done.was_done()
    list(done.counted(some()))
    assert done.contents() == (str(computed), str(written))


def test_entry_that_a_twin_has_written_is_what_the_rows_are_compared_with() -> None:
    done = shard(entries={1: LedgerEntry.parse(7, str(EntryMetadata.of(ENTRY, "out#1", None)))})
    assert done.is_done(stored(LedgerEntry(8, "q", 3), Content(4, 4)))
    list(done.counted(some()))
    assert done.contents() == (str(Content(3, 63)), str(Content(4, 4)))


def test_entry_of_another_driver_is_a_conflict() -> None:
    with pytest.raises(LedgerChangedError, match="stop one of them"):
        shard().is_done(stored(LedgerEntry(9, "q", 3)))


def test_only_the_first_shard_has_marks() -> None:
    first, other = shard(0), shard(1)
    assert set(first.partitions) == {PARTITION, INPUT}
    assert set(other.partitions) == {PARTITION}
    assert first.to_commit() == OffsetVector({PARTITION: 8, INPUT: 5})
    assert other.to_commit() == OffsetVector({PARTITION: 8})
    assert "marks=1" in str(first.metadata)
    assert "marks" not in str(other.metadata)
