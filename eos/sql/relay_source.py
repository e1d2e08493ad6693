"""RelaySource: an outbox as a relay sees it: pages of rows behind a position, each marked in the database once it is read."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import NamedTuple

from sqlalchemy import Connection, Engine

from eos.errors import UnclassifiedError
from eos.sql.classify import classify
from eos.sql.dialect import dialect_of
from eos.sql.limits import Limits, limit
from eos.sql.meaning import meaning, refused_text
from eos.sql.outbox import Outbox
from eos.sql.outbox_position import OutboxPosition
from eos.sql.outbox_read import Page, Part, end_position, first_position, read, require_same_database
from eos.sql.relay_entry import RelayEntry
from eos.sql.relay_mark import RelayMark
from eos.sql.tables import RELAY, check


class _Ahead(NamedTuple):
    """A page that is read before it is asked for, and how many rows, up to which position, are relayed then."""

    relayed: int
    after: OutboxPosition
    page: Future[Page]


class RelaySource:
    """One connection to the outbox's database. A page and its mark are read and written by the same one.

    A connection that is made anew may lead to another server, which lacks the last commits: it is looked at first.

    Args:
        engine: to the database.
        outbox: the table.
        part: which rows.
        mark: the relay's row.
        limits: of each transaction.

    Raises:
        FencedError: another owner has claimed the mark.
        OffsetGapError: the database went back.
    """

    def __init__(self, engine: Engine, outbox: Outbox, part: Part, mark: RelayMark, limits: Limits) -> None:
        self._engine = engine
        self._outbox = outbox
        self._part = part
        self._mark = mark
        self._limits = limits
        self._connection: Connection | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="eos-relay")
        self._ahead: _Ahead | None = None

    def open(self) -> None:
        """Look whether the database and its tables are as they must be.

        Raises:
            ConfigError: they are not.
        """
        with self._transaction() as connection:
            dialect = dialect_of(connection)
            check(connection, (self._outbox.table, *RELAY))
            self._part.require(dialect)

    def claim(self, entry: RelayEntry | None) -> OutboxPosition:
        """Take the mark over; returns the position to go on from.

        Args:
            entry: what Kafka has committed.
        """
        with self._transaction() as connection:
            if entry is None:
                position = first_position(connection, self._outbox)
            else:
                position = entry.position
                require_same_database(connection, self._outbox, position)
            self._mark.claim(connection, None if entry is None else entry.relayed)
        return position

    def read_by_another(self) -> int | None:
        """How many rows were read, if another owner has the mark by now."""
        with self._transaction() as connection:
            return self._mark.read_by_another(connection)

    def end(self) -> OutboxPosition:
        """The position behind every row that is committed now."""
        with self._transaction() as connection:
            return end_position(connection, self._outbox)

    def read(self, entry: RelayEntry, max_rows: int) -> Page:
        """The next rows behind the committed position, marked as read; none: there were none when this was called.

        Raises:
            AbortableError: another try may put it right.
            UnclassifiedError: the database refuses a statement.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            page = ahead.page.result  # waited for in any case: there is one connection
            if (ahead.relayed, ahead.after) == (entry.relayed, entry.position):
                return page()
            with suppress(Exception):  # of a page that is not used
                page()
        return self._page(entry, max_rows)

    def read_ahead(self, entry: RelayEntry, max_rows: int) -> None:
        """Read the rows behind a position that is about to be committed, in another thread.

        They are what the next `read` returns if it was committed; else they are read again later. Their mark is ahead of what is
        committed until then, as that of any page is.
        """
        page = self._thread.submit(self._page, entry, max_rows)
        self._ahead = _Ahead(entry.relayed, entry.position, page)

    def _page(self, entry: RelayEntry, max_rows: int) -> Page:
        try:
            return self._read(entry, max_rows)
        except Exception as error:
            if (verdict := classify(error)) is None:
                raise
            if (meant := meaning(error)) is not None:
                raise meant from meant.__cause__
            raise UnclassifiedError(refused_text(verdict), code=verdict.code or None) from error

    def _read(self, entry: RelayEntry, max_rows: int) -> Page:
        if self._connection is None:
            with self._transaction() as connection:
                require_same_database(connection, self._outbox, entry.position)
        with self._transaction() as connection:
            page = read(connection, self._outbox, after=entry.position, limit=max_rows, part=self._part)
            # In the same transaction: a pooler may lead the next one to another server, which lacks the last commits.
            self._mark.require(connection, entry.relayed)
            if page.rows:
                self._mark.note(connection, entry.relayed + len(page.rows))
        return page

    def close(self) -> None:
        """Let go of the connection, once nothing is read any more."""
        self._thread.shutdown(cancel_futures=True)
        self._let_go()

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # of a connection that is lost
                connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        try:
            if self._connection is None:
                self._connection = self._engine.connect()
            with self._connection.begin():
                limit(self._connection, self._limits)
                yield self._connection
        except BaseException:
            # Whatever it was: the next one looks first whether it is at the same database.
            self._drop()
            raise

    def _drop(self) -> None:
        if self._connection is not None:
            with suppress(Exception):
                self._connection.invalidate()
        self._let_go()
