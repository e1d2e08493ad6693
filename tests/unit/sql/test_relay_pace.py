"""How many rows a transaction of a relay takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eos.sql.relay_pace import RelayPace


def test_pages_grow_to_the_most_and_no_further() -> None:
    pace = RelayPace(1_000, 1_000_000)
    taken = []
    for _ in range(6):
        taken.append(pace.rows)
        assert pace.behind(0, 0) == pace.rows
        pace.relayed(pace.rows, pace.rows * 10)
    assert taken == [100, 400, 1_000, 1_000, 1_000, 1_000]


def test_large_rows_make_a_page_small_at_once_and_small_ones_let_it_grow() -> None:
    pace = RelayPace(1_000, 1_000_000)
    pace.relayed(100, 100 * 500_000)
    assert pace.rows == 2
    pace.relayed(2, 20)
    assert pace.rows == 8


def test_a_refused_row_is_alone_after_a_few_halves() -> None:
    pace, halves = RelayPace(1_000, 1_000_000), 0
    while pace.rows > 1:
        pace.refused(pace.rows)
        halves += 1
    assert halves == 6
    pace.refused(1)
    assert pace.rows == 1


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2_000), st.integers(0, 10**9))))
def test_there_is_always_a_row_and_never_more_than_the_most(turns: list[tuple[bool, int, int]]) -> None:
    pace = RelayPace(1_000, 1_000_000)
    for refused, rows, size in turns:
        if refused:
            pace.refused(rows)
        else:
            pace.relayed(rows, size)
        assert 1 <= pace.rows <= 1_000
