"""The rows of a sink's shard: what ends without its end marks is not the whole of it."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

import pyarrow as pa

from eos.errors import RetriableError, UsageError
from eos.spark.ledger import Content
from eos.spark.sink_task import DIGEST, HASH, SHARD, _Rows


def rows(shard: int, *hashes: int | None) -> pa.RecordBatch:
    """One row per hash; None is an end mark."""
    return pa.RecordBatch.from_pydict(
        {
            SHARD: pa.array([shard] * len(hashes), pa.int32()),
            HASH: pa.array(hashes, pa.int64()),
            DIGEST: pa.array([None if one is None else one + 1 for one in hashes], pa.int64()),
        }
    )


def test_shard_is_whole_behind_both_marks() -> None:
    shard = _Rows(rows(3, 10, 20), iter([rows(3, 30, None), rows(3, None)]))
    assert shard.shard == 3
    assert [batch.num_rows for batch in shard] == [2, 1]
    assert shard.tally.content.rows == 3


def test_empty_shard_is_its_marks() -> None:
    assert not list(_Rows(rows(0, None, None), iter([])))


def test_content_is_of_whole_rows_or_as_earlier_versions_counted_it() -> None:
    """An entry of an earlier version is compared with what that version would have computed."""

    def shard() -> _Rows:
        return _Rows(rows(3, 10, 20, None, None), iter([]))

    assert shard().drain(Content()) == Content(2, 10 + 1 + 20 + 1)
    assert shard().drain(Content(9, 9, of_keys=True)) == Content(2, 10 + 20, of_keys=True)


@pytest.mark.parametrize("last", [(30,), (30, None)])
def test_input_that_ends_early_is_not_taken_for_the_whole(last: tuple[int | None, ...]) -> None:
    """A killed task's input ends in order, after one more row at most: so one mark proves nothing."""
    with pytest.raises(RetriableError, match="shard 3 ended before its end marks"):
        list(_Rows(rows(3, 10, 20), iter([rows(3, *last)])))


def test_rows_of_another_shard_are_refused() -> None:
    with pytest.raises(UsageError, match="shard 4 beside those of 3"):
        list(_Rows(rows(3, 10), iter([rows(4, 20, None, None)])))
