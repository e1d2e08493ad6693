"""The positions of a sink: claimed, moved with the rows or not at all, and settled when a COMMIT was not answered."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import wait
from functools import partial
from threading import Event

import pytest
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError

from eos.base.deadline import Deadline
from eos.errors import ConfigError, FencedError, OffsetGapError, RebalancedError, UsageError
from eos.group.metadata import OPERATOR, OffsetMetadata, OwnershipMode
from eos.offsets import Partition
from eos.sql.classify import Kind, classify
from eos.sql.limits import Limits, limit
from eos.sql.position import Move, Outcome, Owner
from eos.sql.progress import begin_at, claim, move, positions, settle
from tests.support.cutting_proxy import CuttingProxy
from tests.support.databases import Database, backend_of, left_open
from tests.support.patience import PATIENCE_S

P0, P1 = Partition("in", 0), Partition("in", 1)
LIMITS = Limits(lock_s=5.0, transaction_s=10.0)
ME, OTHER = Owner("books", "g", "me"), Owner("books", "g", "other")


def to(start: int | None, end: int, metadata: str | None = None, epoch: int | None = 3) -> Move:
    return Move(start, end, epoch, "topic-id", metadata or f"moved to {end}")


@pytest.fixture
def books(database: Database) -> Database:
    """With eos's tables, one of the user's own, and positions of ME."""
    return prepared(database)


@pytest.fixture
def pg(postgres: Database) -> Database:
    return prepared(postgres)


def prepared(database: Database) -> Database:
    database.with_tables()
    database.run("CREATE TABLE refunds (id INTEGER PRIMARY KEY, note VARCHAR(5))")
    with database.judge.begin() as connection:
        assert begin_at(connection, ME, {P0: to(None, 5), P1: to(None, 5)}) == []
    return database


def state(database: Database) -> tuple[dict[int, tuple[int, str]], list[int]]:
    """(partition -> position and owner, the ids of the rows), through a second connection."""
    rows = database.seen("SELECT partition, next_offset, owner FROM eos_progress ORDER BY 1")
    return {p: (o, w) for p, o, w in rows}, [
        row[0] for row in database.seen("SELECT id FROM refunds ORDER BY 1")
    ]


def write(connection: Connection, number: int) -> None:
    connection.execute(text("INSERT INTO refunds (id) VALUES (:id)"), {"id": number})


def transact(engine: Engine, owner: Owner, moves: dict[Partition, Move], row: int) -> None:
    """As a session does it: the rows, then the positions."""
    with engine.begin() as connection:
        limit(connection, LIMITS)
        write(connection, row)
        move(connection, owner, moves)


def take(
    engine: Engine, owner: Owner, *partitions: Partition, limits: Limits = LIMITS
) -> dict[Partition, int | None]:
    with engine.begin() as connection:
        limit(connection, limits)
        found = claim(connection, owner, partitions)
    return {partition: position and position.next_offset for partition, position in found.items()}


def test_a_transaction_moves_its_positions_and_writes_its_rows(books: Database) -> None:
    engine = books.engine()
    transact(engine, ME, {P0: to(5, 8), P1: to(5, 6)}, 1)
    transact(engine, ME, {P0: to(8, 9)}, 2)
    assert state(books) == ({0: (9, "me"), 1: (6, "me")}, [1, 2])
    with engine.begin() as connection:
        position = positions(connection, "g")[P0]
    assert position[:4] == (9, 3, "topic-id", "moved to 9")


@pytest.mark.parametrize(
    "moves", [{P0: to(4, 9)}, {P0: to(5, 9), P1: to(6, 9)}, {P0: to(6, 9), P1: to(5, 9)}]
)
def test_a_start_that_is_not_the_position_writes_nothing(
    books: Database, moves: dict[Partition, Move]
) -> None:
    with pytest.raises((FencedError, OffsetGapError)):
        transact(books.engine(), ME, moves, 1)
    assert state(books) == ({0: (5, "me"), 1: (5, "me")}, [])


def test_a_zombie_is_fenced_and_none_of_its_rows_is_written(books: Database) -> None:
    assert take(books.engine(), OTHER, P0) == {P0: 5}
    with pytest.raises(FencedError, match=r"another owner has taken it over"):
        transact(books.engine(), ME, {P0: to(5, 8), P1: to(5, 8)}, 1)
    transact(books.engine(), OTHER, {P0: to(5, 7)}, 2)
    with pytest.raises(FencedError):
        transact(books.engine(), ME, {P0: to(5, 8)}, 3)
    assert state(books) == ({0: (7, "other"), 1: (5, "me")}, [2])


def test_a_position_that_another_member_of_the_group_has_is_a_rebalance(books: Database) -> None:
    mine, member = Owner("books", "g", "#0 me"), Owner("books", "g", "#1 other")
    take(books.engine(), mine, P0)
    take(books.engine(), member, P0)
    with pytest.raises(RebalancedError, match="another member of the group"):
        transact(books.engine(), mine, {P0: to(5, 8)}, 1)
    assert state(books) == ({0: (5, "#1 other"), 1: (5, "me")}, [])


def test_a_position_that_went_back_is_refused_and_not_processed_twice(books: Database) -> None:
    """As a restored dump has it, or a replica that lacks the last commit."""
    transact(books.engine(), ME, {P0: to(5, 8)}, 1)
    books.run("UPDATE eos_progress SET next_offset = 5 WHERE partition = 0", "DELETE FROM refunds")
    with pytest.raises(OffsetGapError, match=r"went back from 8 to 5"):
        transact(books.engine(), ME, {P0: to(8, 9)}, 2)
    books.run("DELETE FROM eos_progress")
    with pytest.raises(OffsetGapError, match="no row any more"):
        transact(books.engine(), ME, {P0: to(8, 9)}, 2)
    assert state(books) == ({}, [])


@pytest.mark.parametrize("mine", ["#0 me", "in[0] me"])
def test_a_position_that_an_operator_has_set_back_fences_its_owner_and_is_no_copy_of_a_database(
    books: Database, mine: str
) -> None:
    owner, operator = Owner("books", "g", mine), Owner("books", "g", "start operator")
    take(books.engine(), owner, P0)
    transact(books.engine(), owner, {P0: to(5, 8)}, 1)
    take(books.engine(), operator, P0)
    with pytest.raises(FencedError):  # also before it is set
        transact(books.engine(), owner, {P0: to(8, 9)}, 2)
    said = str(OffsetMetadata(OwnershipMode.GROUP, OPERATOR, app="books"))
    transact(books.engine(), operator, {P0: to(8, 6)._replace(metadata=said)}, 3)
    for _ in range(2):
        with pytest.raises(FencedError, match="shard=operator"):
            transact(books.engine(), owner, {P0: to(8, 9)}, 4)
        take(books.engine(), Owner("books", "g", "in[0] another"), P0)
    assert state(books)[0][0] == (6, "in[0] another")


def test_positions_of_another_job_are_claimed_where_they_are_adopted(books: Database) -> None:
    renamed = Owner("renamed", "g", "#0 renamed")
    with books.engine().begin() as connection, pytest.raises(ConfigError, match="belongs to job 'books'"):
        claim(connection, renamed, [P0])
    with books.engine().begin() as connection:
        adopted = claim(connection, renamed, [P0], adopt=True)[P0]
    assert adopted is not None
    assert (adopted.next_offset, adopted.app) == (5, "renamed")
    with books.engine().begin() as connection, pytest.raises(ConfigError, match="belongs to job 'renamed'"):
        claim(connection, ME, [P0])
    with pytest.raises(FencedError):
        transact(books.engine(), ME, {P0: to(5, 8)}, 1)


def test_a_new_partition_gets_its_row_with_its_first_records_once(books: Database) -> None:
    new = Partition("in", 2)
    engine = books.engine()
    assert take(engine, ME, P0, new) == {P0: 5, new: None}
    transact(engine, ME, {P0: to(5, 6), new: to(None, 4)}, 1)
    with pytest.raises(FencedError):
        transact(engine, OTHER, {new: to(None, 3)}, 2)
    assert state(books) == ({0: (6, "me"), 1: (5, "me"), 2: (4, "me")}, [1])


def test_of_two_that_begin_a_group_one_position_stays(books: Database) -> None:
    new = Partition("new", 0)
    with books.engine().begin() as connection:
        assert begin_at(connection, ME, {new: to(None, 0)}) == []
    with books.engine().begin() as connection:
        assert begin_at(connection, OTHER, {new: to(None, 100), P0: to(None, 100)}) == [P0, new]
    assert take(books.engine(), OTHER, new) == {new: 0}


def test_the_position_of_another_job_is_refused_and_stays_its_own(books: Database) -> None:
    foreign = Owner("another", "g", "foreign")
    with pytest.raises(ConfigError, match=r"belongs to job 'books'.*Fix: a group of its own"):
        take(books.engine(), foreign, P0)
    assert state(books)[0][0] == (5, "me")
    assert take(books.engine(), Owner("another", "its own", "x"), P0) == {P0: None}


def test_a_connection_that_commits_each_statement_is_refused(books: Database) -> None:
    engine = create_engine(books.judge.url, isolation_level="AUTOCOMMIT")
    try:
        with engine.begin() as connection, pytest.raises(UsageError, match="AUTOCOMMIT"):
            move(connection, ME, {P0: to(5, 8)})
        with engine.begin() as connection, pytest.raises(UsageError, match="AUTOCOMMIT"):
            claim(connection, ME, [P0])
    finally:
        engine.dispose()


def test_a_transaction_without_a_position_is_refused(books: Database) -> None:
    with pytest.raises(UsageError), books.engine().begin() as connection:
        move(connection, ME, {})


# --- owners at the same time: PostgreSQL ----------------------------------------------------------------------


def test_a_claim_waits_for_a_transaction_in_flight_and_begins_behind_it(pg: Database) -> None:
    claimant = pg.engine()
    with pg.engine().connect() as connection, connection.begin() as transaction:
        write(connection, 1)
        move(connection, ME, {P0: to(5, 8)})
        claimed = pg.beside(partial(take, claimant, OTHER, P0))
        pg.wait_until_blocked()
        transaction.commit()
    assert claimed.result(PATIENCE_S) == {P0: 8}
    assert state(pg) == ({0: (8, "other"), 1: (5, "me")}, [1])


def test_a_paused_owner_with_the_row_locked_is_ended_by_the_database_and_fenced_when_it_wakes_up(
    pg: Database,
) -> None:
    """Its connection is ended after the transaction's time, which is shorter than what its successor waits for."""
    with pg.engine().connect() as connection:
        transaction = connection.begin()
        limit(connection, Limits(lock_s=5.0, transaction_s=0.7))
        write(connection, 1)
        move(connection, ME, {P0: to(5, 8)})
        assert take(pg.engine(), OTHER, P0) == {P0: 5}
        with pytest.raises(DBAPIError) as caught:
            transaction.commit()
        assert classify(caught.value) is not None
        connection.invalidate()
    assert settle_outcome(pg, ME, {P0: to(5, 8)}) is FencedError
    assert state(pg) == ({0: (5, "other"), 1: (5, "me")}, [])


def test_a_paused_owner_without_a_lock_is_fenced_when_it_wakes_up(pg: Database) -> None:
    with pytest.raises(FencedError), pg.engine().begin() as connection:
        write(connection, 1)  # and here it stands still
        transact(pg.engine(), OTHER, {P0: to(take(pg.engine(), OTHER, P0)[P0], 7)}, 2)
        move(connection, ME, {P0: to(5, 8)})
    assert state(pg) == ({0: (7, "other"), 1: (5, "me")}, [2])


def test_a_takeover_that_waits_too_long_for_a_lock_says_so_and_changes_nothing(pg: Database) -> None:
    with pg.engine().connect() as connection, connection.begin() as transaction:
        move(connection, ME, {P0: to(5, 8)})
        with pytest.raises(DBAPIError) as caught:
            take(pg.engine(), OTHER, P0, limits=Limits(lock_s=0.3, transaction_s=10))
        transaction.rollback()
    verdict = classify(caught.value)
    assert verdict is not None
    assert (verdict.kind, verdict.code) == (Kind.DOWN, "55P03")
    assert state(pg)[0][0] == (5, "me")


def test_two_claimants_of_the_same_partitions_do_not_block_each_other_for_ever(pg: Database) -> None:
    """Each takes them in the same order; whoever came last has all of them."""
    many = [Partition("in", number) for number in range(20)]
    with pg.judge.begin() as connection:
        begin_at(connection, ME, {p: to(None, 5) for p in many if p not in (P0, P1)})
    owners = [Owner("books", "g", f"owner {number}") for number in range(6)]
    shuffled = [many[number:] + many[:number] for number in range(6)]
    claims = [
        pg.beside(partial(take, pg.engine(), owner, *order))
        for owner, order in zip(owners, shuffled, strict=True)
    ]
    assert not wait(claims, 30).not_done
    assert all(set(one.result().values()) == {5} for one in claims)
    assert len({owner for _, owner in state(pg)[0].values()}) == 1


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_in_a_stricter_isolation_a_claim_in_between_is_a_serialization_failure_or_a_fence(
    pg: Database, isolation: str
) -> None:
    engine = pg.engine().execution_options(isolation_level=isolation)
    with pytest.raises((FencedError, DBAPIError)) as caught, engine.begin() as connection:
        write(connection, 1)
        take(pg.engine(), OTHER, P0)
        move(connection, ME, {P0: to(5, 8)})
    if isinstance(caught.value, DBAPIError):
        verdict = classify(caught.value)
        assert verdict is not None
        assert (verdict.kind, verdict.code) == (Kind.TRANSIENT, "40001")
    assert state(pg) == ({0: (5, "other"), 1: (5, "me")}, [])


def test_a_deadlock_with_another_application_ends_one_of_them_and_the_transaction_can_be_made_again(
    pg: Database,
) -> None:
    pg.run("INSERT INTO refunds VALUES (1, 'a'), (2, 'b')")
    change = text("UPDATE refunds SET note = note || :by WHERE id = :id")
    has_first, has_second = Event(), Event()

    def other() -> None:
        with pg.engine().begin() as connection:
            connection.execute(change, {"id": 2, "by": "o"})
            has_second.set()
            assert has_first.wait(PATIENCE_S)
            connection.execute(change, {"id": 1, "by": "o"})

    def mine() -> None:
        with pg.engine().begin() as connection:
            connection.execute(change, {"id": 1, "by": "m"})
            has_first.set()
            assert has_second.wait(PATIENCE_S)
            connection.execute(change, {"id": 2, "by": "m"})
            move(connection, ME, {P0: to(5, 8)})

    victims = []
    for call in [pg.beside(other), pg.beside(mine)]:
        if (error := call.exception(PATIENCE_S)) is not None:
            verdict = classify(error)
            assert verdict is not None
            assert (verdict.kind, verdict.code) == (Kind.TRANSIENT, "40P01")
            victims.append(call)
    assert len(victims) == 1
    moved = state(pg)[0][0] == (8, "me")
    notes = pg.seen("SELECT note FROM refunds ORDER BY id")
    assert notes == ([("am",), ("bm",)] if moved else [("ao",), ("bo",)])
    if not moved:
        transact(pg.engine(), ME, {P0: to(5, 8)}, 3)
        assert state(pg)[0][0] == (8, "me")


def test_a_failed_statement_that_the_caller_swallowed_does_not_move_the_position(pg: Database) -> None:
    """PostgreSQL answers its COMMIT without an error, and rolls back."""
    with pytest.raises(DBAPIError) as caught, pg.engine().begin() as connection:
        write(connection, 1)
        with pytest.raises(DBAPIError):
            write(connection, 1)
        move(connection, ME, {P0: to(5, 8)})
    verdict = classify(caught.value)
    assert verdict is not None
    assert (verdict.kind, verdict.code) == (Kind.STOP, "25P02")
    assert state(pg) == ({0: (5, "me"), 1: (5, "me")}, [])


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("INSERT INTO refunds (id) VALUES (NULL)", "23502"),
        ("INSERT INTO refunds (id, note) VALUES (1, 'too long')", "22001"),
        ("INSERT INTO refunds (id) VALUES (99999999999)", "22003"),
        ("INSERT INTO refunds (id, note) VALUES (1, convert_from('\\x00', 'UTF8'))", "22021"),
    ],
)
def test_a_row_that_the_database_refuses_is_the_record_s_fault(
    pg: Database, statement: str, code: str
) -> None:
    with pytest.raises(DBAPIError) as caught, pg.engine().begin() as connection:
        connection.exec_driver_sql(statement)
    verdict = classify(caught.value)
    assert verdict is not None
    assert (verdict.kind, verdict.code) == (Kind.RECORD, code)
    assert not verdict.lost


def test_a_nul_in_a_text_is_the_record_s_fault(pg: Database) -> None:
    with pytest.raises(DBAPIError) as caught, pg.engine().begin() as connection:
        connection.execute(text("INSERT INTO refunds (id, note) VALUES (1, :note)"), {"note": "a\0b"})
    verdict = classify(caught.value)
    assert verdict is not None
    assert verdict.kind is Kind.RECORD
    assert "a\0b" not in verdict.says
    assert "a\\x00b" not in str(caught.value), "hide_parameters"


# --- a COMMIT without an answer: PostgreSQL -------------------------------------------------------------------


def settle_outcome(database: Database, owner: Owner, moves: dict[Partition, Move]) -> object:
    """The outcome, or the class of the error."""
    try:
        return settle(database.engine(), owner, moves, LIMITS)
    except (FencedError, OffsetGapError) as error:
        return type(error)


def end_backend(database: Database, pid: int) -> None:
    database.run("SELECT pg_terminate_backend(:pid, 5000)", pid=pid)


def crash_server(database: Database, pid: int) -> None:
    """Kill a backend: the server ends all others too, recovers, and takes connections again.

    Until the server's main process has noticed the death it still accepts connections, and ends them a moment later.
    Only a connection from before that is gone says that it has noticed.
    """
    with left_open(database.engine()) as before:
        before.execute(text("SELECT 1"))
        os.kill(pid, signal.SIGKILL)
        assert Deadline(PATIENCE_S).wait_for(lambda: fails(lambda: before.execute(text("SELECT 1")))), (
            "the server did not crash"
        )
    assert Deadline(PATIENCE_S).wait_for(lambda: not fails(lambda: database.seen("SELECT 1"))), (
        "the server did not recover"
    )


def fails(statement: Callable[[], object]) -> bool:
    try:
        statement()
    except DBAPIError:
        return True
    return False


@pytest.mark.parametrize("arrives", [True, False])
def test_an_unanswered_commit_is_settled_by_what_the_row_says(pg: Database, *, arrives: bool) -> None:
    """The connection breaks when the COMMIT is sent: before the server has it, or before its answer is back."""
    moves = {P0: to(5, 8), P1: to(5, 5, "same offset")}
    with CuttingProxy(pg.judge.url.port or 0) as proxy:
        through = pg.judge.url.set(port=proxy.port).render_as_string(hide_password=False)
        with pg.engine(through).connect() as connection:
            transaction = connection.begin()
            write(connection, 1)
            move(connection, ME, moves)
            proxy.cut_at(b"COMMIT", arrives=arrives)
            with pytest.raises(DBAPIError) as caught:
                transaction.commit()
    verdict = classify(caught.value)
    assert verdict is not None
    assert verdict.lost
    assert settle_outcome(pg, ME, moves) is (Outcome.COMMITTED if arrives else Outcome.ROLLED_BACK)
    assert state(pg)[1] == ([1] if arrives else [])


@pytest.mark.parametrize("statement", ["INSERT INTO refunds", "UPDATE eos_progress", "COMMIT"])
def test_a_backend_that_is_ended_before_a_statement_writes_nothing(pg: Database, statement: str) -> None:
    moves = {P0: to(5, 8)}
    with left_open(pg.engine()) as connection:
        connection.begin()
        pid = backend_of(connection)
        steps = {
            "INSERT INTO refunds": lambda: write(connection, 1),
            "UPDATE eos_progress": lambda: move(connection, ME, moves),
            "COMMIT": connection.commit,
        }
        for name, step in steps.items():
            if name == statement:
                end_backend(pg, pid)
                with pytest.raises(DBAPIError) as caught:
                    step()
                verdict = classify(caught.value)
                assert verdict is not None
                assert (verdict.kind, verdict.lost) == (Kind.TRANSIENT, True)
                break
            step()
    assert settle_outcome(pg, ME, moves) is Outcome.ROLLED_BACK
    assert state(pg) == ({0: (5, "me"), 1: (5, "me")}, [])


def test_settling_waits_for_a_commit_that_is_still_on_its_way(pg: Database) -> None:
    """Only to read would say "rolled back", and the batch would be written again beside the late COMMIT."""
    moves = {P0: to(5, 8)}
    with pg.engine().connect() as connection, connection.begin() as transaction:
        write(connection, 1)
        move(connection, ME, moves)
        outcome = pg.beside(lambda: settle_outcome(pg, ME, moves))
        pg.wait_until_blocked()
        assert not outcome.done()
        transaction.commit()
    assert outcome.result(PATIENCE_S) is Outcome.COMMITTED


def test_settling_takes_nothing_from_an_owner_that_has_come_meanwhile(pg: Database) -> None:
    take(pg.engine(), OTHER, P0)
    assert settle_outcome(pg, ME, {P0: to(5, 8)}) is FencedError
    assert state(pg)[0][0] == (5, "other")


def test_settling_in_a_database_that_lacks_earlier_commits_is_a_gap(pg: Database) -> None:
    transact(pg.engine(), ME, {P0: to(5, 8)}, 1)
    pg.run("UPDATE eos_progress SET next_offset = 5, metadata = 'moved to 5' WHERE partition = 0")
    assert settle_outcome(pg, ME, {P0: to(8, 9)}) is OffsetGapError


def test_a_crash_of_the_server_s_process_in_a_transaction_writes_nothing(pg: Database) -> None:
    moves = {P0: to(5, 8)}
    with left_open(pg.engine()) as connection:
        connection.begin()
        pid = backend_of(connection)
        write(connection, 1)
        move(connection, ME, moves)
        crash_server(pg, pid)
        with pytest.raises(DBAPIError) as caught:
            connection.commit()
    verdict = classify(caught.value)
    assert verdict is not None
    assert verdict.lost
    assert settle_outcome(pg, ME, moves) is Outcome.ROLLED_BACK
    assert state(pg) == ({0: (5, "me"), 1: (5, "me")}, [])
