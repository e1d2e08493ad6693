"""Where a relay stands: written and read back; and, in a model of PostgreSQL's snapshots, that no row is skipped or repeated."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eos.sql import outbox_position
from eos.sql.outbox_position import MAX_OPEN, OutboxPosition
from eos.sql.snapshot import Snapshot

CASES = settings(max_examples=300, deadline=None)

xids = st.integers(0, 2**64 - 1)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    xmin = draw(st.integers(3, 2**63))
    opened = sorted(draw(st.sets(st.integers(xmin, xmin + 5_000), max_size=40)))
    return Snapshot(
        xmin, draw(st.integers((opened[-1] + 1) if opened else xmin, xmin + 6_000)), tuple(opened)
    )


@given(snapshots())
@CASES
def test_a_snapshot_is_read_back_as_written_here_and_by_postgresql(snapshot: Snapshot) -> None:
    assert Snapshot.parse(str(snapshot)) == snapshot
    shown = f"{snapshot.xmin}:{snapshot.xmax}:{','.join(map(str, snapshot.open))}"
    assert Snapshot.of_postgresql(shown) == snapshot


@given(snapshots(), st.none() | snapshots(), st.integers(0, 10**12))
@CASES
def test_a_position_is_read_back_as_written(seen: Snapshot, until: Snapshot | None, last: int) -> None:
    position = OutboxPosition("7.5.16384", seen, until, last if until else 0)
    assert OutboxPosition.parse(str(position)) == position
    of_sqlite = OutboxPosition("sqlite", last=last)
    assert OutboxPosition.parse(str(of_sqlite)) == of_sqlite


@given(st.text(max_size=40) | st.from_regex(r"db=x seen=[0-9a-f:,]{1,20}", fullmatch=True))
@CASES
def test_any_other_text_is_no_position_and_no_error(text: str) -> None:
    position = OutboxPosition.parse(text)
    assert position is None or OutboxPosition.parse(str(position)) == position


@pytest.mark.parametrize("numbers", [(5, 4, ()), (5, 9, (4,)), (5, 9, (9,)), (5, 9, (7, 6)), (-1, 4, ())])
def test_what_is_no_snapshot_is_refused(numbers: tuple[int, int, tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="no snapshot"):
        Snapshot(*numbers)


def test_a_position_stays_short_enough_for_an_offset_s_metadata() -> None:
    """A busy database: 20,000 transactions begin while the oldest one is open, and many more are open than are kept."""
    opened = tuple(range(2**40, 2**40 + 20_000, 20))
    now = Snapshot(2**40, 2**40 + 20_000, opened)
    position = OutboxPosition("7".ljust(20, "1") + ".16384.16385", now.at_most(MAX_OPEN)).begun(now)
    assert position.until is not None
    assert len(position.until.open) == MAX_OPEN
    assert len(str(position)) < 3_000


# --- a model of PostgreSQL ------------------------------------------------------------------------------------


@dataclass
class Database:
    """Transactions with numbers, rows with ids, snapshots; rows are visible once their transaction has committed."""

    next_xid: int = 100
    running: set[int] = field(default_factory=set)
    committed: set[int] = field(default_factory=set)
    rows: list[tuple[int, int]] = field(default_factory=list)  # (id, xid)
    before: dict[int, frozenset[int]] = field(
        default_factory=dict
    )  # row -> what had committed when it was inserted
    ids: count[int] = field(default_factory=lambda: count(1))

    def begin(self) -> int:
        self.next_xid += 1
        self.running.add(self.next_xid - 1)
        return self.next_xid - 1

    def insert(self, xid: int) -> None:
        row = next(self.ids)
        self.rows.append((row, xid))
        self.before[row] = frozenset(self.committed)

    def end(self, xid: int, *, commit: bool) -> None:
        self.running.remove(xid)
        if commit:
            self.committed.add(xid)

    def play(self, step: str, which: int) -> None:
        running = sorted(self.running)
        if step == "begin":
            self.begin()
        elif which < len(running) and step == "insert":
            self.insert(running[which])
        elif which < len(running):
            self.end(running[which], commit=step == "commit")

    def snapshot(self) -> Snapshot:
        return Snapshot(min(self.running, default=self.next_xid), self.next_xid, tuple(sorted(self.running)))

    def read(self, after: OutboxPosition, limit: int) -> tuple[list[tuple[int, int]], OutboxPosition]:
        """As `eos.sql.outbox_read.read`: the conditions of its statement."""
        begun = after.begun(self.snapshot())
        until = begun.until
        assert until is not None
        rows = [
            (row, xid)
            for row, xid in sorted(self.rows)
            if xid in self.committed
            and (xid >= begun.seen.xmax or xid in begun.seen.open)
            and xid < until.xmax
            and xid not in until.open
            and row > begun.last
        ][:limit]
        return rows, begun.after(rows[-1][0] if rows else None, all_read=len(rows) < limit)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.just(0)),
        st.tuples(st.just("insert"), st.integers(0, 5)),
        st.tuples(st.just("commit"), st.integers(0, 5)),
        st.tuples(st.just("rollback"), st.integers(0, 5)),
        st.tuples(st.just("read"), st.integers(1, 3)),
        st.tuples(st.just("crash"), st.integers(1, 3)),
    ),
    max_size=60,
)


def relayed_of(database: Database, drawn: list[tuple[str, int]]) -> list[tuple[int, int]]:
    """What a relay relays while these steps are played, and then to the end, in its order.

    A crash is a read whose transaction of Kafka was aborted: the position stays the one before.
    """
    position = OutboxPosition("db")
    order: list[tuple[int, int]] = []

    def read(limit: int) -> None:
        nonlocal position
        rows, moved = database.read(position, limit)
        assert not any(position.relayed(xid, row) for row, xid in rows)
        assert all(moved.relayed(xid, row) for row, xid in rows)
        order.extend(rows)
        parsed = OutboxPosition.parse(str(moved))
        assert parsed == moved
        position = moved

    for step, argument in drawn:
        if step == "read":
            read(argument)
        elif step == "crash":
            database.read(position, argument)
        else:
            database.play(step, argument)
    for xid in list(database.running):
        database.end(xid, commit=True)
    for _ in range(3 + len(database.rows)):  # rounds under way, and then the last one
        read(2)
    return order


def committed_of(database: Database) -> list[int]:
    return [row for row, xid in database.rows if xid in database.committed]


@given(steps)
@CASES
def test_every_committed_row_is_relayed_once_and_none_before_what_it_depends_on(
    drawn: list[tuple[str, int]],
) -> None:
    database = Database()
    order = relayed_of(database, drawn)
    assert sorted(row for row, _ in order) == committed_of(database)
    for at, (row, _) in enumerate(order):
        later = {xid for _, xid in order[at + 1 :]}
        assert not database.before[row] & later, (
            f"row {row} came before what had committed when it was inserted"
        )


@given(steps, st.integers(0, 2))
@CASES
def test_more_open_transactions_than_a_position_names_cost_the_order_and_no_row(
    drawn: list[tuple[str, int]], named: int
) -> None:
    database = Database()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outbox_position, "MAX_OPEN", named)
        order = relayed_of(database, drawn)
    assert sorted(row for row, _ in order) == committed_of(database)


def test_the_order_by_the_transaction_s_number_turns_cause_and_effect_around() -> None:
    """Why a position is no number: T1 has its number early, and waits for a row that T2 holds."""
    database = Database()
    first, second = database.begin(), database.begin()
    database.insert(second)  # T2 has changed the account
    database.end(second, commit=True)
    database.insert(first)  # T1 changes it then
    database.end(first, commit=True)

    by_number = [row for row, _ in sorted(database.rows, key=lambda entry: (entry[1], entry[0]))]
    rows, _ = database.read(OutboxPosition("db"), 10)
    assert by_number == [2, 1]
    assert [row for row, _ in rows] == [1, 2]


def test_a_long_transaction_holds_back_no_other() -> None:
    database = Database()
    long, short = database.begin(), database.begin()
    database.insert(long)
    database.insert(short)
    database.end(short, commit=True)
    rows, position = database.read(OutboxPosition("db"), 10)
    assert [row for row, _ in rows] == [2]
    database.end(long, commit=True)
    rows, position = database.read(position, 10)
    assert [row for row, _ in rows] == [1]
    assert database.read(position, 10)[0] == []


def test_the_end_of_a_run_is_covered_once_all_that_had_ended_then_is_relayed() -> None:
    end = OutboxPosition("1.2.3", Snapshot(95, 100, (95,)))
    for seen, covered in (
        (Snapshot(95, 100, (95,)), True),
        (Snapshot(95, 120, (95, 110)), True),
        (Snapshot(96, 100, (96,)), False),  # what was open in an earlier round has committed since
        (Snapshot(99, 99), False),
    ):
        assert OutboxPosition("1.2.3", seen).covers(end) is covered
    assert not OutboxPosition("1.2.3", Snapshot(0, 90), Snapshot(120, 120), 7).covers(end)
    assert OutboxPosition("sqlite.t", last=7).covers(OutboxPosition("sqlite.t", last=7))
    assert not OutboxPosition("sqlite.t", last=6).covers(OutboxPosition("sqlite.t", last=7))
