"""Where a verification begins: what cannot be is refused, so that nothing is left out of it in silence."""

from __future__ import annotations

import pytest

from eos.errors import UsageError
from eos.kafka.group_offsets import Committed
from eos.offsets import Partition
from eos.ops.verifier.logs import Range
from eos.ops.verifier.state import TopicsState, input_ranges, output_ranges

SOURCE, OUT = Partition("in", 0), Partition("out", 0)


def state(committed: int) -> TopicsState:
    return TopicsState(
        {SOURCE: Committed(committed, "")}, {SOURCE: Range(0, 1000)}, {SOURCE: 1000}, {OUT: Range(0, 500)}
    )


def test_a_group_cannot_have_begun_behind_its_committed_offset() -> None:
    assert input_ranges(state(500).inputs, state(500).offsets, {SOURCE: 500}) == {SOURCE: Range(500, 500)}
    with pytest.raises(UsageError, match="its committed offset is 500"):
        input_ranges(state(500).inputs, state(500).offsets, {SOURCE: 1000})


def test_the_output_before_the_group_cannot_end_behind_its_end() -> None:
    assert output_ranges(state(500), {OUT: 500}) == {OUT: Range(500, 500)}
    with pytest.raises(UsageError, match="ends at 500"):
        output_ranges(state(500), {OUT: 501})


def test_what_is_processed_ends_at_the_committed_offset_and_the_output_at_its_settled_end() -> None:
    assert input_ranges(state(500).inputs, state(500).offsets, {}) == {SOURCE: Range(0, 500)}
    assert output_ranges(state(500), {}) == {OUT: Range(0, 500)}


def test_a_beginning_of_what_the_job_does_not_read_or_write_is_refused() -> None:
    """Taken for a typing error, and not for nothing: the range would begin at 0."""
    with pytest.raises(UsageError, match="input_from names"):
        input_ranges(state(500).inputs, state(500).offsets, {OUT: 1})
    with pytest.raises(UsageError, match="output_from names"):
        output_ranges(state(500), {SOURCE: 1})
