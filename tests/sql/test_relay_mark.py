"""A database that lost commits which a relay has relayed: refused, also once its transactions have come as far again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace

import pytest
from sqlalchemy import MetaData

from eos.errors import FencedError, OffsetGapError
from eos.local import LocalPostgres
from eos.sql.limits import Limits
from eos.sql.outbox import Outbox
from eos.sql.outbox_position import OutboxPosition
from eos.sql.outbox_read import Page, Part, first_position, read, require_same_database
from eos.sql.relay_entry import RelayEntry
from eos.sql.relay_mark import RelayMark
from eos.sql.relay_source import RelaySource
from eos.sql.tables import create, relays
from tests.support.databases import Database, open_directory

MARK = RelayMark("g", "o.0", "me")


@pytest.fixture
def server() -> Iterator[LocalPostgres]:
    """Of its own: its files are copied."""
    with (
        open_directory() as directory,
        LocalPostgres(directory, settings={"shared_buffers": "32MB", "synchronous_commit": "off"}) as server,
    ):
        yield server


class Relay:
    """Reads to the end, and marks what it has read."""

    def __init__(self, database: Database, outbox: Outbox) -> None:
        self._database, self._outbox = database, outbox
        self.relayed = 0
        with database.judge.begin() as connection:
            self.position = first_position(connection, outbox)
            MARK.claim(connection, None)

    def read(self) -> Page:
        with self._database.judge.connect() as connection:
            page = read(connection, self._outbox, after=self.position, limit=100)
        self.position = page.position
        self.relayed += len(page.rows)
        with self._database.judge.begin() as connection:
            MARK.note(connection, self.relayed)
        return page


def put(database: Database, outbox: Outbox, *values: bytes) -> None:
    for value in values:
        with database.judge.begin() as connection:
            outbox.add(connection, "t", value=value)


def test_a_relay_s_mark_is_found_and_one_that_is_behind_is_refused(database: Database) -> None:
    with database.judge.begin() as connection:
        create(connection, (relays,))
        MARK.claim(connection, None)
    for relayed in (5, 7, 6):  # the last one after a transaction of Kafka that was aborted
        with database.judge.begin() as connection:
            MARK.note(connection, relayed)
    with database.judge.begin() as connection:
        MARK.require(connection, 6)
        MARK.claim(connection, 6)
        with pytest.raises(OffsetGapError, match=r"has relayed 7 rows, and eos_relays says 6.*Fix:"):
            MARK.require(connection, 7)
    with database.judge.begin() as connection, pytest.raises(OffsetGapError, match="eos_relays says 0"):
        RelayMark("g", "o.1", "me").claim(connection, 1)


def test_a_mark_whose_offset_is_gone_from_kafka_is_refused(database: Database) -> None:
    with database.judge.begin() as connection:
        create(connection, (relays,))
        MARK.claim(connection, None)
        MARK.claim(connection, None)  # nothing was read yet
        MARK.note(connection, 3)
    with database.judge.begin() as connection, pytest.raises(OffsetGapError, match=r"has read 3 rows.*Fix:"):
        MARK.claim(connection, None)


def test_a_former_owner_neither_writes_a_mark_nor_passes_for_the_owner(database: Database) -> None:
    other = RelayMark("g", "o.0", "another")
    with database.judge.begin() as connection:
        create(connection, (relays,))
        MARK.claim(connection, None)
        MARK.note(connection, 3)
        other.claim(connection, 3)
        other.note(connection, 9)
    with database.judge.begin() as connection, pytest.raises(FencedError, match="another owner"):
        MARK.note(connection, 4)
    with database.judge.begin() as connection, pytest.raises(FencedError, match="another owner"):
        MARK.require(connection, 3)
    assert database.seen("SELECT owner, relayed FROM eos_relays") == [("another", 9)]


@pytest.mark.parametrize("waiting", [0, 2])
def test_a_database_that_goes_back_behind_a_connection_that_stays_is_refused(
    database: Database, waiting: int
) -> None:
    """A pooler keeps its clients' connections where the server behind it is replaced."""
    outbox = Outbox(MetaData())
    with database.judge.begin() as connection:
        create(connection, (relays, outbox.table))
    source = RelaySource(database.engine(), outbox, Part(), MARK, Limits(5, 5))
    entry = RelayEntry(0, source.claim(None), 1)
    put(database, outbox, b"0", b"1", b"2")
    page = source.read(entry, 100)
    assert len(page.rows) == 3
    database.run("UPDATE eos_relays SET relayed = 1")
    put(database, outbox, *[b"new"] * waiting)
    with pytest.raises(OffsetGapError, match="has relayed 3 rows, and eos_relays says 1"):
        source.read(replace(entry, relayed=3, position=page.position), 100)
    source.close()


@pytest.fixture
def reading(database: Database) -> Iterator[tuple[RelaySource, RelayEntry]]:
    """A source with ten rows, and the entry before them."""
    outbox = Outbox(MetaData())
    with database.judge.begin() as connection:
        create(connection, (relays, outbox.table))
    source = RelaySource(database.engine(), outbox, Part(), MARK, Limits(5, 5))
    entry = RelayEntry(0, source.claim(None), 1)
    put(database, outbox, *(str(n).encode() for n in range(10)))
    yield source, entry
    source.close()


def values(page: Page) -> list[bytes | None]:
    return [row.value for row in page.rows]


def test_a_page_that_was_read_ahead_is_the_next_one_once_those_before_it_are_committed(
    reading: tuple[RelaySource, RelayEntry],
) -> None:
    source, entry = reading
    page = source.read(entry, 4)
    after = replace(entry, relayed=4, position=page.position)
    source.read_ahead(after, 3)
    assert (values(page), values(source.read(after, 4))) == ([b"0", b"1", b"2", b"3"], [b"4", b"5", b"6"])


def test_a_page_that_was_read_ahead_of_a_transaction_that_was_aborted_is_not_used(
    reading: tuple[RelaySource, RelayEntry], database: Database
) -> None:
    source, entry = reading
    page = source.read(entry, 4)
    source.read_ahead(replace(entry, relayed=4, position=page.position), 4)
    assert values(source.read(entry, 4)) == values(page)
    assert database.seen("SELECT relayed FROM eos_relays") == [(4,)]


def test_an_error_of_a_read_ahead_is_raised_where_its_page_is_asked_for_and_the_next_one_is_read(
    reading: tuple[RelaySource, RelayEntry], database: Database
) -> None:
    source, entry = reading
    page = source.read(entry, 4)
    database.run("UPDATE eos_relays SET owner = 'another'")
    after = replace(entry, relayed=4, position=page.position)
    source.read_ahead(after, 4)
    with pytest.raises(FencedError, match="another owner"):
        source.read(after, 4)
    database.run("UPDATE eos_relays SET owner = 'me'")
    assert values(source.read(after, 4)) == [b"4", b"5", b"6", b"7"]


def test_a_copy_without_the_last_commits_is_refused_also_when_its_transactions_have_caught_up(
    server: LocalPostgres,
) -> None:
    """As a replica that becomes the primary. Its rows under old numbers would be taken for relayed ones, and skipped."""
    outbox = Outbox(MetaData())
    database = Database(server.url)
    with database.judge.begin() as connection:
        create(connection, (relays, outbox.table))
    relay = Relay(database, outbox)
    put(database, outbox, b"0", b"1")
    assert len(relay.read().rows) == 2
    server.stop()
    database.judge.dispose()
    copy = server.data.with_name("copy")
    shutil.copytree(server.data, copy)
    server.start()

    put(database, outbox, b"2", b"3", b"4")
    assert len(relay.read().rows) == 3
    committed, position = relay.relayed, OutboxPosition.parse(str(relay.position))
    assert position is not None
    with database.judge.connect() as connection:
        require_same_database(connection, outbox, position)
        MARK.require(connection, committed)
    database.close()

    server.stop()
    shutil.rmtree(server.data)
    copy.rename(server.data)
    server.start()
    copied = Database(server.url)
    with copied.judge.connect() as connection, pytest.raises(OffsetGapError, match="went back"):
        require_same_database(connection, outbox, position)
    put(copied, outbox, *(b"new" for _ in range(20)))
    with copied.judge.connect() as connection:
        require_same_database(connection, outbox, position)  # its numbers say no more
        skipped = 20 - len(read(connection, outbox, after=position, limit=100).rows)
        assert skipped > 0, "the danger that the mark is there for"
        with pytest.raises(OffsetGapError, match="has relayed 5 rows, and eos_relays says 2"):
            MARK.require(connection, committed)
    copied.close()


def test_what_was_marked_survives_a_crash_with_all_that_was_read_also_where_commits_are_asynchronous(
    server: LocalPostgres,
) -> None:
    outbox = Outbox(MetaData())
    database = Database(server.url)
    with database.judge.begin() as connection:
        create(connection, (relays, outbox.table))
    relay = Relay(database, outbox)
    put(database, outbox, b"0", b"1", b"2")
    rows = relay.read().rows
    server.kill()
    server.start()
    database.judge.dispose()
    assert database.seen("SELECT count(*) FROM eos_outbox") == [(len(rows),)] == [(3,)]
    with database.judge.connect() as connection:
        MARK.require(connection, 3)
    database.close()
