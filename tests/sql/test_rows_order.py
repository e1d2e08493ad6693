"""The order of an outbox's records, as a trial compares it: what depends on a record is behind it, and nothing more is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, MetaData

from eos.prove.rows_order import OrderFound, RowsOrder
from eos.sql import Outbox
from tests.support.databases import Database

FIRST, SECOND, OTHER = (b"k", b"first"), (b"k", b"second"), (b"other", b"x")
Row = tuple[bytes | None, bytes]


class Trial:
    """Transactions of rows, and logs that hold their records."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.outbox = Outbox(MetaData())
        with database.judge.begin() as connection:
            self.outbox.table.create(connection)
        given: Any = SimpleNamespace(connected=self.connected)
        self.order = RowsOrder(given, self.outbox.table.fullname)

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        with self.database.judge.connect() as connection:
            yield connection

    @contextmanager
    def transaction(self, *rows: Row, commits: bool = True) -> Iterator[None]:
        with self.connected() as connection:
            transaction = connection.begin()
            with self.order.noted(connection):
                for key, value in rows:
                    self.outbox.add(connection, "out", key, value)
                yield
                (transaction.commit if commits else transaction.rollback)()

    def commit(self, *rows: Row) -> None:
        with self.transaction(*rows):
            pass

    def compared(self, *logs: Sequence[Row]) -> OrderFound:
        records = [
            SimpleNamespace(topic="out", partition=number, offset=offset, key=key, value=value)
            for number, log in enumerate(logs)
            for offset, (key, value) in enumerate(log)
        ]
        reader: Any = SimpleNamespace(records=lambda _: iter(records))
        return self.order.compare(reader, {})


@pytest.fixture
def trial(postgres: Database) -> Trial:
    return Trial(postgres)


def test_a_record_behind_one_that_depends_on_it_is_found(trial: Trial) -> None:
    trial.commit(FIRST)
    trial.commit(SECOND, OTHER)
    assert trial.compared([FIRST, OTHER, SECOND]) == (3, 0, [])
    found = trial.compared([OTHER, SECOND, FIRST])
    assert (found.compared, found.late) == (3, 1)
    assert found.examples == ["out[0] offset 2: behind a record of its key that was inserted later"]


def test_rows_of_one_transaction_keep_the_order_of_their_inserts(trial: Trial) -> None:
    trial.commit(FIRST, OTHER, SECOND)
    assert trial.compared([FIRST, SECOND, OTHER]).late == 0
    assert trial.compared([SECOND, OTHER, FIRST]).late == 1


def test_transactions_that_were_open_at_once_may_come_in_either_order(trial: Trial) -> None:
    with trial.transaction(FIRST):
        trial.commit(SECOND)
    assert trial.compared([FIRST, SECOND]).late == trial.compared([SECOND, FIRST]).late == 0


def test_a_commit_of_which_no_writer_has_heard_comes_before_nothing(trial: Trial) -> None:
    trial.commit(FIRST)
    trial.database.run("UPDATE eos_prove_written SET ended = NULL")
    trial.commit(SECOND)
    assert trial.compared([SECOND, FIRST]).late == 0


def test_no_order_is_asked_for_between_keys_partitions_and_rows_without_a_key(trial: Trial) -> None:
    trial.commit(FIRST, (None, b"1"))
    trial.commit(SECOND, OTHER, (None, b"2"))
    assert trial.compared([OTHER, (None, b"2"), FIRST, (None, b"1"), SECOND]).late == 0
    assert trial.compared([SECOND], [FIRST]).late == 0


def test_of_rows_that_are_alike_none_is_known_to_be_late(trial: Trial) -> None:
    for row in (FIRST, SECOND, FIRST):
        trial.commit(row)
    found = trial.compared([FIRST, FIRST, SECOND])
    assert (found.compared, found.late) == (1, 0)


def test_what_was_rolled_back_counts_for_nothing(trial: Trial) -> None:
    with trial.transaction(FIRST, commits=False):
        pass
    trial.commit(FIRST, SECOND)
    assert trial.compared([FIRST, SECOND]) == (2, 0, [])
    assert trial.compared([SECOND, FIRST]).late == 1
