"""Outbox writers: insert the rows of a trial, in transactions of their own, as an application's processes would.

Each draws its ids before it waits, so transactions commit in another order than their ids; some are rolled back, and some stay open
for long while others begin and end. Some have their number before they insert, as where an application changes a table of its own
first: then numbers are in another order than what depends on what.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

from eos.errors import EosError
from eos.prove.rows_order import RowsOrder
from eos.prove.source import Source
from eos.prove.trial_database import TrialDatabase
from eos.records import OutputRecord

_WRITERS = 4
_ROWS = 8  # of a transaction, at most
_ROLLED_BACK = 0.1  # of the transactions
_NUMBERED_FIRST = 0.1
_NUMBERED_S = (0.1, 0.6)  # before it inserts: others begin and commit
_LONG = 0.02
_LONG_S = (0.5, 3.0)
_SHORT_S = (0.0, 0.05)
_ROOM_S = 0.2
_AGAIN_S = 0.5  # after an error of the database
_END_S = 30.0


class OutboxWriters:
    """Insert rows at a steady rate, past the proxy, until they are stopped or there is no more.

    Args:
        database: that has the outbox.
        outbox: the job's.
        source: of the rows.
        order: notes what depends on what.
        seed: of what becomes of each transaction.
        rate: of rows, in a second.
        room: how many more the job can be given now, when so many were taken.
    """

    def __init__(
        self,
        database: TrialDatabase,
        outbox: Any,
        source: Source,
        order: RowsOrder,
        *,
        seed: int,
        rate: int,
        room: Callable[[int], int],
    ) -> None:
        self._database, self._outbox, self._source, self._order = database, outbox, source, order
        self._every_s, self._room = _WRITERS / rate, room
        self._over = threading.Event()
        self._gate = threading.Condition()
        self._held = False
        self._open = 0
        self._failed: list[str] = []
        self._threads = [
            threading.Thread(target=self._write, args=(Random(f"{seed}/{number}"),), daemon=True)  # noqa: S311 - reproducible, no secret
            for number in range(_WRITERS)
        ]

    def start(self) -> None:
        """Begin to write."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> Sequence[str]:
        """No more rows; returns what went wrong."""
        self._over.set()
        for thread in self._threads:
            thread.join(_END_S)
        return self._failed

    @contextmanager
    def held(self) -> Iterator[None]:
        """No transaction begins while the block runs; those that are open have ended before."""
        with self._gate:
            self._held = True
            self._gate.wait_for(lambda: not self._open)
        try:
            yield
        finally:
            with self._gate:
                self._held = False
                self._gate.notify_all()

    @contextmanager
    def _inside(self) -> Iterator[None]:
        with self._gate:
            self._gate.wait_for(lambda: not self._held)
            self._open += 1
        try:
            yield
        finally:
            with self._gate:
                self._open -= 1
                self._gate.notify_all()

    def _write(self, random: Random) -> None:
        next_at = time.monotonic()
        while not self._over.is_set():
            if self._room(self._source.records) <= 0:
                self._over.wait(_ROOM_S)
                continue
            try:
                with self._inside():
                    rows = self._source.take(random.randint(1, _ROWS))
                    self._transaction(rows, random)
            except EosError:  # the database is down: whether its last commit has happened, the table says
                self._over.wait(_AGAIN_S)
                continue
            except Exception as error:  # noqa: BLE001 - of the user's generator
                self._failed.append(f"the input could not be written: {type(error).__name__}: {error}")
                return
            if not rows:
                return
            next_at = max(next_at + len(rows) * self._every_s, time.monotonic())
            self._over.wait(next_at - time.monotonic())

    def _transaction(self, rows: Sequence[OutputRecord], random: Random) -> None:
        rolled_back, numbered_first = random.random() < _ROLLED_BACK, random.random() < _NUMBERED_FIRST
        waits_s = random.uniform(*(_LONG_S if random.random() < _LONG else _SHORT_S))
        with self._database.connected() as connection:
            transaction = connection.begin()
            if numbered_first:
                connection.exec_driver_sql("SELECT pg_current_xact_id()")
                self._over.wait(random.uniform(*_NUMBERED_S))
            with self._order.noted(connection):
                for row in rows:
                    self._outbox.add(connection, row.topic, row.key, row.value, row.headers)
                self._over.wait(waits_s)
                (transaction.rollback if rolled_back else transaction.commit)()
