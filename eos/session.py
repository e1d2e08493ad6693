"""Session: the owner of a shard and its consumer: fences on open, resumes, rewinds after an abort.

One thread owns a session. While a transaction commits in a helper thread, that thread may fetch, but
nothing of the next transaction is produced before the commit has been joined.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import NamedTuple, Self

from eos.calls import Call
from eos.consumer import ReadCommittedConsumer
from eos.errors import (
    AbortableError,
    EosError,
    FencedError,
    RebalancedError,
    ReopenError,
    RetriableError,
    UsageError,
)
from eos.events import CallRetried, LagMeasured, Listener, SessionClosed, SessionOpened, nobody
from eos.expiry import due_for_renewal
from eos.kafka.consumer import Committed
from eos.offsets import OffsetVector, Partition
from eos.ownership import Outcome
from eos.producer import ProducerState, TransactionalProducer
from eos.records import InputBatch, OutputBatch, OutputRecord
from eos.rejoin import FENCED_MEMBER, Rejoin
from eos.settings import Settings
from eos.shards import PartitionShard, Shard
from eos.transaction import Transaction

_REJOIN_PAUSE_S = 0.2


class Work(NamedTuple):
    """Input that was transformed: its outputs, how many records it was, and the positions behind it."""

    outputs: Sequence[OutputBatch] | Sequence[OutputRecord]
    records_in: int
    positions: OffsetVector


class Session:
    """Owns one shard: a producer, a consumer, and at most one transaction being filled and one committing.

    Args:
        settings: how to reach the cluster, ownership, limits.
        shard: a PartitionShard reads its own partition (assign), an OrdinalShard the group's share (subscribe).
        topics: the input topics.
        listener: told what happens.

    Raises (from every method):
        FencedError: another owner has the shard; stop.
        EosError: see :meth:`recover` for what can be gone on from.
    """

    def __init__(
        self, settings: Settings, shard: Shard, topics: Sequence[str], *, listener: Listener = nobody
    ) -> None:
        self.shard = shard
        self.topics = tuple(topics)
        self._settings = settings
        self._listener = listener
        self._name = shard.transactional_id
        self._producer = TransactionalProducer(settings, shard, listener=listener)
        given = [shard.partition] if isinstance(shard, PartitionShard) else None
        self._consumer = ReadCommittedConsumer(
            settings,
            topics,
            group=shard.group,
            partitions=given,
            ordinal=settings.ordinal,
            app=shard.app,
            listener=listener,
            shard=self._name,
            hooks=self,
        )
        self._owned = self._producer.owned_offsets(shard.group)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="eos-commit")
        self._transaction: Transaction | None = None
        self._processed = OffsetVector()  # positions behind what the open transaction holds
        self._committing: tuple[Transaction, Future[None]] | None = None
        self._fetched = InputBatch([])
        self._staged: list[Work] = []
        self._to_renew: set[Partition] = set()  # whose offsets are to be committed again where they stand
        self._renewed_at = time.monotonic()
        self._rejoin: Rejoin | None = None
        self.commit_seconds = 0.0  # of the last transaction

    # --- life --------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close("" if error is None else f"{type(error).__name__}: {error}")

    def open(self) -> None:
        """Init first (it ends what the last owner left), and only then read the committed offsets."""
        began = time.monotonic()
        self._producer.open()
        try:
            self._consumer.open()
        except BaseException:
            self._producer.close()
            raise
        self._listener(SessionOpened(self._name, time.monotonic() - began))

    def close(self, reason: str = "") -> None:
        """End what is open (the commit in flight is waited for, an unfinished transaction aborted), then leave."""
        try:
            self._join_quietly()
            self._abort(UsageError("the session was closed"))
            self._consumer.close()
        finally:
            self._producer.close()
            self._executor.shutdown()
            self._listener(SessionClosed(self._name, reason))

    # --- the loop's steps ----------------------------------------------------------------------------

    @property
    def consumer(self) -> ReadCommittedConsumer:
        return self._consumer

    @property
    def committing(self) -> bool:
        """Whether a commit is in flight."""
        return self._committing is not None

    @property
    def filling(self) -> bool:
        """Whether a transaction is open, with records produced into it."""
        return self._transaction is not None

    @property
    def idle(self) -> bool:
        """Whether nothing is staged, open or in flight."""
        return not (self._staged or self._committing or self._transaction)

    def fetch(self, max_records: int, timeout_s: float, linger_s: float) -> InputBatch:
        """The next input records. A rebalance inside ends the open transaction and drops what is staged.

        A member that the group has fenced is given up, and joins again if it has no rival; until then nothing comes.
        """
        if self._rejoin is not None and self._rejoin.pending:
            if self._rejoin.may_join():
                self._consumer.rejoin()
            else:
                time.sleep(min(timeout_s, _REJOIN_PAUSE_S))
            return InputBatch([])
        try:
            self._fetched = self._consumer.fetch(max_records, timeout_s, linger_s)
        except FencedError as error:
            self._fenced_by_the_group(error)
            self._fetched = InputBatch([])
        return self._fetched

    def stage(self, outputs: Sequence[OutputBatch] | Sequence[OutputRecord], records_in: int) -> None:
        """Keep transformed records for the next :meth:`produce`. Call it after the fetch they came from.

        Raises:
            RebalancedError: their partitions are gone already.
        """
        # The positions are taken now: in a later rebalance they would already count records that the
        # running fetch holds and nobody has processed.
        positions = self._consumer.positions_behind(self._fetched)
        self._staged.append(Work(outputs, records_in, positions))

    def produce(self) -> None:
        """Produce what is staged, in a transaction that is begun if none is open.

        Raises:
            UsageError: the last commit was not joined.
        """
        if self._committing is not None:
            raise UsageError(
                "nothing of the next transaction is produced before the last commit has returned"
            )
        if not self._staged:
            return
        transaction = self._transaction or self._begin()
        staged, self._staged = self._staged, []
        try:
            for work in staged:
                _produce(transaction, work.outputs)
                transaction.records_in += work.records_in
                self._processed = self._processed.merged(work.positions)
        except BaseException as error:
            self._abort(error)
            raise

    def commit_soon(self) -> None:
        """Hand the open transaction to the helper thread. The group's metadata is read here, where polls happen."""
        transaction = self._sealed()
        if transaction is not None:
            self._committing = (transaction, self._executor.submit(transaction.commit))

    def commit_done(self) -> bool:
        """Whether a commit is in flight and has come back, well or not."""
        return self._committing is not None and self._committing[1].done()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the commit in flight; its errors are raised here.

        Raises:
            TimeoutError: it is still in flight.
        """
        if self._committing is None:
            return
        transaction, future = self._committing
        if not wait([future], timeout_s).done:
            raise TimeoutError
        self._committing = None
        future.result()
        self.commit_seconds = transaction.commit_seconds
        self._committed(transaction.offsets)

    def give_up(self) -> None:
        """The grace period is over: a call in flight is left without an answer, for the next owner to settle."""
        self._producer.give_up()

    def renew_offsets_if_due(self) -> bool:
        """Commit offsets again where they stand, if any is due and nothing else goes on; see :mod:`eos.expiry`.

        Returns:
            Whether it did.
        """
        return self._commit_offsets(self._due_offsets())

    def commit_passed_markers(self) -> None:
        """Commit positions that have moved past control records and aborted records behind the last commit."""
        if self._consumer.rewind_due:  # a commit failed inside the last fetch: they also count what it held
            return
        resume = self._consumer.resume_positions
        moved = {p: o for p, o in self._consumer.positions().items() if o > resume.get(p, o)}
        self._commit_offsets(OffsetVector(moved))

    def _commit_offsets(self, offsets: OffsetVector) -> bool:
        if not self.idle or not offsets:
            return False
        with self._producer.transaction() as transaction:
            transaction.add_offsets(offsets, self._consumer.group_metadata())
        self._committed(offsets)
        return True

    def recover(self, error: EosError) -> None:
        """After an error that lets one redo or reopen: reopen if needed, rewind, and be ready to begin anew.

        Raises:
            FencedError: the comparison after the reopen shows another owner.
            EosError: the error itself, where nothing can be gone on from.
        """
        if not isinstance(error, (RetriableError, AbortableError, ReopenError)):
            raise error
        self._join_quietly()
        self._abort(error)
        self._reopen_if_over()
        self._drop()
        # In the next fetch, which also tells if the assignment is gone.
        self._consumer.rewind_later()

    def lag(self) -> LagMeasured:
        """How far this session is behind, as of its last fetches."""
        return self._consumer.lag()

    # --- rebalances; called by the consumer from inside fetch -----------------------------------------

    def before_assigned(self, partitions: Sequence[Partition]) -> None:  # noqa: ARG002 - the hook's interface
        """Settle an unanswered commit first: the committed offsets can't be read while it is pending on them."""
        self._join_quietly()
        self._reopen_if_over()

    def on_assigned(self, stored: Mapping[Partition, Committed | None]) -> None:
        self._owned.found(stored)
        after_s = self._settings.input.recommit_idle_after_s
        self._to_renew |= due_for_renewal(stored, self._owned.stamp.mode, after_s=after_s)

    def on_revoked(self, partitions: Sequence[Partition]) -> None:
        """End the transaction before the partitions go: their output without their offsets would be duplicates.

        Kafka accepts offsets of a partition that another live member owns, so no fence would catch it.
        """
        self._drop()
        try:
            self.join()
            transaction = self._sealed()
            if transaction is not None:
                transaction.commit()
                self._committed(transaction.offsets)
        except (AbortableError, ReopenError) as error:
            self._abort(error)
            # An abort that fails too leaves the commit unsettled, whatever its error was called: it may have happened.
            self._reopen_if_over()
        finally:
            self._to_renew -= set(partitions)
            self._owned.revoked(partitions)

    def on_lost(self, partitions: Sequence[Partition]) -> None:
        """Another member may own them already: abort only."""
        self._drop()
        self._join_quietly()
        self._abort(RebalancedError("partitions were lost"))
        self._to_renew -= set(partitions)
        self._owned.lost(partitions)

    # --- inside ------------------------------------------------------------------------------------

    def _fenced_by_the_group(self, error: FencedError) -> None:
        """A fence of the member, not of the producer, need not mean a rival: see eos.rejoin."""
        instance_id = self._consumer.instance_id
        if error.code != FENCED_MEMBER or instance_id is None:
            raise error
        self._rejoin = self._rejoin or Rejoin(self._settings, self.shard.group, instance_id)
        attempt = self._rejoin.fenced(error)
        self._consumer.give_all_up()
        self._listener(CallRetried(self._name, Call.CONSUME, attempt, str(error)))

    def _begin(self) -> Transaction:
        transaction = self._producer.transaction()
        transaction.begin()
        self._transaction = transaction
        self._processed = OffsetVector()
        return transaction

    def _sealed(self) -> Transaction | None:
        """The open transaction with its offsets added, no longer ours to fill."""
        transaction = self._transaction
        if transaction is None:
            return None
        resume = self._consumer.resume_positions
        offsets = OffsetVector({p: o for p, o in self._processed.items() if resume.get(p) != o})
        if (foreign := offsets.without(resume)) or (transaction.records_in and not offsets):
            # Output without the offsets of its input would be made again by whoever reads that input next.
            error = RebalancedError(f"{foreign or 'the partitions read'} are not ours any more: aborted")
            self._abort(error)
            raise error
        transaction.add_offsets(self._due_offsets().merged(offsets), self._consumer.group_metadata())
        self._transaction = None
        return transaction

    def _due_offsets(self) -> OffsetVector:
        now = time.monotonic()
        if now - self._renewed_at >= self._settings.input.recommit_idle_after_s:
            self._renewed_at = now
            self._to_renew |= self._consumer.assignment
        if not self._to_renew:
            return OffsetVector()
        resume = self._consumer.resume_positions
        return OffsetVector({p: resume[p] for p in self._to_renew if p in resume})

    def _committed(self, offsets: OffsetVector) -> None:
        self._to_renew -= offsets.keys()
        self._consumer.advanced(offsets)

    def _reopen_if_over(self) -> None:
        if self._producer.state is ProducerState.OVER:
            pending = self._owned.pending
            if self._producer.reopen() is Outcome.COMMITTED and pending is not None:
                self._committed(pending)

    def _join_quietly(self) -> None:
        # The transaction has ended, and the producer's state says how; if not well, its input is read again.
        try:
            self.join()
        except EosError:
            self._drop()
            self._consumer.rewind_later()

    def _abort(self, reason: BaseException) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.abort(reason)

    def _drop(self) -> None:
        self._staged = []
        self._fetched = InputBatch([])


def _produce(transaction: Transaction, outputs: Sequence[OutputBatch] | Sequence[OutputRecord]) -> None:
    records: list[OutputRecord] = []
    for output in outputs:
        if isinstance(output, OutputBatch):
            transaction.produce_batch(output.topic, output)
        else:
            records.append(output)
    if records:
        transaction.produce_records(records)
