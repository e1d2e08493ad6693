"""How the demonstration sees transactions from outside, open ones and those that a takeover has ended."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Protocol

from sqlalchemy import Engine, text

from eos.local import LocalKafka
from eos.ops.check.transactions import TransactionDescription, TransactionsView
from eos.prove.log import ABORT, batches_in


def is_writing(state: TransactionDescription, outputs: Collection[str]) -> bool:
    """Whether a transaction is open that has begun to write output: its abort then leaves a marker there.

    The offsets' partition may be added to it first, while the brokers still end the last one in the outputs.
    """
    topics = {partition.topic for partition in state.partitions}
    return state.state == "Ongoing" and not topics.isdisjoint(outputs)


def aborted(states: Iterable[TransactionDescription], outputs: Collection[str], kafka: LocalKafka) -> int:
    """How many of these open transactions a takeover has aborted, by the abort markers on the broker's disk.

    A takeover's carry an epoch above the one that was fenced. A marker is written once per partition of a transaction.
    """
    fenced = {state.producer_id: state.producer_epoch for state in states}
    markers = {
        (batch.producer_id, batch.epoch)
        for batches in batches_in(kafka, outputs).values()
        for batch in batches
        if batch.marker == ABORT and batch.producer_id in fenced
    }
    return sum(epoch > fenced[producer] for producer, epoch in markers)


class Inside(Protocol):
    """How it is seen from outside that a stopped process is inside a transaction."""

    def is_open(self) -> bool:
        """Whether it is; what was seen is kept."""

    def was_undone(self) -> bool:
        """Whether that transaction was aborted or rolled back since."""


class InKafka:
    """By the coordinator of a shard's transactional.id.

    Args:
        view: of the cluster.
        shard: the transactional.id.
        outputs: the topics that it writes to.
        kafka: whose log has the abort markers.
    """

    def __init__(
        self,
        view: TransactionsView,
        shard: str,
        outputs: Collection[str],
        kafka: LocalKafka,
    ) -> None:
        self._view = view
        self._shard = shard
        self._outputs = outputs
        self._kafka = kafka
        self._seen: TransactionDescription | None = None

    def is_open(self) -> bool:
        self._seen = self._view.describe([self._shard])[self._shard]
        return is_writing(self._seen, self._outputs)

    def was_undone(self) -> bool:
        return self._seen is not None and aborted([self._seen], self._outputs, self._kafka) > 0


class InPostgres:
    """By the server: a transaction that has a number has written something, and an idle one waits for its client."""

    _OPEN = """
        SELECT backend_xid::text FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = :name AND state = 'idle in transaction'
            AND backend_xid IS NOT NULL
    """

    def __init__(self, engine: Engine, application_name: str) -> None:
        self._engine = engine
        self._name = application_name
        self._number: str | None = None

    def is_open(self) -> bool:
        with self._engine.connect() as connection:
            self._number = connection.execute(text(self._OPEN), {"name": self._name}).scalar()
        return self._number is not None

    def was_undone(self) -> bool:
        with self._engine.connect() as connection:
            status = text("SELECT pg_xact_status(CAST(:number AS xid8))")
            return connection.execute(status, {"number": self._number}).scalar() == "aborted"


class InSqlite:
    """By the journal beside the file: its removal is the commit, and the next process that finds it rolls back."""

    def __init__(self, engine: Engine) -> None:
        self._journal = Path(f"{engine.url.database}-journal")
        self._seen = False

    def is_open(self) -> bool:
        self._seen = self._journal.exists() and self._journal.stat().st_size > 0
        return self._seen

    def was_undone(self) -> bool:
        return self._seen and not self._journal.exists()
