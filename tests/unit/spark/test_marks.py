"""A streaming query goes on where its last batch ended by the ledger, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from eos.offsets import Partition
from eos.spark.stream.log_rules import LedgerError
from eos.spark.stream.marks import refuse_gap

P0, P1 = Partition("in", 0), Partition("in", 1)
CHECKPOINT: Any = "file:/checkpoint"  # only named


def look(*marks: int, expected: tuple[int, ...]) -> None:
    known = dict(zip((P0, P1), marks, strict=False))
    refuse_gap(CHECKPOINT, 4, known, dict(zip((P0, P1), expected, strict=False)), known)


def test_query_that_goes_on_where_its_last_batch_ended_is_let_through() -> None:
    look(100, 50, expected=(100, 50))


@pytest.mark.parametrize(("mark", "what"), [(99, "skipped"), (101, "repeated")])
def test_query_that_goes_on_elsewhere_is_refused_with_what_the_checkpoint_is_to_say(
    mark: int, what: str
) -> None:
    with pytest.raises(
        LedgerError, match=f"batch 4 was written up to in\\[1\\] offset {mark}.*be {what}"
    ) as refusal:
        look(100, mark, expected=(100, 100))
    assert (
        f'{CHECKPOINT}/offsets/4 right, whose last lines are to say {{"in": {{"0": 100, "1": {mark}}}}}'
        in str(refusal.value)
    )


def test_partition_that_is_new_to_the_query_has_no_mark_and_is_let_through() -> None:
    look(100, expected=(100, 0))
