"""Committer: the transactions of an owner, and the offsets that go with each: open, in flight, or with an outcome yet to be learned.

A transaction takes the same way whether a block of the caller's fills it or the built-in loop::

    begin → produce → ledger.claim(offsets) → seal → commit

A block commits here and now (:meth:`Committer.commit`), the loop in a helper thread (:meth:`Committer.commit_soon` and
:meth:`Committer.join`). What is committed is settled in the ledger by the thread that reads.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress

from eos import retry
from eos.core.consumer import ShardConsumer
from eos.core.destination import OffsetNote, Writer, WriterTransaction
from eos.core.ledger import Ledger
from eos.core.transaction import TransactionState
from eos.core.tries import Tries
from eos.errors import EosError, RebalancedError, UsageError
from eos.kafka.group_offsets import GroupMetadata
from eos.offsets import OffsetVector


class Committer:
    """Begins, fills and ends an owner's transactions, one after the other.

    Used from the owner's thread, but for :meth:`give_up` and what :meth:`prepared_commit` returns.

    Args:
        writer: makes the shard's transactions.
        consumer: the owner's: a member of its group.
        ledger: the owner's.
        tries: told of progress.

    Attributes:
        notes: told of each event, in this order.
        commit_seconds: how long the last commit took that was joined.
    """

    def __init__(self, writer: Writer, consumer: ShardConsumer, ledger: Ledger, tries: Tries) -> None:
        self.writer = writer
        self._consumer = consumer
        self._ledger = ledger
        self._tries = tries
        self.notes: list[OffsetNote] = []
        self.commit_seconds = 0.0
        self._executor: ThreadPoolExecutor | None = None
        self._filling: WriterTransaction | None = None
        self._in_flight: tuple[WriterTransaction, Future[None]] | None = None  # by the executor
        self._unsettled: WriterTransaction | None = None  # until what became of it is known here too
        self._late_group: GroupMetadata | None = None

    def close(self) -> None:
        """Let the writer go, which aborts what is open."""
        self.writer.close()
        if self._executor is not None:
            self._executor.shutdown()

    def give_up(self) -> None:
        """The process has to end: stop waiting for a call in flight; the next owner settles it."""
        self.writer.give_up()

    @property
    def fenced(self) -> bool:
        """Whether another owner has the shard."""
        return self.writer.is_fenced

    @property
    def filling(self) -> WriterTransaction | None:
        """The open transaction, while records may be produced into it."""
        return self._filling

    @property
    def committing(self) -> bool:
        """Whether a commit is in flight."""
        return self._in_flight is not None

    @property
    def idle(self) -> bool:
        """Whether no transaction is open or in flight."""
        return self._filling is None and self._in_flight is None

    @property
    def open_s(self) -> float:
        """For how many seconds the oldest transaction has been open, or committing; 0 if there is none."""
        transaction = self._in_flight[0] if self._in_flight else self._filling
        return 0.0 if transaction is None else transaction.open_s

    @property
    def settling_s(self) -> float:
        """For how many seconds more a transaction that begins would wait, while there is time to fetch."""
        return self.writer.settling_s

    def begin(self) -> WriterTransaction:
        """Begin a transaction, which is left to be filled. An unanswered commit is settled before."""
        self.reopen_if_over()
        self._unsettled = transaction = self.writer.new_transaction()
        transaction.begin()
        self._ledger.claims_begin()
        for note in self.notes:
            note.begins()
        self._late_group = None
        self._filling = transaction
        return transaction

    def commit(self) -> None:
        """Commit the open transaction here and now, if there is one."""
        transaction = self._seal()
        if transaction is not None:
            transaction.commit()
            self._committed(transaction)

    def commit_soon(self) -> None:
        """Hand the open transaction to a helper thread; :meth:`join` its commit."""
        transaction = self._seal()
        if transaction is not None:
            self._hand_over(transaction)

    def prepared_commit(self) -> Callable[[], None] | None:
        """As :meth:`commit_soon`, for another thread: to be called, or not, before this thread uses the owner again.

        What it sends is read here, where polls happen, and not when it is late: a member that its group has dropped meanwhile
        would get metadata without a generation, which a classic group accepts from any client.
        """
        transaction = self._filling
        if transaction is None:
            return None
        offsets, group = self._offsets_of(transaction), self._group_if_late()

        def commit() -> None:
            transaction.add_offsets(offsets, group)
            self._filling = None
            self._hand_over(transaction)

        return commit

    def commit_done(self) -> bool:
        """Whether a commit is in flight and has come back, well or not."""
        return self._in_flight is not None and self._in_flight[1].done()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the commit in flight; its errors are raised here. False: it is still in flight.

        No exception says that: a handler of SIGALRM raises TimeoutError as well, and may do so between any two lines here.
        """
        if self._in_flight is None:
            return True
        transaction, future = self._in_flight
        if not wait([future], timeout_s).done:
            return False
        if (error := future.exception()) is not None:
            self._in_flight = None
            raise error
        self.commit_seconds = transaction.commit_seconds
        # Noted before it is let go: a commit that was not noted would be made again after the next rewind.
        self._committed(transaction)
        self._in_flight = None
        return True

    def join_quietly(self) -> None:
        """Wait for the commit in flight. If it has not ended well, its input is read again."""
        try:
            self.join()
        except EosError:
            self._consumer.rewind_later()

    def abort(self, reason: BaseException) -> None:
        """Abort what is being filled, if anything."""
        transaction, self._filling = self._filling, None
        if transaction is not None and transaction.state is TransactionState.OPEN:
            transaction.abort(reason)

    def commit_only(self, offsets: OffsetVector) -> None:
        """Commit these offsets, and no other ones, in a transaction of their own."""
        transaction = self.begin()
        transaction.add_offsets(offsets, self._consumer.group_metadata())
        self._filling = None
        transaction.commit()
        self._committed(transaction)

    def settle(self) -> None:
        """After an exception of the caller, or of a signal handler, has left a transaction: learn what became of it."""
        transaction = self._unsettled
        if transaction is None:
            return
        self._filling = None
        transaction.settle(UsageError("the block was left"))
        # That another member has a partition is raised by the next fetch; the next transaction reopens the writer.
        with suppress(RebalancedError):
            self.reopen_if_over()
        # A commit may have happened although its answer never reached this session; the writer has the outcome.
        self._take_up_commits()
        if transaction.state is not TransactionState.COMMITTED:
            self._consumer.rewind_later()
        self._unsettled = None

    def left_by(self, error: BaseException) -> None:
        """The caller has left a transaction, or its begin, with this exception."""
        self.abort(error)
        if self._unsettled is None:
            self._consumer.rewind_later()  # the begin was left: nothing is to be settled, and the batch is read again
        with suppress(EosError):  # then it stays unsettled, and the next fetch raises it
            self.settle()

    def reopen_if_over(self) -> None:
        """Reopen a writer that cannot go on: an unanswered commit is known after it."""
        if self.writer.is_over:
            self.writer.reopen()
            self._tries.answered()
            self._take_up_commits()

    def let_go(self) -> None:
        """Nothing is left to be learned of the last transaction: it was aborted, and its input will be read again."""
        self._unsettled = None

    def group_changes(self) -> None:
        """The member gets another generation."""
        self._late_group = None

    # --- inside ------------------------------------------------------------------------------------

    def _seal(self) -> WriterTransaction | None:
        """The open transaction with its offsets added, no longer to be filled. The group's metadata is read here, where polls happen."""
        transaction = self._filling
        if transaction is not None:
            if offsets := self._offsets_of(transaction):
                transaction.add_offsets(offsets, self._consumer.group_metadata())
            self._filling = None
        return transaction

    def _offsets_of(self, transaction: WriterTransaction) -> OffsetVector:
        """The offsets of what the open transaction holds, and of those that are due; aborts what has none to send."""
        offsets, foreign = self._ledger.claimed()
        if foreign or (transaction.records_in and not offsets):
            # The partition's next owner would produce output again whose offsets are missing.
            error = RebalancedError(f"{foreign or 'the partitions read'} are not ours any more: aborted")
            self.abort(error)
            raise error
        return self._ledger.due().merged(offsets)

    def _group_if_late(self) -> GroupMetadata:
        """The member's metadata for a commit beside the caller's code: read once for a transaction, and after a rebalance.

        librdkafka's main thread answers, in 0.2 ms: for each fetch that was a tenth of the time of a loop that catches up. If the
        member has another generation by then, the coordinator refuses the offsets.
        """
        if self._late_group is None:
            self._late_group = self._consumer.group_metadata()
        return self._late_group

    def _hand_over(self, transaction: WriterTransaction) -> None:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="eos-commit")
        self._in_flight = (transaction, self._executor.submit(lambda: self._commit_beside(transaction)))

    def _commit_beside(self, transaction: WriterTransaction) -> None:
        with retry.given_up_when(self.writer.given_up):
            transaction.commit()

    def _committed(self, transaction: WriterTransaction) -> None:
        if not transaction.offsets:
            self._tries.succeeded()
        self._take_up_commits()
        self._unsettled = None

    def _take_up_commits(self) -> None:
        """What was committed since the last call is not read again."""
        if committed := self._ledger.unsettled:
            self._tries.succeeded()
            stored = self._ledger.stored_of(committed)
            for note in self.notes:
                self._ledger.make_due(note.committed(stored))
            # Last: if an exception of a signal handler comes in between, the next call does all of it again.
            self._consumer.settle()
