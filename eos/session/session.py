"""Session: the owner of a shard, for a loop of the caller: fetch a batch, fill a transaction, repeat.

A session decides what an error means. It rewinds and tries again, a bounded number of times, where a new transaction may
succeed; it raises what the caller has to decide.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Self

from eos.calls import Call
from eos.errors import (
    AbortableError,
    AbortTransaction,
    Action,
    ConfigError,
    EosError,
    FencedError,
    RebalancedError,
    ReopenError,
    RetriableError,
    UsageError,
    reason_of,
)
from eos.events import CallRetried, LagMeasured, Listener, SessionClosed, SessionOpened, guarded, ignore_event
from eos.group.fenced_member import FENCED_MEMBER, FencedMember
from eos.group.metadata import OwnershipMode
from eos.group.rivals import named_rivals
from eos.job import check_topics
from eos.kafka.group_offsets import Committed, stored_positions
from eos.kafka.librdkafka import end_if_forked
from eos.offsets import OffsetVector, Partition
from eos.producer.last_commit import Outcome
from eos.producer.producer import ProducerState, ShardProducer
from eos.producer.transaction import Transaction, TransactionState, VoidTransaction
from eos.records import InputBatch
from eos.retry import Attempts
from eos.session.catch_up import CatchUp
from eos.session.consumer import ShardConsumer
from eos.session.due_offsets import DueOffsets
from eos.session.handed_out import FetchedBatch
from eos.session.outage import Outage
from eos.settings import Settings
from eos.shards import OrdinalShard, PartitionShard, Shard

_REJOIN_PAUSE_S = 0.2
_OUTAGE_PAUSE_S = 1.0  # behind a question that was asked for longer
_WAIT_S = 0.2  # how late a stop is noticed without input
# Within this time of joining, a member without partitions may just not have got them yet. Later the group's offsets alone say
# whether all is processed: it may be a member too many.
_JOINING_S = 0.2


class Session:
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
        UnavailableError: the cluster did not answer in time.
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
        self._inputs, written = check_topics(app, inputs, outputs)
        self.shard = _shard(settings, app, partition)
        self._outputs = frozenset(written)
        self._settings = settings
        self.until_caught_up = until_caught_up
        self._stop = stop or threading.Event()
        self._listener = guarded(listener)
        self._name = self.shard.transactional_id
        self._producer = ShardProducer(settings, self.shard, listener=listener, compare_when_fenced=True)
        self._consumer = ShardConsumer(
            settings,
            inputs,
            group=self.shard.group,
            partitions=None if partition is None else [partition],
            ordinal=settings.ordinal,
            app=app,
            listener=self._listener,
            shard=self._name,
            hooks=self,
        )
        self._owned = self._producer.owned_offsets(self.shard.group)
        self._attempts = Attempts(
            lambda call, attempt, error: self._listener(CallRetried(self._name, call, attempt, str(error)))
        )
        self._outage = Outage(settings.input.offline_timeout_s)
        self._is_open = self._fetching = False
        self._opened_at = 0.0
        self._pid = os.getpid()
        self._transaction: Transaction | None = None  # the one that is being filled
        self._unsettled: Transaction | None = None  # until what became of it is known here too
        self._due_offsets = DueOffsets(
            self._owned.metadata, renew_after_s=settings.input.recommit_idle_after_s
        )
        self._fenced_member: FencedMember | None = None
        self._rivals: str | None = None  # who they are, once a fence has made this session ask
        self._catch_up: CatchUp | None = None
        self._caught_up = False

    # --- life --------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.close("" if error is None else reason_of(error))

    def open(self) -> None:
        """Fence every older owner of the shard and end what it left open; then read the committed offsets."""
        if self._is_open:
            raise UsageError("open(): the session is open already")
        began = time.monotonic()
        self._producer.open()
        try:
            self._consumer.open()
            if self.until_caught_up:
                only = [self.shard.partition] if isinstance(self.shard, PartitionShard) else None
                self._catch_up = CatchUp(self._settings, self.shard.group, self._inputs, only)
            self._is_open = True
            self._opened_at = time.monotonic()
            self._listener(SessionOpened(self._name, self._opened_at - began))
        except BaseException:
            self._is_open = False
            self._consumer.close()
            self._producer.close()
            raise

    def close(self, reason: str = "") -> None:
        """End what is open, and leave. An open transaction is aborted.

        Raises:
            UsageError: inside a fetch: by a listener, or by another thread.
        """
        self._refuse_inside_fetch("close")
        self._is_open = False
        try:
            if self._transaction is not None:
                self._transaction.in_block = False  # whose end finds it aborted
            self._abort(AbortTransaction("the session was closed"))
            if self._catch_up is not None:
                self._catch_up.close()
        finally:
            try:
                self._consumer.close()
            finally:
                self._producer.close()
                self._listener(SessionClosed(self._name, reason))

    def stop(self) -> None:
        """End the iteration after the block that runs now. A signal handler may call this, and any thread."""
        self._stop.set()

    @property
    def ended(self) -> bool:
        """Whether the iteration is over: stopped, or caught up."""
        return self._stop.is_set() or self._caught_up

    # --- reading and committing ----------------------------------------------------------------------

    def __iter__(self) -> Iterator[InputBatch]:
        """The input, batch by batch, until :attr:`ended`. Give each batch to :meth:`transaction`, in their order."""
        if self._consumer.has_outstanding:
            self._consumer.rewind_later()  # the loop was left, with a batch that the caller's variable may still hold
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
        self._refuse_inside_fetch("fetch")
        try:
            self._fetching = True
            self._settle()
            self._consumer.require_kept()
            self.commit_offsets_alone()
            self.look_whether_caught_up()
            if self._caught_up:
                return InputBatch([])
            return self._fetch(
                max_records or self._settings.input.fetch_records,
                timeout_s,
                min(timeout_s, self._settings.transaction.interval_s),
            )
        except EosError as error:
            with self._naming_rivals():
                self.go_on_after(error)
            return InputBatch([])
        finally:
            self._fetching = False

    @contextmanager
    def transaction(self, batch: InputBatch) -> Iterator[Transaction]:
        """A transaction for what is made of a batch; leaving the block commits it with the offsets behind the batch.

        The session decides the outcome; ``txn.committed`` has it. Where a new transaction may succeed (a
        rebalance, a record that was not delivered, a commit that did not happen), the block ends quietly, the session
        rewinds, and the next batch begins behind the last commit. A block that raises is aborted and rewound too, and
        its exception goes on untouched, except :class:`AbortTransaction`, which ends here.

        Raises:
            UsageError: no fetch of this session has returned the batch, or batches are left out again and again.
            EosError: as :meth:`fetch`.
        """
        self._refuse_inside_block("transaction")
        failure: EosError | None = None
        try:
            try:
                transaction = self._begin_for(batch)
            except (RetriableError, AbortableError, ReopenError) as error:
                failure, transaction = error, VoidTransaction(error)
            self._transaction = transaction
            transaction.in_block = True
            try:
                yield transaction
            except EosError as error:
                if not transaction.has_raised(error):
                    raise
                failure = failure or error
            finally:
                end_if_forked(self._pid)
                transaction.in_block = False
            self._require_open_still()
            if failure is None:
                failure = self._commit(transaction, batch)
        except BaseException as error:
            if self._is_open:  # else it was closed inside the block, which has aborted it
                self._leave(error)
            if isinstance(error, AbortTransaction):
                return
            with self._naming_rivals():
                raise
        if failure is not None:
            self._abort(failure)
            with self._naming_rivals():
                self.go_on_after(failure)

    def go_on_after(self, error: EosError) -> None:
        """Abort, reopen and rewind as far as the error asks for, and wait before the next try.

        Raises:
            EosError: the error, if no further try helps against it or there were as many as the policy allows. Instead of
                it FencedError, if the reopen shows that another owner has the shard.
        """
        try:
            self.recover(error)
        except EosError as another:
            error = another
        if self._outage.goes_on(error):
            self._listener(CallRetried(self._name, Call.BEGIN, 1, str(error)))
            self._stop.wait(_OUTAGE_PAUSE_S)
            # A member that does not poll is dropped from its group. A rewind is due, so this brings no records. In a rebalance it
            # asks the cluster too, and what it got no answer to is asked again by the next fetch.
            try:
                self._fetch(1, 0.0, 0.0)
            except EosError as another:
                if another.action is Action.STOP and not self._outage.goes_on(another):
                    raise
            return
        self._stop.wait(self._attempts.failed(error))

    def recover(self, error: EosError) -> None:
        """Abort, reopen and rewind as far as the error asks for. Nothing is counted, and nothing is waited for.

        Raises:
            FencedError: the comparison after the reopen shows another owner.
            RebalancedError: a partition is assigned to another member; the next fetch calls back. Continue with that fetch.
            EosError: the error itself, where nothing can be gone on from.
        """
        goes_on = self._outage.goes_on(error)
        if error.action is Action.STOP and not goes_on:
            raise error
        self._abort(error)
        # In the next fetch, which also raises if the assignment is gone. Before the reopen, which may detect that too:
        # nothing is committed again before that fetch.
        self._consumer.rewind_later()
        if goes_on:
            raise error
        self._reopen_if_over()
        self._unsettled = None

    @property
    def idle(self) -> bool:
        """Whether no transaction is open or in flight."""
        return self._transaction is None

    @property
    def committed_offsets(self) -> OffsetVector:
        """Per owned partition the next offset to process, as this session has committed it or taken it over."""
        return self._consumer.resume_positions

    @property
    def has_read_all(self) -> bool:
        """Whether every owned partition has been read to its last stable offset since the last rewind, or as far as the run goes.

        The client says that a partition has ended when the broker has had nothing new for it for 500 ms (fetch.wait.max.ms).
        """
        ends = self._catch_up.ends if self._catch_up is not None else None
        return self._consumer.caught_up or (ends is not None and self._consumer.has_read_to(ends))

    def lag(self) -> LagMeasured:
        """How far this session is behind, as of its last fetches."""
        return self._consumer.lag()

    def give_up(self) -> None:
        """The process has to end: stop waiting for a call in flight; the next owner settles it."""
        self._producer.give_up()

    # --- offsets without records -----------------------------------------------------------------------

    def commit_offsets_alone(self, *, at_once: bool = False) -> bool:
        """Commit offsets that belong to no record, if there are any and nothing else goes on.

        These are the due ones, and every few seconds positions that have moved past control records and aborted records:
        once such records expire, an offset before them would look as if input had been deleted unprocessed.

        Args:
            at_once: do not wait for these seconds.

        Returns:
            Whether it committed any.
        """
        # The positions also count records that were handed out and are in no transaction yet; and with a rewind due those
        # of a fetch that was cut short, while what is ours is known after the next fetch.
        if not self.idle or self._consumer.rewind_due or self._consumer.has_outstanding:
            return False
        resume = self._consumer.resume_positions
        offsets = self._due_offsets.of(resume)
        if at_once or self._due_offsets.time_for_passed_markers():
            positions = self._consumer.positions()
            offsets = offsets.merged(
                positions.only(p for p, offset in positions.items() if offset > resume.get(p, offset))
            )
        if offsets:
            self._commit_only(offsets)
        return bool(offsets)

    def look_whether_caught_up(self) -> None:
        """If so, the iteration has ended."""
        catch_up = self._catch_up
        if catch_up is None or not self._has_passed(catch_up.ends):
            return
        if not self.commit_offsets_alone(at_once=True):
            self._caught_up = catch_up.reached(self._consumer.resume_positions)

    def _has_passed(self, ends: OffsetVector) -> bool:
        """Whether nothing is left of the input up to these offsets that this session owns; it is a reason to ask, no proof."""
        if not self._consumer.assignment:
            return time.monotonic() - self._opened_at > _JOINING_S
        return self._consumer.caught_up or self._consumer.has_read_to(ends, passed_markers=True)

    # --- rebalances; called by the consumer from inside fetch -----------------------------------------

    def before_assigned(self, partitions: Sequence[Partition]) -> None:  # noqa: ARG002 - the hook's interface
        """Settle an unanswered commit first: the committed offsets can't be read while it is pending on them."""
        self._reopen_if_over()

    def on_assigned(self, stored: Mapping[Partition, Committed | None]) -> None:
        self._owned.taken_over(stored)
        self._due_offsets.taken_over(stored)
        self._outage.over()

    def on_revoked(self, partitions: Sequence[Partition]) -> None:
        self._due_offsets.done(partitions)
        self._owned.revoked(partitions)

    def on_lost(self, partitions: Sequence[Partition]) -> None:
        self._due_offsets.done(partitions)
        self._owned.lost(partitions)

    # --- inside ------------------------------------------------------------------------------------

    @contextmanager
    def _naming_rivals(self) -> Iterator[None]:
        """After a fence of this owner's producer the error says who is in the group, as `eos run` does at its end."""
        try:
            yield
        except FencedError as error:
            if self._producer.state is ProducerState.FENCED:
                if self._rivals is None:
                    self._rivals = named_rivals(self._settings, self.shard.group, own="those of this session")
                if self._rivals not in str(error):  # the producer repeats an error in its own words
                    error.args = (f"{error}. At that time the {self._rivals}",)
            raise

    def _fetch(self, max_records: int, timeout_s: float, linger_s: float) -> InputBatch:
        """The next input records.

        A member that the group has fenced is given up, and joins again if it has no rival; until then nothing comes.
        """
        if self._fenced_member is not None and self._fenced_member.pending:
            if self._fenced_member.may_join():
                self._consumer.rejoin()
            else:
                time.sleep(min(timeout_s, _REJOIN_PAUSE_S))
            return InputBatch([])
        try:
            return self._consumer.fetch(max_records, timeout_s, linger_s)
        except FencedError as error:
            self._fenced_by_the_group(error)
            return InputBatch([])

    def _fenced_by_the_group(self, error: FencedError) -> None:
        """A fence of the member, not of the producer, need not mean a rival: see eos.group.fenced_member."""
        instance_id = self._consumer.instance_id
        if error.code != FENCED_MEMBER or instance_id is None:
            raise error
        self._fenced_member = self._fenced_member or FencedMember(
            self._settings, self.shard.group, instance_id
        )
        attempt = self._fenced_member.note_fence(error)
        self._consumer.lose_all()
        self._listener(CallRetried(self._name, Call.CONSUME, attempt, str(error)))

    def _refuse_inside_fetch(self, what: str) -> None:
        # librdkafka waits for the end of the rebalance callback that the call comes from: 15 s in close(), for ever in a fetch (2.16).
        if self._fetching:
            raise UsageError(
                f"{what}(): a fetch of this session is at work (a listener calls it?). Fix: stop(), and leave the loop"
            )

    def _refuse_inside_block(self, what: str) -> None:
        end_if_forked(self._pid)
        if not self._is_open:
            raise UsageError(f"{what}(): the session is not open. Fix: with Session(…) as session:")
        if self._transaction is not None:
            raise UsageError(f"{what}(): a transaction block is open. Fix: leave it first")

    def _begin_for(self, batch: InputBatch) -> Transaction:
        self._settle()
        self._consumer.look_at_assignment()
        self._consumer.to_commit(batch)
        self._reopen_if_over()
        self._unsettled = transaction = self._producer.transaction()
        transaction.topics = self._outputs
        transaction.begin()
        if isinstance(batch, FetchedBatch) and batch:
            self._listener(batch.taken(self._name))
        return transaction

    def _commit(self, transaction: Transaction, batch: InputBatch) -> EosError | None:
        """Commit a block's transaction; returns the error that it may be made again after."""
        try:
            due = self._due_offsets.of(self._consumer.resume_positions)
            offsets = due.merged(self._consumer.to_commit(batch))
            if offsets:
                transaction.add_offsets(offsets, self._consumer.group_metadata())
            transaction.records_in = len(batch)
            self._transaction = None
            transaction.commit()
        except (RetriableError, AbortableError, ReopenError) as error:
            return error
        self._note_committed(transaction.offsets)
        self._unsettled = None
        return None

    def _settle(self) -> None:
        """After an exception of the caller or of a signal handler has left a block: settle its transaction."""
        transaction = self._unsettled
        if transaction is None:
            return
        transaction.settle(UsageError("the block was left"))
        # That another member has a partition is raised by the next fetch; the next transaction reopens the producer.
        with suppress(RebalancedError):
            self._reopen_if_over()
        # A commit may have happened although its answer never reached this session; the producer has the outcome.
        resume = self._consumer.resume_positions
        ahead = {
            p: at for p, at in self._owned.stored(resume).items() if at is not None and at.offset > resume[p]
        }
        self._consumer.advanced(stored_positions(ahead))
        if transaction.state is not TransactionState.COMMITTED:
            self._consumer.rewind_later()
        self._unsettled = None

    def _require_open_still(self) -> None:
        if not self._is_open:
            raise UsageError(
                "the session was closed inside a transaction block: nothing of the block was committed"
            )

    def _leave(self, error: BaseException) -> None:
        """An exception has left a block."""
        self._abort(error)
        if self._unsettled is None:
            self._consumer.rewind_later()  # the begin was left: nothing is to be settled, and the batch is read again
        with suppress(EosError):  # then it stays unsettled, and the next fetch raises it
            self._settle()

    def _commit_only(self, offsets: OffsetVector) -> None:
        self._unsettled = transaction = self._producer.transaction()
        with transaction:
            transaction.add_offsets(offsets, self._consumer.group_metadata())
        self._note_committed(offsets)
        self._unsettled = None

    def _note_committed(self, offsets: OffsetVector) -> None:
        self._due_offsets.done(offsets)
        self._consumer.advanced(offsets)
        self._attempts.succeeded()
        self._outage.over()

    def _reopen_if_over(self) -> None:
        if self._producer.state is ProducerState.OVER:
            pending = self._owned.pending
            outcome = self._producer.reopen()
            self._outage.over()
            if outcome is Outcome.COMMITTED and pending is not None:
                self._note_committed(pending)

    def _abort(self, reason: BaseException) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None and transaction.state is TransactionState.OPEN:
            transaction.abort(reason)


def _shard(settings: Settings, app: str, partition: Partition | None) -> Shard:
    group = settings.group_for(app)
    by_partition = OwnershipMode(settings.ownership.mode) is OwnershipMode.PARTITION
    if by_partition != (partition is not None):
        raise ConfigError(
            f"ownership.mode is {settings.ownership.mode!r}, and the session was given "
            f"{'no partition' if partition is None else f'the partition {partition}'}. Fix: "
            + (
                "a session for each partition, with partition=Partition(topic, number)"
                if by_partition
                else "ownership.mode = 'partition', or no partition"
            )
        )
    return (
        OrdinalShard(app, group, settings.ordinal)
        if partition is None
        else PartitionShard(app, group, partition)
    )
