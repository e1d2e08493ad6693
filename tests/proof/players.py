"""Players: an owner of one input partition that does transaction after transaction by hand, ours and a naive one.

Values are numbers; each record is copied to the output partition that a script names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from eos import AbortableError, AbortTransaction, Job, OutputRecord, Session, Settings
from eos.base.deadline import Deadline
from eos.core.block import Transaction
from eos.core.pipeline import Pipeline
from eos.errors import EosError
from eos.events import Listener, ignore_event
from eos.records import InputBatch, by_topic
from eos.runner.at_work import AtWork
from eos.runner.loop import Loop
from eos.shards import PartitionShard, Shard
from tests.support.sessions import producer_of, session_for, wait_delivered

WAIT_S = 20.0


class Player(Protocol):
    """Whoever copies ``source`` to ``out``."""

    errors: tuple[type[Exception], ...]

    def open(self) -> None: ...

    def start(self, records: int) -> None:
        """A transaction begins that will have so many records."""

    def write(self, records: int, partition: int, *, delivered: bool = True) -> None:
        """Copy the next of them, and wait until the broker has them, if they can be delivered."""

    def end(self, *, committed: bool) -> None:
        """Commit with the offsets, or abort and go back."""

    def recover(self, error: Exception) -> None:
        """After an error of any of these calls."""

    def restart_and_finish(self) -> None:
        """The process is replaced, and its replacement copies what is left."""

    def close(self) -> None: ...


class ByLoop:
    """The session of `eos.run`, and at the end its loop.

    Args:
        settings: of the cluster as it sees it.
        shard: what it owns.
        source: the input, of one partition.
        out: the output.
        listener: told every event.
    """

    errors: tuple[type[Exception], ...] = (EosError,)

    def __init__(
        self, settings: Settings, shard: Shard, source: str, out: str, listener: Listener = ignore_event
    ) -> None:
        self._settings, self._shard, self._source, self._out = settings, shard, source, out
        self._listener = listener
        self._session = session_for(settings, shard, [source], listener=listener)

    def open(self) -> None:
        self._session.open()

    def start(self, records: int) -> None:
        pass

    def write(self, records: int, partition: int, *, delivered: bool = True) -> None:
        deadline = Deadline(WAIT_S)
        while records:
            if deadline.passed:
                raise TimeoutError("no input came")
            if batch := self._session.fetch(records, 0.2, 0.01):
                copies = [OutputRecord(self._out, one.value, partition=partition) for one in batch]
                self._session.stage(batch, by_topic(copies))
                records -= len(batch)
        self._session.produce()
        if delivered:
            wait_delivered(producer_of(self._session.owner)._client)

    def end(self, *, committed: bool) -> None:
        if committed:
            self._session.owner.committer.commit_soon()
            self._session.owner.committer.join(WAIT_S)
        else:
            self._session.owner.recover(AbortableError("the script aborts"))

    def recover(self, error: Exception) -> None:
        assert isinstance(error, EosError)
        self._session.owner.recover(error)

    def restart_and_finish(self) -> None:
        self._session.close()
        finish_by_loop(self._settings, self._shard, self._source, self._out, self._listener)

    def vanish(self) -> None:
        """Leave a transaction open, as a process that is killed does."""
        producer_of(self._session.owner)._drop_client()
        producer_of(self._session.owner)._open_transaction = None
        self._session.owner.committer._filling = None
        self._session.close()

    def close(self) -> None:
        self._session.close()


class ByOwnLoop:
    """The public session, block by block. Arguments as `ByLoop`."""

    errors: tuple[type[Exception], ...] = (EosError,)

    def __init__(
        self, settings: Settings, shard: Shard, source: str, out: str, listener: Listener = ignore_event
    ) -> None:
        self._settings, self._shard, self._source, self._out = settings, shard, source, out
        self._listener = listener
        self._batch = InputBatch([])
        self._written = 0
        self._session = Session(
            settings.model_copy(update={"group": shard.group}),
            app=shard.app,
            inputs=[source],
            outputs=[out],
            partition=shard.partition if isinstance(shard, PartitionShard) else None,
            listener=listener,
        )

    def open(self) -> None:
        self._session.open()

    def start(self, records: int) -> None:
        deadline = Deadline(WAIT_S)
        while not (batch := self._session.fetch(records, 0.5)):
            if deadline.passed:
                raise TimeoutError("no input came")
        self._batch, self._written = batch, 0
        self._block = self._session.transaction(batch)
        self._txn: Transaction = self._block.__enter__()

    def write(self, records: int, partition: int, *, delivered: bool = True) -> None:
        values = self._batch.values[self._written : self._written + records]
        self._written += len(values)
        for value in values:
            self._txn.produce(self._out, value, partition=partition)
        if delivered:
            wait_delivered(self._txn._begun()._client)

    def end(self, *, committed: bool) -> None:
        if committed:
            self.write(
                len(self._batch) - self._written, 3
            )  # what a short fetch has left over, or brought too much
            self._block.__exit__(None, None, None)
        else:
            self.recover(AbortTransaction())

    def recover(self, error: Exception) -> None:
        self._block.__exit__(type(error), error, None)

    def restart_and_finish(self) -> None:
        self._session.close()
        finish_by_loop(self._settings, self._shard, self._source, self._out, self._listener)

    def close(self) -> None:
        self._session.close()


def finish_by_loop(settings: Settings, shard: Shard, source: str, out: str, listener: Listener) -> None:
    """Copy all that is left, by the loop of `eos.run`."""
    job = Job(
        name=shard.app, inputs=[source], outputs=[out], transform=lambda r: [OutputRecord(out, r.value)]
    )
    session: Pipeline = session_for(settings, shard, [source], until_caught_up=True, listener=listener)
    with AtWork(listener) as at_work:
        Loop(job.bound(), session, settings, at_work, listener=listener).run()


class Naive:
    """The loop of the textbooks: one transactional.id, an abort goes back, after a fatal error the next process goes on.

    Args:
        bootstrap: through the proxy.
        transactional_id: its id.
        group: whose offsets it commits.
        source: the input, of one partition.
        out: the output.
        sends_offsets_first: before an abort too.
    """

    errors: tuple[type[Exception], ...] = (KafkaException,)

    def __init__(
        self,
        bootstrap: str,
        transactional_id: str,
        group: str,
        source: str,
        out: str,
        *,
        sends_offsets_first: bool,
    ) -> None:
        self._servers = {"bootstrap.servers": bootstrap, "log_level": 0}
        self._id, self._group, self._source, self._out = transactional_id, group, source, out
        self._sends_offsets_first = sends_offsets_first

    def open(self) -> None:
        self._consumer = Consumer(
            {
                **self._servers,
                "group.id": self._group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        self._producer = Producer(
            {**self._servers, "transactional.id": self._id, "transaction.timeout.ms": 30_000}
        )
        self._producer.init_transactions(WAIT_S)
        here = TopicPartition(self._source, 0)
        _, self._last = self._consumer.get_watermark_offsets(here, WAIT_S)
        (stored,) = self._consumer.committed([here], WAIT_S)
        self._committed = self._at = max(0, stored.offset)
        self._consumer.assign([TopicPartition(self._source, 0, self._at)])

    def start(self, records: int) -> None:
        self._producer.begin_transaction()

    def write(self, records: int, partition: int, *, delivered: bool = True) -> None:
        deadline = Deadline(WAIT_S)
        while records:
            if deadline.passed:
                raise TimeoutError("no input came")
            for message in self._consumer.consume(records, 0.2):
                if message.error() is None:
                    self._producer.produce(self._out, message.value(), partition=partition)
                    self._at = (message.offset() or 0) + 1
                    records -= 1
        if delivered:
            self._producer.flush(WAIT_S)

    def end(self, *, committed: bool) -> None:
        if committed or self._sends_offsets_first:
            behind = [TopicPartition(self._source, 0, self._at)]
            self._producer.send_offsets_to_transaction(
                behind, self._consumer.consumer_group_metadata(), WAIT_S
            )
        if committed:
            self._producer.commit_transaction(WAIT_S)
            self._committed = self._at
        else:
            self._producer.abort_transaction(WAIT_S)
            self._at = self._committed
            self._consumer.seek(TopicPartition(self._source, 0, self._at))

    def recover(self, error: Exception) -> None:
        self.close()
        self.open()

    def restart_and_finish(self) -> None:
        self.recover(RuntimeError())
        while self._at < self._last:
            self.start(0)
            self.write(min(10, self._last - self._at), 0)
            self.end(committed=True)

    def close(self) -> None:
        self._consumer.close()
        self._producer.purge()


PlayerMaker = Callable[[str], Player]
