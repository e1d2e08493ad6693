"""Pace: when a loop's transaction ends, and how much is fetched for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eos.runner.pace import FIRST_FETCH_RECORDS, IDLE_WAIT_S, MAX_AHEAD_RECORDS, Pace
from eos.settings.tables import TransactionSettings

INTERVAL_S, TIMEOUT_S, COMMIT_S = 0.1, 60.0, 0.005
NOW = 1000.0


def pace(most_records: int = 1000, **limits: int) -> Pace:
    return Pace(TransactionSettings(interval_ms=100, timeout_ms=60_000, **limits), most_records)


def filled(one: Pace, records: int = 10, *, value_bytes: int = 0, seconds: float = 0.001) -> Pace:
    """Records came at NOW, and were transformed in this time."""
    one.fetched(records, asked=records + 1)
    one.taken_up(NOW)
    one.transformed(records, value_bytes, seconds, NOW + seconds)
    return one


def test_transaction_ends_so_early_that_its_commit_is_in_the_interval() -> None:
    one = filled(pace())
    assert not one.due(NOW + 0.09, COMMIT_S)
    assert one.due(NOW + INTERVAL_S - COMMIT_S, COMMIT_S)


def test_slow_commit_does_not_make_the_transactions_small() -> None:
    one = filled(pace())
    assert not one.due(NOW + 0.08, commit_s=5.0)
    assert one.due(NOW + 0.9 * INTERVAL_S, commit_s=5.0)


def test_nothing_is_due_without_a_record() -> None:
    one = pace()
    assert not one.gathering
    assert one.gathered_s(NOW) == 0
    assert one.wait_s(NOW, COMMIT_S) is None


@pytest.mark.parametrize("limit", [{"max_records": 10}, {"max_bytes": 1000}])
def test_transaction_ends_when_it_is_full(limit: dict[str, int]) -> None:
    assert filled(pace(**limit), 10, value_bytes=1000).due(NOW, COMMIT_S)
    assert not filled(pace(**limit), 9, value_bytes=999).due(NOW, COMMIT_S)


def test_interval_begins_anew_with_each_transaction() -> None:
    one = filled(pace())
    one.over()
    assert (one.records, one.gathering) == (0, False)
    one.taken_up(NOW + 5)
    assert not one.due(NOW + 5.05, COMMIT_S)


def test_first_record_counts_and_no_later_one() -> None:
    one = filled(pace())
    one.taken_up(NOW + 0.05)
    assert one.gathered_s(NOW + 0.05) == pytest.approx(0.05)


def test_loop_that_is_behind_makes_transactions_of_four_commits() -> None:
    one = pace()
    one.fetched(100, asked=100)
    assert one.behind
    assert one.fill_s(commit_s=0.05) == pytest.approx(0.2)
    assert one.fill_s(commit_s=0.001) == INTERVAL_S
    assert one.fill_s(commit_s=10) == pytest.approx(3 * INTERVAL_S)
    one.fetched(99, asked=100)
    assert not one.behind


def test_fetch_grows_with_a_quick_transform_up_to_what_is_set() -> None:
    one = pace(most_records=10)
    sizes = []
    for _ in range(4):
        sizes.append(one.fetch_records)
        one.transformed(one.fetch_records, 0, 0.0, NOW)
    assert sizes == [FIRST_FETCH_RECORDS, 8, 10, 10]


def test_fetch_shrinks_to_what_a_slow_transform_takes_in_an_interval() -> None:
    one = pace()
    one.transformed(100, 0, 1.0, NOW)
    assert one.fetch_records == 10
    one.transformed(1, 0, 30.0, NOW)
    assert one.fetch_records == 1


def test_after_a_transform_of_a_quarter_of_the_timeout_none_runs_with_a_transaction_open() -> None:
    one = pace()
    one.transformed(1, 0, TIMEOUT_S / 4 + 1, NOW)
    one.over()
    assert one.full(NOW + 159)
    assert not one.full(NOW + 161)


def test_fetch_asks_for_no_more_than_the_transaction_takes() -> None:
    one = pace(max_records=12)
    one.fetch_records = 10
    assert one.asks_for(ahead=False) == 10
    filled(one, 5)
    assert one.asks_for(ahead=False) == 7
    filled(one, 7)
    assert one.asks_for(ahead=False) == 1, "a full one has been ended before"


def test_no_more_than_so_much_is_transformed_ahead_of_a_commit() -> None:
    one = pace(most_records=100_000, max_records=100_000)
    one.fetch_records = 100_000
    assert one.asks_for(ahead=True) == MAX_AHEAD_RECORDS
    assert filled(one, MAX_AHEAD_RECORDS).far_ahead(NOW, COMMIT_S)


def test_input_is_taken_up_for_half_a_second_beside_a_late_commit() -> None:
    one = filled(pace())
    assert not one.far_ahead(NOW + 0.55, COMMIT_S)
    assert one.far_ahead(NOW + INTERVAL_S + 0.5, COMMIT_S)


@given(st.floats(0, 10), st.floats(0, 10))
def test_waits_are_never_longer_than_a_stop_may_take_to_be_noticed(later: float, commit_s: float) -> None:
    one = filled(pace())
    wait_s = one.wait_s(NOW + later, commit_s)
    assert wait_s is not None
    assert 0 <= wait_s <= IDLE_WAIT_S
    assert 0 < one.linger_s <= IDLE_WAIT_S


def test_first_record_is_not_kept_waiting_and_later_ones_collect_in_the_spare_time() -> None:
    one = pace()
    assert one.linger_s == pytest.approx(0.002)
    filled(one, seconds=0.01)
    one.over()
    one.taken_up(NOW)
    assert one.linger_s == pytest.approx(INTERVAL_S - 2 * 0.01)


def test_transform_that_takes_longer_than_its_interval_lets_what_is_open_be_committed_beside_it() -> None:
    one = filled(pace())
    assert one.late_at(NOW + 0.09, COMMIT_S) == pytest.approx(NOW + 0.19)
    assert one.late_at(NOW + 100, COMMIT_S) == NOW + TIMEOUT_S / 2
