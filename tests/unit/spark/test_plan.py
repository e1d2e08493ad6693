"""A transaction that expired says which limit would have fitted."""

from __future__ import annotations

import pytest

from eos.spark.batch.range_record import limit_that_fits


@pytest.mark.parametrize(
    ("lengths", "written", "seconds", "limit"),
    [
        pytest.param([1000], None, 120.0, 250, id="all-written-in-twice-the-time"),
        pytest.param([1000], None, 60.1, 499, id="all-written-just-too-late"),
        pytest.param([1000], 100, 60.0, 50, id="cut-short-after-a-tenth"),
        pytest.param([1000], 100, 120.0, 25, id="cut-short-after-a-tenth-and-noticed-late"),
        pytest.param([1000], 5000, 60.0, 500, id="cut-short-with-several-records-per-offset"),
        pytest.param([1000] * 10, 1000, 60.0, 50, id="cut-short-after-a-tenth-of-ten-partitions"),
        pytest.param([1000], 0, 90.0, 1, id="nothing-written"),
        pytest.param([1], None, 300.0, 1, id="one-slow-record"),
        pytest.param([1000], None, 30.0, 500, id="expired-on-the-brokers-clock-only"),
    ],
)
def test_limit_that_fits_leaves_half_of_the_transactions_time(
    lengths: list[int], written: int | None, seconds: float, limit: int
) -> None:
    assert limit_that_fits(lengths, written=written, seconds=seconds, timeout_s=60.0) == limit


def test_limit_after_a_third_of_the_rows_leaves_half_of_the_time() -> None:
    """Reckoned from the whole range it was 41, which is more than all of the time."""
    rows_per_s = 35 / 2.4
    limit = limit_that_fits([100], written=35, seconds=2.4, timeout_s=2.0)
    assert limit / rows_per_s < 2.0 / 2
