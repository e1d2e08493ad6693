"""BlockSession: a loop of the caller's over an owner: fetch a batch, fill a transaction in a block, repeat.

It decides what an error means: it rewinds and tries again, a bounded number of times, where a new transaction may succeed, and raises
what the caller has to decide. What stands in a block is said by the face: `eos.Session` writes to Kafka, `eos.sql.SqlSession` to a
database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Self, TypeVar

from eos.core.destination import WriterTransaction
from eos.core.fetched import FetchedBatch
from eos.core.owner import ShardOwner
from eos.errors import (
    AbortableError,
    AbortTransaction,
    CommitOutcomeUnknownError,
    EosError,
    RebalancedError,
    ReopenError,
    RetriableError,
    UsageError,
    reason_of,
)
from eos.events import Lag
from eos.home import end_elsewhere, refuse_elsewhere
from eos.offsets import OffsetVector
from eos.records import InputBatch
from eos.shards import Shard

Block = TypeVar("Block")

_WAIT_S = 0.2  # how late a stop is noticed without input


class BlockSession(Generic[Block]):
    """A session whose blocks are filled through a ``Block``. Errors are those of `eos.Session`.

    Args:
        owner: not yet open.
        block_of: makes what the caller fills. Of a transaction that could not begin it is given the error, which is to be raised by
            each call.
    """

    def __init__(self, owner: ShardOwner, block_of: Callable[[WriterTransaction | EosError], Block]) -> None:
        self._owner = owner
        self._block_of = block_of
        self._at_work = ""  # the call of this session that is; a handler cannot run in an assignment
        self._in_block = False

    # --- life --------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        end_elsewhere(self._owner.home)
        self.close("" if error is None else reason_of(error))

    def open(self) -> None:
        """Fence every older owner of the shard and end what it left open; then read the committed offsets."""
        refuse_elsewhere(self._owner.home, "open()")
        self._owner.open()

    def close(self, reason: str = "") -> None:
        """End what is open, and leave. An open transaction is aborted.

        Raises:
            UsageError: inside a fetch, a begin or a commit: by a listener, a signal handler or another thread; or in a fork.
        """
        refuse_elsewhere(self._owner.home, "close()")
        self._refuse_inside_a_call("close")
        self._owner.close(reason)

    def stop(self) -> None:
        """End the iteration after the block that runs now. A signal handler may call this, and any thread."""
        self._owner.stopped.set()

    @property
    def ended(self) -> bool:
        """Whether the iteration is over: stopped, or caught up."""
        return self._owner.ended

    @property
    def shard(self) -> Shard:
        """What this session owns; ``shard.transactional_id`` names it at the brokers."""
        return self._owner.shard

    @property
    def committed_offsets(self) -> OffsetVector:
        """Per owned partition the next offset to process, as this session has committed it or taken it over."""
        return self._owner.ledger.committed

    def lag(self) -> Lag:
        """How far this session's commits are behind, as of its last fetches."""
        return self._owner.lag()

    # --- reading and committing ----------------------------------------------------------------------

    def __iter__(self) -> Iterator[InputBatch]:
        """The input, batch by batch, until :attr:`ended`. Give each batch to :meth:`transaction`, in their order."""
        if self._owner.ledger.outstanding:
            # The loop was left, with a batch that the caller's variable may still hold.
            self._owner.consumer.rewind_later()
        while not self.ended:
            if batch := self.fetch():
                yield batch

    def fetch(self, max_records: int | None = None, timeout_s: float = _WAIT_S) -> InputBatch:
        """The next input records; none if there are none in time, or the session had to rewind.

        Args:
            max_records: by default ``input.fetch_records``.
            timeout_s: how long to wait for the first record; more are collected for ``transaction.interval_ms``.

        Raises:
            UsageError: inside a transaction block: its records and this batch could not be distinguished.
            EosError: an error that no retry resolves, or the last try that the policy allows.
        """
        self._refuse_inside_block("fetch")
        self._refuse_inside_a_call("fetch")
        owner, settings = self._owner, self._owner.settings
        try:
            self._at_work = "a fetch"
            owner.committer.settle()
            owner.ledger.require_kept()
            owner.commit_offsets_alone()
            owner.look_whether_caught_up()
            if owner.caught_up:
                return InputBatch([])
            return owner.fetch(
                max_records or settings.input.fetch_records,
                timeout_s,
                min(timeout_s, settings.transaction.interval_s),
            )
        except EosError as error:
            with owner.naming_rivals():
                owner.go_on_after(error)
            return InputBatch([])
        finally:
            self._at_work = ""

    @contextmanager
    def transaction(self, batch: InputBatch) -> Iterator[Block]:
        """A transaction for what is made of a batch; leaving the block commits it with the offsets behind the batch.

        The session decides the outcome; ``txn.committed`` has it. Where a new transaction may succeed (a
        rebalance, a record that was not delivered, a commit that did not happen), the block ends quietly, the session
        rewinds, and the next batch begins behind the last commit. A block that raises is aborted and rewound too, and
        its exception goes on untouched, except :class:`AbortTransaction`, which ends here.

        Raises:
            UsageError: no fetch of this session has returned the batch, or batches are left out again and again.
            CommitOutcomeUnknownError: the commit of a block without input stayed without an answer. The session goes on.
            EosError: as :meth:`fetch`.
        """
        self._refuse_inside_block("transaction")
        self._refuse_inside_a_call("transaction")
        try:
            yield from self._block_for(batch)
        finally:
            self._at_work = ""

    # --- inside ------------------------------------------------------------------------------------

    def _block_for(self, batch: InputBatch) -> Iterator[Block]:
        owner = self._owner
        failure: EosError | None = None
        self._at_work = "a begin"
        try:
            transaction: WriterTransaction | None = None
            try:
                transaction = self._begin(batch)
                block = self._block_of(transaction)
            except (RetriableError, AbortableError, ReopenError) as error:
                failure, block = error, self._block_of(error)
            self._in_block = True
            self._at_work = ""
            try:
                yield block
            except Exception as error:
                meant = failure if error is failure else None
                if meant is None and transaction is not None:
                    meant = transaction.meant_by(error)
                if meant is None:
                    raise
                failure = failure or meant
            finally:
                end_elsewhere(owner.home)
                self._at_work = "a commit"
                self._in_block = False
            self._require_open_still()
            if transaction is not None and failure is None:
                failure = self._commit(transaction, batch)
        except BaseException as error:
            self._in_block = False
            if owner.is_open:  # else it was closed inside the block, which has aborted it
                owner.committer.left_by(error)
            if isinstance(error, AbortTransaction):
                return
            with owner.naming_rivals():
                raise
        if failure is not None:
            self._go_on_after(failure, transaction)

    def _go_on_after(self, failure: EosError, transaction: WriterTransaction | None) -> None:
        owner = self._owner
        owner.committer.abort(failure)
        is_unknown = isinstance(failure, CommitOutcomeUnknownError)
        with owner.naming_rivals():
            owner.go_on_after(failure)
            if is_unknown:
                self._learn_the_outcome()
        if is_unknown and transaction is not None and transaction.may_have_output and not transaction.offsets:
            raise CommitOutcomeUnknownError(
                f"{failure}. But the block had no input, so no committed offset shows it. Fix: look whether its output is "
                "there before it is made again",
                code=failure.code,
            )

    def _learn_the_outcome(self) -> None:
        """The code behind the block goes by ``committed``, and the batch comes again only if it is not."""
        owner = self._owner
        while owner.committer.writer.is_over and not owner.stopped.is_set():
            try:
                owner.committer.reopen_if_over()
            except RebalancedError:
                return  # raised by the next fetch; another instance goes on from what is committed
            except EosError as error:
                owner.go_on_after(error)

    def _begin(self, batch: InputBatch) -> WriterTransaction:
        owner = self._owner
        owner.committer.settle()
        owner.consumer.look_at_assignment()
        owner.consumer.to_commit(batch)
        transaction = owner.committer.begin()
        if isinstance(batch, FetchedBatch) and batch:
            owner.listener(batch.taken(owner.name))
        return transaction

    def _commit(self, transaction: WriterTransaction, batch: InputBatch) -> EosError | None:
        """Commit a block's transaction; returns the error that it may be made again after."""
        owner = self._owner
        try:
            owner.ledger.claim(owner.consumer.to_commit(batch))
            transaction.records_in = len(batch)
            owner.committer.commit()
        except (RetriableError, AbortableError, ReopenError) as error:
            return error
        return None

    def _require_open_still(self) -> None:
        if not self._owner.is_open:
            raise UsageError(
                "the session was closed inside a transaction block: nothing of the block was committed"
            )

    def _refuse_inside_a_call(self, what: str) -> None:
        """By a listener, a signal handler or another thread.

        librdkafka waits for the end of the rebalance callback that the call comes from: 15 s in close(), for ever in a fetch (2.16).
        A close in a commit would take away the client that commits.
        """
        if self._at_work:
            raise UsageError(
                f"{what}(): {self._at_work} of this session is at work (a listener calls it?). Fix: stop(), and leave the loop"
            )

    def _refuse_inside_block(self, what: str) -> None:
        refuse_elsewhere(self._owner.home, f"{what}()")
        if not self._owner.is_open:
            raise UsageError(
                f"{what}(): the session is not open. Fix: with {type(self).__name__}(…) as session:"
            )
        if self._in_block:
            raise UsageError(f"{what}(): a transaction block is open. Fix: leave it first")
