"""A record that its group never waits for is named; what may get on by itself is left alone."""

from __future__ import annotations

import pytest

from eos.errors import ConfigError
from eos.records import InputBatch, InputRecord
from eos.runner.slow_records import SlowRecords
from tests.support.settings import owning, settings_of

LIMIT_S = 20.0


def slow_records(mode: str = "group") -> SlowRecords:
    return SlowRecords(
        settings_of(
            "nowhere:1",
            transaction__timeout_ms=5_000,
            ownership__max_poll_interval_ms=int(LIMIT_S * 1000),
            **owning(mode, "in"),
        )
    )


def alone(offset: int, partition: int = 0) -> InputBatch:
    return InputBatch.of([InputRecord("in", partition, offset, None, b"v")])


def test_record_that_is_too_slow_alone_for_the_second_time_is_named_whatever_came_between() -> None:
    slow = slow_records()
    slow.took(alone(7), LIMIT_S + 1)
    slow.took(alone(3, partition=1), LIMIT_S + 1)
    slow.took(alone(4, partition=1), 0.1)
    with pytest.raises(
        ConfigError, match=r"in\[0\] offset 7: .* took 21\.0 s .*max_poll_interval_ms is 20000.*42000"
    ):
        slow.took(alone(7), LIMIT_S + 1)


def test_slow_records_that_get_on_or_were_not_alone_end_nothing() -> None:
    slow = slow_records()
    for offset in range(5):
        slow.took(alone(offset), LIMIT_S + 1)  # each was committed, or another one would not come
    together = InputBatch.of([InputRecord("in", 0, 9 + n, None, b"v") for n in range(2)])
    for _ in range(3):
        slow.took(together, LIMIT_S + 1)
    for _ in range(3):
        slow.took(alone(20), LIMIT_S - 1)


def test_no_group_waits_where_partitions_are_assigned() -> None:
    slow = slow_records("partition")
    for _ in range(3):
        slow.took(alone(7), LIMIT_S + 1)
