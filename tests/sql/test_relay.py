"""A job that relays an outbox, on a real broker and real databases: each committed row is one record, whatever ends it."""

from __future__ import annotations

import contextlib
import random
import re
import signal
import subprocess
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from sqlalchemy import MetaData, text

import eos
from eos.base.deadline import Deadline
from eos.core.producer import ShardProducer
from eos.errors import (
    AbortableError,
    ConfigError,
    OffsetGapError,
    RecordRefusedError,
    UnavailableError,
    UsageError,
)
from eos.events import Event, RecordDeadLettered, SessionOpened, TransactionCommitted
from eos.exits import ExitCode
from eos.kafka.producer import TransactionalClient
from eos.ops.check.status import status
from eos.shards import ledger_group
from eos.sql import Outbox, OutboxJob
from eos.sql.outbox_prune import prune_relayed
from eos.sql.relay import Relay
from eos.sql.relays import committed_entries
from eos.sql.tables import create
from eos.sql.verify_outbox import verify_outbox
from eos.testing.proxy import ApiKey, HoldProxy, Outcome
from tests.support.databases import Database
from tests.support.jobs_for_faults import settings_for
from tests.support.observer import create_topics, delete_groups, recreate_topic, unique
from tests.support.patience import PATIENCE_S
from tests.support.relay_child import POINTS
from tests.support.relays import PARTITIONS, Books, in_order

pytestmark = [pytest.mark.broker]


@pytest.fixture
def books(bootstrap: str, database: Database) -> Books:
    return Books(bootstrap, database)


@pytest.fixture
def pg(bootstrap: str, postgres: Database) -> Books:
    return Books(bootstrap, postgres)


def test_each_committed_row_is_one_record_and_a_restart_goes_on(books: Books) -> None:
    books.put(*range(300))
    with books.database.judge.connect() as connection:
        transaction = connection.begin()
        books.put_in(connection, 777)
        transaction.rollback()
    books.run()
    books.assert_exact(range(300))
    assert in_order(books.records())
    assert all([*record.headers] == [("n", record.value)] for record in books.records())
    books.run()
    books.put(*range(300, 310))
    books.run()
    books.assert_exact(range(310))


def test_an_empty_outbox_has_a_position_too_and_its_first_row_is_relayed_once(books: Books) -> None:
    books.run()
    assert books.relayed() == 0
    books.put(0)
    books.run()
    books.assert_exact(range(1))


def test_run_that_has_ended_leaves_no_connection_open(pg: Books) -> None:
    pg.put(0)
    pg.run()
    connections = "SELECT count(*) FROM pg_stat_activity WHERE application_name = :name"
    assert Deadline(PATIENCE_S).wait_for(
        lambda: pg.database.seen(connections, name=f"eos {pg.name}") == [(0,)]
    )


@pytest.mark.parametrize(
    ("point", "nth"),
    [
        (point, nth)
        for point in POINTS
        for nth in (1, 2)
        if (nth == 1 or POINTS[point][1] != "claim") and POINTS[point][1] != "read_ahead"
    ],
)
def test_relay_killed_at_any_point_repeats_no_row_and_skips_none(pg: Books, point: str, nth: int) -> None:
    assert_exact_when_killed(pg, point, nth, rows=20)


@pytest.mark.parametrize(
    ("point", "nth"),
    [
        ("next page begun", 1),
        ("next page begun", 2),
        ("read, mark not written", 2),
        ("mark written, not committed", 2),
        ("before commit", 3),
        ("behind commit", 3),
    ],
)
def test_relay_killed_with_a_page_read_ahead_repeats_no_row_and_skips_none(
    pg: Books, point: str, nth: int
) -> None:
    assert_exact_when_killed(pg, point, nth, rows=450)
    assert in_order(pg.records())


def assert_exact_when_killed(pg: Books, point: str, nth: int, *, rows: int) -> None:
    pg.put(*range(rows))
    child = pg.child(point, nth)
    child.communicate(timeout=PATIENCE_S)
    assert child.returncode == -signal.SIGKILL
    pg.run()
    pg.assert_exact(range(rows))


@pytest.mark.parametrize(
    ("point", "nth"),
    [
        (
            "opened, mark not claimed",
            1,
        ),  # it called its offset lost, which it had looked for before there was one
        ("marked, nothing produced", 1),
        ("read, mark not written", 2),
        ("mark written, not committed", 2),
        ("marked, nothing produced", 2),
        ("before commit", 2),
    ],
)
def test_relay_that_stands_still_and_was_replaced_is_fenced_when_it_wakes_up(
    pg: Books, point: str, nth: int
) -> None:
    pg.put(*range(20))
    zombie = pg.child(point, nth, "SIGSTOP")
    try:
        assert Deadline(PATIENCE_S).wait_for(lambda: stands_still(zombie.pid))
        pg.run()
        pg.assert_exact(range(20))
        zombie.send_signal(signal.SIGCONT)
        said = zombie.communicate(timeout=PATIENCE_S)[1]
    finally:
        zombie.kill()
        zombie.communicate()  # else its pipe and its end are left to whichever test the garbage collector comes in
    assert zombie.returncode == ExitCode.FENCED, said
    assert "another program" not in said
    pg.assert_exact(range(20))
    pg.put(20)
    pg.run()
    pg.assert_exact(range(21))


def stands_still(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_relays_killed_at_random_beside_writers_lose_and_repeat_nothing(pg: Books) -> None:
    draw, stop = random.Random(7), threading.Event()
    written: list[int] = []

    def write(seed: int) -> None:
        mine, engine = random.Random(seed), pg.database.engine()
        while not stop.is_set():
            with engine.connect() as connection:
                transaction = connection.begin()
                numbers = [seed * 1_000_000 + len(written) * 10 + i for i in range(mine.randint(1, 5))]
                pg.put_in(connection, *numbers, key=lambda _: b"w%d" % seed)
                time.sleep(mine.uniform(0, 0.05))  # others commit meanwhile
                if mine.random() < 0.2:
                    transaction.rollback()
                else:
                    transaction.commit()
                    written.extend(numbers)

    writers = [pg.database.beside(lambda seed=seed: write(seed)) for seed in range(1, 5)]  # type: ignore[misc]
    try:
        for _ in range(6):
            child = pg.child()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(draw.uniform(0.7, 2.0))
            child.kill()
            child.communicate()
    finally:
        stop.set()
    for writer in writers:
        writer.result(PATIENCE_S)
    pg.run()
    assert pg.numbers() == sorted(written)
    assert in_order(pg.records())
    assert pg.relayed() == len(written)


def test_shards_share_the_rows_and_keep_the_order_of_each_key(pg: Books) -> None:
    def key(n: int) -> bytes | None:
        return None if n % 10 == 0 else b"k%d" % (n % 17)

    pg.put(*range(400), key=key)
    job = pg.job(shards=3)
    pg.run(job)
    pg.put(*range(400, 500), key=key)
    pg.run(job)
    assert pg.numbers() == list(range(500))
    assert in_order([record for record in pg.records() if record.key is not None])
    each = [pg.relayed(shard) for shard in range(3)]
    assert sum(each) == 500
    assert all(each)
    with pytest.raises(ConfigError, match=r"shards = 3, and the job says 2.*Fix: shards=3"):
        pg.run(pg.job(shards=2))


def test_one_process_has_a_connection_for_each_of_many_shards(pg: Books) -> None:
    """Each keeps one, so a pool of a fixed size would leave some without."""
    stop = threading.Event()
    running = pg.database.beside(
        lambda: eos.run(pg.job(shards=20), pg.settings(), stop=stop, listener=pg.told.append)
    )
    try:
        opened = Deadline(PATIENCE_S).wait_for(
            lambda: running.done() or sum(isinstance(one, SessionOpened) for one in pg.told) == 20
        )
    finally:
        stop.set()
    running.result(PATIENCE_S)
    assert opened


def test_two_processes_share_the_shards_by_their_ordinals(pg: Books) -> None:
    pg.put(*range(100))
    pg.run(pg.job(shards=3), ownership__ordinal=1, workers__count=2)
    first = pg.numbers()
    assert 0 < len(first) < 100
    pg.run(pg.job(shards=3), ownership__ordinal=0, workers__count=2)
    assert pg.numbers() == list(range(100))


def test_sqlite_has_one_shard(bootstrap: str, sqlite: Database) -> None:
    books = Books(bootstrap, sqlite)
    with pytest.raises(ConfigError, match="Fix: shards=1"):
        books.run(books.job(shards=2))


FORMS = {"headers": "[1]", "nested headers": "[" * 995 + "]" * 995, "half a character": r'[["\ud800", ""]]'}


@pytest.mark.parametrize("fault", ["undeclared topic", "too large", *FORMS])
class TestRowThatKafkaRefuses:
    def bad_row(self, books: Books, fault: str) -> None:
        with books.database.judge.begin() as connection:
            if fault == "undeclared topic":
                books.outbox.add(connection, "elsewhere", value=b"0")
            elif fault == "too large":
                books.outbox.add(connection, books.topic, value=b"0" * 2_000_000)
            else:
                statement = "INSERT INTO eos_outbox (topic, value, headers) VALUES (:topic, :value, :headers)"
                values = {"topic": books.topic, "value": b"0", "headers": FORMS[fault]}
                connection.execute(text(statement), values)

    def test_ends_the_relay_with_its_id_and_all_before_it_is_relayed(self, books: Books, fault: str) -> None:
        books.put(*range(50))
        self.bad_row(books, fault)
        books.put(*range(50, 80))
        for _ in range(2):
            with pytest.raises(
                RecordRefusedError, match=r"eos_outbox, row 51: .*Fix: correct or delete the row"
            ):
                books.run()
            books.assert_exact(range(50))
        books.database.run("DELETE FROM eos_outbox WHERE id = 51")
        books.run()
        books.assert_exact(range(80))

    def test_is_left_out_under_skip_and_told(self, books: Books, fault: str) -> None:
        books.put(*range(50))
        self.bad_row(books, fault)
        books.put(*range(50, 80))
        books.run(poison__policy="skip")
        assert books.numbers() == list(range(80))
        assert books.relayed() == 81
        (told,) = [event for event in books.told if isinstance(event, RecordDeadLettered)]
        assert told.skipped
        assert "row 51" in told.error


def test_more_refused_rows_in_a_row_than_the_policy_allows_end_it(pg: Books) -> None:
    with pg.database.judge.begin() as connection:
        for _ in range(4):
            pg.outbox.add(connection, "elsewhere", value=b"0")
    with pytest.raises(RecordRefusedError, match=r"3 rows before it were left out too"):
        pg.run(poison__policy="skip", poison__max_in_a_row=3)
    assert pg.relayed() == 3
    with pytest.raises(RecordRefusedError, match=r"3 rows before it"):  # the next owner goes on counting
        pg.run(poison__policy="skip", poison__max_in_a_row=3)


def test_rows_that_are_left_out_are_in_a_row_only_without_another_between(pg: Books) -> None:
    def put_refused() -> None:
        with pg.database.judge.begin() as connection:
            for _ in range(2):
                pg.outbox.add(connection, "elsewhere", value=b"0")

    for n in range(3):
        put_refused()
        pg.put(n)
        pg.run(poison__policy="skip", poison__max_in_a_row=3)
    assert pg.numbers() == [0, 1, 2]
    put_refused()
    pg.run(poison__policy="skip", poison__max_in_a_row=2)
    assert pg.relayed() == 11


def test_a_run_until_it_has_caught_up_waits_for_rows_that_too_many_open_transactions_hold_back(
    pg: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eos.sql.outbox_position.MAX_OPEN", 2)
    with contextlib.ExitStack() as ending:
        opened = [ending.enter_context(pg.database.judge.connect()) for _ in range(4)]
        for connection in opened:
            connection.execute(text("SELECT pg_current_xact_id()"))
        pg.put(0, 1, 2)
        with pytest.raises(UnavailableError, match=r"more than .* others were open.*Fix:"):
            pg.run(input__held_back_deadline_ms=1_000)
        running = pg.database.beside(pg.run)
        time.sleep(1)
        assert not running.done()
        for connection in opened[:2]:
            connection.rollback()
        running.result(PATIENCE_S)
        pg.assert_exact(range(3))


def test_a_run_until_it_has_caught_up_ends_beside_a_writer_that_does_not(books: Books) -> None:
    stop, written = threading.Event(), 150
    books.put(*range(written))

    def write() -> None:
        for n in range(written, 100_000):
            if stop.is_set():
                return
            books.put(n)
            time.sleep(0.01)

    writer = books.database.beside(write)
    try:
        books.database.beside(books.run).result(PATIENCE_S)
    finally:
        stop.set()
        writer.result(PATIENCE_S)
    assert books.relayed() >= written


def test_a_policy_without_a_topic_is_refused(pg: Books) -> None:
    with pytest.raises(ConfigError, match="Fix: 'stop' or 'skip'"):
        pg.run(poison__policy="dead-letter")


def test_a_database_that_went_back_is_refused(books: Books) -> None:
    books.put(*range(30))
    books.run()
    books.database.run("UPDATE eos_relays SET relayed = 10")
    books.put(*range(30, 40))
    with pytest.raises(OffsetGapError, match=r"has relayed 30 rows, and eos_relays says 10.*Fix:"):
        books.run()
    books.assert_exact(range(30))


def test_rows_of_a_database_that_went_back_are_neither_pruned_nor_verified(books: Books) -> None:
    """Those under numbers that were given out twice look like relayed ones."""
    books.put(*range(30))
    books.run()
    books.database.run("UPDATE eos_relays SET relayed = 10")
    for act in (False, True):
        with pytest.raises(OffsetGapError, match=r"has relayed 30 rows, and eos_relays says 10.*Fix:"):
            prune_relayed(books.job(), books.settings(), older_than=timedelta(0), act=act)
    assert books.database.seen("SELECT count(*) FROM eos_outbox") == [(30,)]
    with pytest.raises(OffsetGapError, match=r"has relayed 30 rows, and eos_relays says 10.*Fix:"):
        verify_outbox(books.job(), books.settings())


def test_an_idle_relay_commits_where_it_stands_and_no_position_without_a_mark(pg: Books) -> None:
    """A database that loses what a later position has seen would not show it: no mark is behind that."""
    pg.put(*range(3))
    pg.run()
    settings, stop = pg.settings(input__recommit_idle_after_s=1), threading.Event()
    (before,) = committed_entries(settings, pg.job().identity(settings), pg.job().relayed).values()
    committed: list[Event] = []

    def listen(event: Event) -> None:
        if isinstance(event, TransactionCommitted):
            committed.append(event)

    running = pg.database.beside(lambda: eos.run(pg.job(), settings, stop=stop, listener=listen))
    try:
        for _ in range(20):
            pg.database.seen("SELECT pg_current_xact_id()")
        assert Deadline(PATIENCE_S).wait_for(lambda: len(committed) >= 3)
    finally:
        stop.set()
    running.result(PATIENCE_S)
    assert (
        committed_entries(settings, pg.job().identity(settings), pg.job().relayed)[0].position
        == before.position
    )


def test_a_table_under_another_name_is_not_gone_on_in(sqlite: Database, bootstrap: str) -> None:
    books = Books(bootstrap, sqlite)
    books.put(*range(5))
    books.run()
    renamed = books.job(outbox=Outbox(MetaData(), "other_outbox"))
    with sqlite.judge.begin() as connection:
        create(connection, renamed.own_tables)
        for n in range(7):
            renamed.outbox.add(connection, books.topic, value=b"%d" % n)
    with pytest.raises(OffsetGapError, match=r"another table than this other_outbox"):
        books.run(renamed)
    books.assert_exact(range(5))


@pytest.mark.parametrize("stored", ["'k', 'value'", "'', ''", "7, 1.5"])
def test_a_text_or_a_number_in_a_column_of_sqlite_is_relayed_as_its_bytes(
    sqlite: Database, bootstrap: str, stored: str
) -> None:
    """SQLite stores what it is given, whatever the column's type."""
    books = Books(bootstrap, sqlite)
    sqlite.run(f"INSERT INTO eos_outbox (topic, key, value) VALUES (:topic, {stored})", topic=books.topic)  # noqa: S608 - literals from above
    books.run()
    (record,) = books.records()
    key, value = stored.replace("'", "").split(", ")
    assert (record.key, record.value) == (key.encode(), value.encode())
    assert verify_outbox(books.job(), books.settings()).exactly_once


def test_a_table_that_was_made_anew_is_refused(pg: Books) -> None:
    pg.put(*range(30))
    pg.run()
    with pg.database.judge.begin() as connection:
        pg.outbox.table.drop(connection)
        pg.outbox.table.create(connection)
    pg.put(30)
    with pytest.raises(OffsetGapError, match="another table"):
        pg.run()
    pg.assert_exact(range(30))


def test_a_position_on_a_topic_that_is_no_output_any_more_is_found_there(books: Books) -> None:
    books.put(*range(30))
    books.run()
    other = unique("other")
    create_topics(books.bootstrap, {other: 1})
    with pytest.raises(ConfigError, match=rf"{re.escape(books.topic)}.*30 rows.*Fix: name the topic"):
        books.run(books.job(outputs=[other]))
    books.run(books.job(outputs=[other, books.topic]))  # where it stands is found
    books.assert_exact(range(30))


def test_outputs_that_are_changed_back_do_not_lead_to_an_older_position(books: Books) -> None:
    """A run without a row left one on the first topic. Back from another one, all rows were relayed a second time, exit 0."""
    first, second = unique("first"), unique("second")
    create_topics(books.bootstrap, {first: 1, second: 1})
    books.run(books.job(outputs=[first, books.topic]))
    books.put(*range(30))
    books.run(books.job(outputs=[second, books.topic]))
    with pytest.raises(ConfigError, match=rf"{re.escape(second)}.*30 rows.*Fix: name the topic"):
        books.run(books.job(outputs=[first, books.topic]))
    books.run(books.job(outputs=[first, second, books.topic]))
    assert books.numbers() == [*range(30)]


def test_a_relay_whose_topic_is_created_anew_before_it_has_written_a_row_relays_no_more(books: Books) -> None:
    """Only rows of this process had asked for the topic's id: 10 relayed rows were gone, and the next 5 were relayed, exit 0."""
    books.put(*range(30))
    books.run()

    def recreated(event: Event) -> None:
        if isinstance(event, SessionOpened):
            recreate_topic(books.bootstrap, books.topic, PARTITIONS)
            books.put(*range(30, 35))

    with pytest.raises(OffsetGapError, match=r"has read 30 rows, and the group .* has no offset"):
        eos.run(books.job(), books.settings(), until_caught_up=True, listener=recreated)
    assert books.numbers() == []


def test_a_relay_whose_successor_lost_its_offset_says_how_many_rows_that_one_has_read(books: Books) -> None:
    """It said how many it had read itself: none. So a person would have relayed all of them again."""
    books.put(*range(30))

    def replaced(event: Event) -> None:
        if isinstance(event, SessionOpened):
            books.run()
            delete_groups(books.bootstrap, ledger_group(books.name, books.name, 0))

    with pytest.raises(OffsetGapError, match=r"has read 30 rows, and the group .* has no offset"):
        eos.run(books.job(), books.settings(), until_caught_up=True, listener=replaced)
    assert books.numbers() == [*range(30)]


def test_a_relay_whose_first_commit_is_aborted_takes_over_once_more(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended with exit code 1, an error without a documented meaning."""
    books.put(*range(30))
    commits, commit = 0, Relay._commit

    def aborted_at_first(relay: Relay, *args: Any, **options: Any) -> None:
        nonlocal commits
        commits += 1
        if commits == 1:
            raise AbortableError("a partition has moved")
        commit(relay, *args, **options)

    monkeypatch.setattr(Relay, "_commit", aborted_at_first)
    books.run()
    books.assert_exact(range(30))


def test_a_relay_beside_a_stray_offset_is_told_which_one_is_its_own(books: Books) -> None:
    """A group of its own was the only way out that was named: 5 of 7 rows were relayed twice."""
    books.put(*range(30))
    books.run()
    other = unique("other")
    create_topics(books.bootstrap, {other: 1})
    plain = Consumer(
        {"bootstrap.servers": books.bootstrap, "group.id": ledger_group(books.name, books.name, 0)}
    )
    plain.commit(offsets=[TopicPartition(other, 0, 1)], asynchronous=False)
    plain.close()
    own = re.escape(f"{books.topic}[0] has 30 rows")
    with pytest.raises(ConfigError, match=f"delete the others.*{own}"):
        books.run(books.job(outputs=[other, books.topic]))


def test_missing_tables_name_the_command(bootstrap: str, database: Database) -> None:
    books = Books(bootstrap, database)
    database.run("DROP TABLE eos_relays")
    with pytest.raises(ConfigError, match=r"lacks eos_relays.*eos sql tables"):
        books.run()


def test_missing_topic_is_named_before_anything(books: Books) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        books.run(books.job(outputs=[books.topic, "nowhere"]))


def test_backend_that_is_ended_between_two_transactions_costs_nothing_but_time(pg: Books) -> None:
    pg.put(*range(200))
    ended = 0

    def end_backends(event: Event) -> None:
        nonlocal ended
        if isinstance(event, TransactionCommitted) and event.records_in and ended < 5:
            ended += 1
            pg.database.seen(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = :name",
                name=f"eos {pg.name}",
            )

    settings = pg.settings(transaction__max_records=9)
    eos.run(pg.job(), settings, until_caught_up=True, listener=end_backends)
    assert ended == 5
    pg.assert_exact(range(200))


def test_a_relay_that_waits_relays_what_comes_and_stops_when_asked(books: Books) -> None:
    stop = threading.Event()
    running = books.database.beside(lambda: eos.run(books.job(), books.settings(), stop=stop))
    try:
        for n in range(5):
            books.put(n)
            assert Deadline(PATIENCE_S).wait_for(lambda n=n: books.relayed() == n + 1)  # type: ignore[misc]
    finally:
        stop.set()
    running.result(PATIENCE_S)
    books.assert_exact(range(5))


@pytest.mark.parametrize(
    "given", [{"outputs": []}, {"outputs": ["a", "a"]}, {"name": "a b"}, {"shards": 0}], ids=str
)
def test_declaration_that_contradicts_itself(given: dict[str, Any]) -> None:
    valid: dict[str, Any] = {"name": "a", "outbox": Outbox(MetaData()), "outputs": ["t"]}
    with pytest.raises(UsageError):
        OutboxJob(**(valid | given))


def test_status_and_check_say_how_far_each_shard_is_and_whether_it_could_run(pg: Books) -> None:
    job = pg.job(shards=2)
    assert "has not run yet" in status(job, pg.settings()).remarks[0]
    pg.put(*range(40), key=lambda n: b"k%d" % n)
    pg.run(job)
    found = status(job, pg.settings())
    assert found.group == pg.name
    told = [
        re.match(r"shard (\d): (\d+) rows relayed; committed \d+ s ago on \S+/\d+$", one)
        for one in found.remarks
    ]
    assert [match and match[1] for match in told] == ["0", "1"]
    assert sum(int(match[2]) for match in told if match) == 40
    kept = job.identity(pg.settings()).positions
    assert kept is not None
    kept(pg.settings()).check(timeout_s=PATIENCE_S)
    pg.database.run("DROP TABLE eos_relays")
    with pytest.raises(ConfigError, match="lacks eos_relays"):
        kept(pg.settings()).check(timeout_s=PATIENCE_S)


def test_rows_whose_offset_the_coordinator_has_forgotten_are_not_relayed_again(
    pg: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As brokers before 4.0 do, where the commit that mends it fails too: the ledger is back at the offset before."""
    forgets, forgotten = [3, 6], 0

    def forget(producer: ShardProducer, _transaction: object) -> None:
        nonlocal forgotten
        forgotten += 1
        if forgotten in forgets:
            ledger = producer._offsets.ledger
            ledger.stored.update((p, ledger._replaced[p]) for p in ledger.last_committed)

    monkeypatch.setattr(TransactionalClient, "forgets_offsets", True)
    monkeypatch.setattr(ShardProducer, "_commit_what_is_forgotten", forget)
    pg.put(*range(60))
    pg.run(transaction__max_records=10)
    assert forgotten > max(forgets)
    pg.assert_exact(range(60))


def test_check_of_a_relay_says_where_and_why_a_database_cannot_be_asked(pg: Books) -> None:
    settings = pg.settings(sql__url=pg.database.url.rpartition("/")[0] + "/nowhere")
    kept = pg.job().identity(settings).positions
    assert kept is not None
    with pytest.raises(UnavailableError, match=r'database "nowhere" does not exist'):
        kept(settings).check(timeout_s=2)


@pytest.mark.parametrize("opening", [True, False], ids=["while it opens", "at work"])
def test_a_relay_that_is_stopped_while_a_commit_gets_no_answer_ends_in_order(
    pg: Books, proxy: HoldProxy, *, opening: bool
) -> None:
    """It waited for as long as a transaction may take, and ended as unavailable."""
    pg.put(*range(10))
    settings = settings_for(proxy.bootstrap_servers, sql__url=pg.database.url, shutdown__grace_ms=2_000)
    stop = threading.Event()
    if opening:
        proxy.swallow(ApiKey.END_TXN, times=10**6)
    running = pg.database.beside(lambda: eos.run(pg.job(), settings, stop=stop, listener=pg.told.append))
    if not opening:
        assert Deadline(PATIENCE_S).wait_for(lambda: any(isinstance(one, SessionOpened) for one in pg.told))
        proxy.swallow(ApiKey.END_TXN, times=10**6)
        pg.put(*range(10, 20))
    assert Deadline(PATIENCE_S).wait_for(
        lambda: any(seen.outcome is Outcome.SWALLOWED for seen in proxy.frames)
    )
    stop.set()
    running.result(PATIENCE_S)
    proxy.clear_rules()
    pg.run()
    pg.assert_exact(range(10 if opening else 20))
