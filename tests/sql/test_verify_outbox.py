"""Verification of an outbox from outside, over tables and topics that were damaged on purpose."""

from __future__ import annotations

from datetime import timedelta

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from eos.errors import ConfigError, OffsetGapError
from eos.kafka.group_offsets import Committed
from eos.shards import ledger_group
from eos.sql import verify_outbox as verifying
from eos.sql.outbox_prune import prune
from eos.sql.outbox_report import OutboxReport
from eos.sql.relay_entry import RelayEntry
from tests.support.databases import Database
from tests.support.observer import PlainRecord, committed_offsets, produce_plain
from tests.support.patience import PATIENCE_S
from tests.support.relays import PARTITIONS, Books

pytestmark = [pytest.mark.broker]

ROWS = 60


@pytest.fixture
def books(bootstrap: str, database: Database) -> Books:
    """All of its rows are relayed."""
    made = Books(bootstrap, database)
    made.put(*range(ROWS))
    made.run()
    return made


def verified(books: Books, shards: int = 1) -> OutboxReport:
    return verifying.verify_outbox(books.job(shards=shards), books.settings(), timeout_s=PATIENCE_S)


def prune_all(books: Books) -> None:
    partition = (books.topic, 0)
    group = ledger_group(books.name, books.name, 0)
    offset, metadata = committed_offsets(books.bootstrap, group, [partition])[partition]
    assert offset is not None
    entry = RelayEntry.parse(Committed(offset, metadata, None))
    assert entry is not None
    books.database.run("UPDATE eos_outbox SET created_at = '2020-01-01 00:00:00'")
    with books.database.judge.begin() as connection:
        prune(connection, books.outbox, older_than=timedelta(0), committed=entry.position, batch=40)


def test_relayed_rows_are_exactly_once(books: Books) -> None:
    report = verified(books)
    assert report.exactly_once, report.rows()
    assert report.complete
    assert (report.relayed, report.present, report.records) == (ROWS, ROWS, ROWS)


def test_rows_that_wait_are_told_and_are_no_fault(books: Books) -> None:
    books.put(ROWS)
    report = verified(books)
    assert report.exactly_once
    assert not report.complete
    assert report.waiting == 1


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("UPDATE eos_outbox SET value = 'x' WHERE id = 7", ("missing", "1 row without a record")),
        ('UPDATE eos_outbox SET "key" = NULL WHERE id = 7', ("unexpected", "1 record that no row has")),
        ("UPDATE eos_outbox SET headers = '[]' WHERE id = 7", ("missing", "1 row without a record")),
        (
            "UPDATE eos_outbox SET topic = 'elsewhere' WHERE id = 7",
            ("too many", "1 record more than rows"),
        ),
    ],
)
def test_a_row_that_was_changed_after_it_was_relayed_is_found(
    books: Books, damage: str, says: tuple[str, str]
) -> None:
    books.database.run(damage)
    report = verified(books)
    assert not report.exactly_once
    assert any(name == says[0] and text.startswith(says[1]) for name, text in report.rows()), report.rows()


@pytest.mark.parametrize("pruned", [False, True])
def test_a_record_that_is_there_twice_is_found(books: Books, pruned: bool) -> None:
    if pruned:
        prune_all(books)
    again = books.records()[0]
    produce_plain(books.bootstrap, books.topic, [PlainRecord(again.value, again.key)])
    report = verified(books)
    assert report.too_many == 1
    assert not report.exactly_once


def test_rows_that_were_pruned_are_counted(books: Books) -> None:
    prune_all(books)
    report = verified(books)
    assert report.exactly_once, report.rows()
    assert report.pruned == 40


def delete_first_records(books: Books) -> None:
    client = AdminClient({"bootstrap.servers": books.bootstrap})
    firsts = [TopicPartition(books.topic, number, 1) for number in range(PARTITIONS)]
    for deleted in client.delete_records(firsts).values():
        deleted.result(PATIENCE_S)


def test_where_records_were_deleted_only_one_too_many_is_found(books: Books) -> None:
    delete_first_records(books)
    report = verified(books)
    assert report.exactly_once, report.rows()
    assert "whether one was lost can't be seen" in report.verdict
    again = books.records()[0]
    produce_plain(books.bootstrap, books.topic, [PlainRecord(again.value, again.key)])
    assert not verified(books).exactly_once


def test_where_records_were_deleted_and_rows_pruned_nothing_is_shown(books: Books) -> None:
    delete_first_records(books)
    prune_all(books)
    report = verified(books)
    assert not report.exactly_once
    assert not report.differs
    assert report.verdict.startswith("not shown: records were deleted from the topics and rows were pruned")


@pytest.mark.parametrize(
    "fault", ["topic = 'elsewhere'", "headers = '[7]'"], ids=["another topic", "unreadable headers"]
)
def test_a_row_that_can_be_no_record_is_right_under_skip_alone(
    bootstrap: str, database: Database, fault: str
) -> None:
    books = Books(bootstrap, database)
    books.put(*range(ROWS))
    books.database.run(f"UPDATE eos_outbox SET {fault} WHERE id = 7")  # noqa: S608
    books.run(poison__policy="skip")
    for policy in ("skip", "stop"):
        report = verifying.verify_outbox(
            books.job(), books.settings(poison__policy=policy), timeout_s=PATIENCE_S
        )
        assert report.exactly_once is (policy == "skip"), report.rows()
        assert report.left_out == 1


def test_rows_that_were_left_out_and_pruned_are_not_called_lost(books: Books) -> None:
    books.put(ROWS)
    books.database.run(f"UPDATE eos_outbox SET topic = 'elsewhere' WHERE id = {ROWS + 1}")  # noqa: S608
    books.run(poison__policy="skip")
    books.database.run(f"DELETE FROM eos_outbox WHERE id = {ROWS + 1}")  # noqa: S608
    for policy in ("skip", "stop"):
        report = verifying.verify_outbox(
            books.job(), books.settings(poison__policy=policy), timeout_s=PATIENCE_S
        )
        assert not report.exactly_once
        assert report.differs is (policy == "stop"), report.rows()


def test_a_row_that_was_deleted_by_hand_before_it_was_relayed_is_no_fault_and_one_inserted_is(
    bootstrap: str, sqlite: Database
) -> None:
    books = Books(bootstrap, sqlite)
    books.put(*range(ROWS))
    books.database.run("DELETE FROM eos_outbox WHERE id = 7")
    books.run()
    assert verified(books).exactly_once
    books.database.run(f"INSERT INTO eos_outbox (id, topic, value) VALUES (7, '{books.topic}', 'late')")  # noqa: S608
    report = verified(books)
    assert not report.exactly_once
    assert ("problem", "1 row more than were relayed") in [(n, t[:28]) for n, t in report.rows()]


def test_shards_are_judged_by_the_position_of_each(bootstrap: str, postgres: Database) -> None:
    books = Books(bootstrap, postgres)
    books.put(*range(ROWS), key=lambda n: b"k%d" % n)
    books.run(books.job(shards=3))
    books.put(*range(ROWS, ROWS + 30), key=lambda n: b"k%d" % n)
    books.run(books.job(shards=3), ownership__ordinal=1, workers__count=3)
    report = verified(books, shards=3)
    assert report.exactly_once, report.rows()
    assert 0 < report.waiting < 30
    assert report.present + report.waiting == ROWS + 30


def test_in_several_passes_the_same_is_found(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "_AT_A_TIME", 10)
    assert verified(books).exactly_once
    books.database.run("UPDATE eos_outbox SET value = 'x' WHERE id IN (7, 8, 9)")
    report = verified(books)
    assert (report.missing, report.unexpected) == (3, 3)
    assert len(report.examples) == 3


def test_before_the_first_run_there_is_nothing_to_compare(bootstrap: str, database: Database) -> None:
    with pytest.raises(ConfigError, match="has no offset of a relay"):
        verified(Books(bootstrap, database))


def test_another_table_is_refused(bootstrap: str, postgres: Database) -> None:
    books = Books(bootstrap, postgres)
    books.put(0)
    books.run()
    with books.database.judge.begin() as connection:
        books.outbox.table.drop(connection)
        books.outbox.table.create(connection)
    with pytest.raises(OffsetGapError, match="another table"):
        verified(books)
