"""TransactionalProducer: output without input, in transactions, for code that has no input topics."""

from __future__ import annotations

from eos.base.opened import Opened
from eos.core.block import Transaction
from eos.core.producer import ShardProducer
from eos.events import Listener, ignore_event
from eos.home import end_elsewhere
from eos.settings import Settings
from eos.shards import OrdinalShard


class TransactionalProducer(Opened):
    """Writes records that become visible together or never. With input, use :class:`eos.Session`.

    >>> with TransactionalProducer(settings, app="payments") as producer:       # doctest: +SKIP
    ...     with producer.transaction() as txn:
    ...         txn.produce("payments", b"...", key=b"merchant-7")

    The app, the group (``settings.group``, else the app's name) and the ordinal make the transactional.id. Another process
    that opens the same id fences this producer, and aborts at once what it left open.

    One block at a time: threads need a producer each, with an ordinal of its own, or a lock around the block.

    Args:
        settings: how to reach the cluster, and the transaction's limits.
        app: first part of the transactional.id; letters, digits, '_' and '-'.
        listener: called with each event (``eos.events``).

    Raises:
        ConfigError: librdkafka or the cluster refuses a setting (from open on).
        FencedError: another owner has the transactional.id; also at every later use.
        UnavailableError: the cluster did not answer in time.
    """

    def __init__(self, settings: Settings, *, app: str, listener: Listener = ignore_event) -> None:
        shard = OrdinalShard(app, settings.group_for(app), settings.ordinal)
        self._producer = ShardProducer(settings, shard, listener=listener, by_epoch=True)

    @property
    def transactional_id(self) -> str:
        """The stable name under which the cluster knows this producer."""
        return self._producer.transactional_id

    def __exit__(self, *_: object) -> None:
        end_elsewhere(self._producer.home)
        self.close()

    def __repr__(self) -> str:
        return f"<TransactionalProducer {self.transactional_id} {self._producer.state}>"

    def open(self) -> None:
        """Fence every older producer of the id and end what it left open. Does nothing if open already."""
        self._producer.open()

    def close(self) -> None:
        """Abort what is open, and close the client."""
        self._producer.close()

    def transaction(self) -> Transaction:
        """A new transaction: a block that begins when it is entered, and commits when it is left.

        After an error that lets the caller begin anew (AbortableError, ReopenError) the next one is on a fresh instance,
        if requests of the previous one may still arrive. After a commit without an answer, or a transaction that expired, nothing shows
        whether another owner came since: ReopenError says so, and a new TransactionalProducer claims the id anew.

        Raises:
            UsageError: the last transaction is still open (in this thread or another one), the producer is closed, or it was made
                in the process that this one is a fork of.
            FencedError: another owner has the transactional.id.
            ReopenError: nothing shows whether another owner came since; the producer is closed.
        """
        return self._producer.transaction()
