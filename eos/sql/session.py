"""SqlSession: a loop of the caller's that writes to a database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, cast

from sqlalchemy import Connection, Engine

from eos.core.destination import WriterTransaction
from eos.core.owner import ShardOwner
from eos.errors import EosError
from eos.events import Listener, ignore_event
from eos.faces.blocks import BlockSession
from eos.job import check_topics
from eos.offsets import Partition
from eos.settings import Settings
from eos.sql.destination import ToDatabase, surroundings_of
from eos.sql.engine import engine_of
from eos.sql.transaction import SqlTransaction
from eos.sql.waiting import as_before_in_the_pool


class SqlSession(BlockSession[Connection]):
    """Owns one shard: reads its input, and commits rows of a database together with how far that input was processed.

    >>> with SqlSession(settings, app="refunds-table", inputs=["refunds-emitted"], engine=engine) as session:  # doctest: +SKIP
    ...     for batch in session:
    ...         with session.transaction(batch) as connection:
    ...             connection.execute(insert(refunds), rows_of(batch))

    The position of each partition is a row of ``eos_progress``, in the database of the rows: ``eos sql tables --apply`` makes that
    table. The group in Kafka only deals partitions out.

    Leaving the block commits rows and position in one transaction. What a new transaction may put right (a serialization failure, a
    deadlock, a lost connection, a rebalance) ends the block quietly, and the batch comes again. Any other exception of the block
    rolls back, and goes on untouched.

    Args:
        settings: how to reach the cluster and the database, ownership, limits, and ``input.start`` for the first time.
        app: the job's name: positions belong to it.
        inputs: the topics to read.
        engine: to PostgreSQL (psycopg) or SQLite; by default that of ``sql.url``.
        partition: as of `eos.Session`.
        until_caught_up: as of `eos.Session`.
        stop: ends the iteration when it is set.
        listener: called with each event (``eos.events``).

    Raises:
        ConfigError: tables are missing, a topic is missing, nothing says where to start, or the positions belong to another job.
        FencedError: another owner has a partition; stop. Also from every later call.
        OffsetGapError: input was deleted before it was processed, or a position went back.
        UnavailableError: the cluster or the database did not answer in time.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        app: str,
        inputs: Sequence[str],
        engine: Engine | None = None,
        partition: Partition | None = None,
        until_caught_up: bool = False,
        stop: threading.Event | None = None,
        listener: Listener = ignore_event,
    ) -> None:
        check_topics(app, inputs, None)
        if engine is None:
            destination = ToDatabase(engine_of(settings, app=app), own_engine=True)
        else:
            as_before_in_the_pool(engine)
            destination = ToDatabase(engine, own_engine=False)
        owner = ShardOwner(
            settings,
            app=app,
            inputs=inputs,
            outputs=(),
            partition=partition,
            until_caught_up=until_caught_up,
            stop=stop,
            listener=listener,
            surroundings=surroundings_of(destination),
        )
        # The transactions of an owner whose destination is a database are SqlTransactions.
        super().__init__(owner, cast("Callable[[WriterTransaction | EosError], Connection]", _connection_of))


def _connection_of(transaction: SqlTransaction | EosError) -> Any:
    return _NoConnection(transaction) if isinstance(transaction, EosError) else transaction.connection


class _NoConnection:
    """In the place of the connection of a block that could not begin: its first use raises why, and the block ends with that."""

    def __init__(self, error: EosError) -> None:
        self._error = error

    def __getattr__(self, _: str) -> NoReturn:
        raise self._error
