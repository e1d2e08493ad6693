"""Session: a loop of the caller's that writes to Kafka."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import cast

from eos.core.block import Transaction
from eos.core.destination import WriterTransaction
from eos.core.owner import ShardOwner
from eos.errors import EosError
from eos.events import Listener, ignore_event
from eos.faces.blocks import BlockSession
from eos.faces.surroundings import SURROUNDINGS
from eos.job import check_topics
from eos.offsets import Partition
from eos.settings import Settings


class Session(BlockSession[Transaction]):
    """Owns one shard: reads its input, and commits output together with how far that input was processed.

    >>> with Session(settings, app="relay", inputs=["payments"], outputs=["ledger"]) as session:  # doctest: +SKIP
    ...     for batch in session:
    ...         with session.transaction(batch) as txn:
    ...             for record in batch:
    ...                 txn.produce("ledger", record.value, key=record.key)

    The app, the group (``settings.group``, else the app's name) and the ordinal (``settings.ownership.ordinal``) make the
    transactional.id: another process that opens the same shard fences this session, and aborts at once what it left open.

    Use it from one thread. An exception may leave any call, that of a signal handler too (Ctrl-C in a notebook): go on with
    the same session, and nothing is skipped or doubled.

    Args:
        settings: how to reach the cluster, ownership, limits, and ``input.start`` for the first time.
        app: first part of the transactional.id; letters, digits, '_' and '-'.
        inputs: the topics to read.
        outputs: every topic that is written to.
        partition: the input partition to own, one of ``ownership.partitions``. Needed with ``ownership.mode = "partition"``,
            where each partition has a session of its own; otherwise the group assigns partitions.
        until_caught_up: end the iteration once the group has committed all that the input held at the beginning.
        stop: ends the iteration when it is set; see :meth:`stop`.
        listener: called with each event (``eos.events``).

    Raises:
        ConfigError: a topic is missing, nothing says where to start, or the group belongs to another app or mode.
        FencedError: another owner has the shard; stop. Also from every later call.
        OffsetGapError: input was deleted before it was processed.
        UnavailableError: the cluster did not answer in time, or until :meth:`stop`.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        app: str,
        inputs: Sequence[str],
        outputs: Collection[str],
        partition: Partition | None = None,
        until_caught_up: bool = False,
        stop: threading.Event | None = None,
        listener: Listener = ignore_event,
    ) -> None:
        check_topics(app, inputs, outputs)
        owner = ShardOwner(
            settings,
            app=app,
            inputs=inputs,
            outputs=outputs,
            partition=partition,
            until_caught_up=until_caught_up,
            stop=stop,
            listener=listener,
            surroundings=SURROUNDINGS,
        )
        block_of = partial(Transaction, outputs=owner.outputs, adds_offsets=False)
        # The transactions of an owner whose destination is Kafka are ShardTransactions.
        super().__init__(owner, cast("Callable[[WriterTransaction | EosError], Transaction]", block_of))
