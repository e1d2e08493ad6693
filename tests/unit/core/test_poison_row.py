"""PoisonRow: the count of poison records in a row, as the next owner finds it; the broker's part is in tests/faults/test_poison_rows.py."""

from __future__ import annotations

from dataclasses import replace

from eos.core.poison_row import PoisonRow
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.kafka.group_offsets import Committed
from eos.offsets import Partition

P, Q = Partition("in", 0), Partition("in", 1)
METADATA = OffsetMetadata(OwnershipMode.GROUP, "#0", app="job")


def stored(in_a_row: int) -> Committed:
    return Committed(40, str(replace(METADATA, in_a_row=in_a_row, attempt=2)))


def test_next_owner_goes_on_with_the_longest_row_that_is_stored() -> None:
    row = PoisonRow()
    row.taken_over({P: stored(3), Q: stored(7)})
    assert row.at_commit == 7
    row.taken_over({P: None, Q: Committed(1, "of another tool")})
    assert row.at_commit == 7


def test_row_that_is_over_is_taken_back_where_it_is_still_stored() -> None:
    """Else one more poison record behind the next start would be counted as one more of an old row."""
    row = PoisonRow()
    row.taken_over({P: stored(5)})
    assert not row.committed({Q: stored(6)})
    assert row.at_commit == 6
    assert set(row.committed({Q: stored(0)})) == {P}
    assert row.at_commit == 0
    assert not row.committed({P: stored(0)})


def test_row_that_is_over_goes_with_no_partition_that_is_given_up() -> None:
    """Its next owner would go on with it, and end the job at its first poison records."""
    row = PoisonRow()
    row.taken_over({P: stored(5), Q: stored(6)})
    assert not row.withdraw([P])
    row.committed({Q: stored(0)})
    assert set(row.withdraw([P, Q])) == {P}


def test_partitions_that_are_gone_are_not_committed_again() -> None:
    row = PoisonRow()
    row.taken_over({P: stored(5), Q: stored(5)})
    row.forget([P])
    assert set(row.committed({Q: stored(0)})) == set()
