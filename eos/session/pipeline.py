"""PipelinedSession: a session that fills one transaction while the one before it commits in a helper thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from eos.errors import (
    AbortableError,
    AbortTransaction,
    Action,
    EosError,
    RebalancedError,
    ReopenError,
    UsageError,
)
from eos.events import InputTaken
from eos.kafka.group_offsets import Committed, GroupMetadata
from eos.kafka.librdkafka import end_if_forked
from eos.offsets import OffsetVector, Partition
from eos.producer.transaction import Transaction
from eos.records import InputBatch, OutputBatch
from eos.session.alone import ALONE
from eos.session.overtime import Overtime
from eos.session.poison_row import PoisonRow
from eos.session.session import Session
from eos.session.suspects import FEW_RECORDS, Suspects

# How often code of the caller is checked for running late: well within a transaction's timeout, and no more than needed.
_LOOK_S = 1.0
_LOOK_SHARE = 0.1  # of transaction.timeout_ms
# For an attempt to be taken back by an owner that has given up a commit: a parent kills a worker 5 s after its grace period.
_WITHDRAW_S = 3.0
_OTHERS_S = 0.05  # between two looks whether all other sessions of the process wait


class Work(NamedTuple):
    """Input that was transformed: its outputs, how many records it was, how many at its end were poison in a row, and which."""

    outputs: Sequence[OutputBatch]
    records_in: int
    in_a_row: int
    taken: InputTaken


class PipelinedSession(Session):
    """A session for the loop: fetch, stage, produce, commit_soon, join.

    Input is fetched and transformed while the last transaction commits; nothing of the next one is produced before that
    commit has been joined. Errors are raised; :meth:`go_on_after` decides what they mean.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="eos-commit")
        self._overtime = Overtime(min(_LOOK_S, _LOOK_SHARE * self._settings.transaction.timeout_s))
        self._processed = OffsetVector()  # positions behind what the open transaction holds
        self._late_group: GroupMetadata | None = None  # for a commit of it beside the caller's code
        self._committing: tuple[Transaction, Future[None]] | None = None
        self._fetched = InputBatch([])
        self._staged: list[Work] = []
        self.commit_seconds = 0.0  # of the last transaction
        self._suspects = Suspects(
            self._settings.poison.max_deaths,
            self._owned.metadata.owner,
            replaces_dead=self._settings.replaces_dead,
        )
        self._owned.attempt_at = self._suspects.attempt_at
        self._poison_row = PoisonRow()
        # The only partitions that are read, while others wait; empty: none waits; None: partitions have come since.
        self._read_alone: frozenset[Partition] | None = frozenset()

    def close(self, reason: str = "") -> None:
        """Leave in order: the commit in flight is waited for, an unfinished transaction aborted."""
        try:
            self._join_quietly()
            self._withdraw()
        finally:
            ALONE.release(self)
            try:
                super().close(reason)
            finally:
                self._executor.shutdown()
                self._overtime.end()

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

    @property
    def open_s(self) -> float:
        """For how many seconds the oldest transaction has been open, or committing; 0 if there is none."""
        committing = self._committing
        transaction = committing[0] if committing else self._transaction
        return 0.0 if transaction is None else transaction.open_s

    @property
    def settling_s(self) -> float:
        """For how many seconds more a transaction that begins would wait, while there is time to fetch."""
        return self._producer.settling_s

    # --- the loop's steps ----------------------------------------------------------------------------

    def fetch(
        self, max_records: int | None = None, timeout_s: float = 0.0, linger_s: float = 0.0
    ) -> InputBatch:
        """The next input records. A rebalance inside ends the open transaction and drops what is staged."""
        self._fetched = InputBatch([])
        max_records = max_records or self._settings.input.fetch_records
        if self._suspects:
            max_records = self._few_of(max_records)
        if self._read_alone != self._suspects.alone and not self._let_others_wait():
            return self._fetched
        if not ALONE.begin(self):
            self._stop.wait(timeout_s)
            return self._fetched
        fetched = self._fetch(max_records, timeout_s, linger_s)
        if not fetched:
            ALONE.end(self)
        if self._read_alone != self._suspects.alone:
            self._consumer.rewind_later()  # partitions have come or gone in this fetch, whose records it may hold
        elif fetched:
            self._fetched = fetched
        elif self._suspects and self.idle:
            self._due_offsets.add(self._suspects.finished(self._consumer.at_end))
        return self._fetched

    @property
    def in_a_row(self) -> int:
        """How many records in a row were poison right before what is fetched next."""
        if self._staged:
            return self._staged[-1].in_a_row
        return self._poison_row.committed if self.idle else self._poison_row.produced

    def stage(self, outputs: Sequence[OutputBatch], records_in: int, in_a_row: int = 0) -> None:
        """Keep transformed records for the next :meth:`produce`. Call it after the fetch they came from.

        Raises:
            RebalancedError: their partitions are gone already.
        """
        # The positions are taken now: in a later rebalance they would already count records that the
        # running fetch holds and that are not processed.
        self._staged.append(Work(outputs, records_in, in_a_row, self._consumer.taken(self._fetched)))

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
                self._listener(work.taken)
                for output in work.outputs:
                    transaction.produce_batch(output.topic, output)
                transaction.records_in += work.records_in
                self._poison_row.produced = work.in_a_row
                self._processed = self._processed.merged(work.taken.ends)
        except BaseException as error:
            self._abort(error)
            raise

    def commit_soon(self) -> None:
        """Hand the open transaction to the helper thread. The group's metadata is read here, where polls happen."""
        transaction = self._sealed()
        if transaction is not None:
            self._hand_over(transaction)

    @contextmanager
    def committing_at(self, at: float) -> Iterator[None]:
        """A block of the caller's code. If it still runs at this time.monotonic(), what is open is committed beside it.

        A transaction that stays open as long as that code runs would expire. Afterwards :attr:`committing`
        says whether that was so; the commit is joined like any other.

        Raises:
            RebalancedError: as :meth:`commit_soon`, at the beginning.
        """
        transaction = self._transaction
        if transaction is None:
            with self._in_this_process():
                yield
            return
        # Read here, where polls happen, and not when it is late: a member that its group has dropped meanwhile would get
        # metadata without a generation, which a classic group accepts from any client.
        offsets, group = self._to_send(transaction), self._group_if_late()

        def commit_beside() -> None:
            self._owned.in_a_row = self._poison_row.produced
            transaction.add_offsets(offsets, group)
            self._transaction = None
            self._hand_over(transaction)

        with self._overtime.block(at, commit_beside), self._in_this_process():
            yield

    def _group_if_late(self) -> GroupMetadata:
        """The member's metadata for a commit beside the caller's code: read once for a transaction, and after a rebalance.

        librdkafka's main thread answers, in 0.2 ms: for each fetch that was a tenth of the time of a loop that catches up. If the
        member has another generation by then, the coordinator refuses the offsets.
        """
        if self._late_group is None:
            self._late_group = self._consumer.group_metadata()
        return self._late_group

    @contextmanager
    def _in_this_process(self) -> Iterator[None]:
        try:
            yield
        finally:
            end_if_forked(self._pid)

    def commit_done(self) -> bool:
        """Whether a commit is in flight and has come back, well or not."""
        return self._committing is not None and self._committing[1].done()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the commit in flight; its errors are raised here. False: it is still in flight.

        No exception says that: a handler of SIGALRM raises TimeoutError as well, and may do so between any two lines here.
        """
        if self._committing is None:
            return True
        transaction, future = self._committing
        if not wait([future], timeout_s).done:
            return False
        if (error := future.exception()) is not None:
            self._committing = None
            raise error
        self.commit_seconds = transaction.commit_seconds
        # Noted before it is let go: a commit that was not noted would be made again after the next rewind.
        self._note_committed(transaction.offsets)
        self._committing = None
        return True

    def recover(self, error: EosError) -> None:
        """As of every session; the commit in flight is waited for, and what is staged is dropped."""
        if error.action is not Action.STOP or self._outage.goes_on(error):
            self._join_quietly()
            self._drop()
        super().recover(error)

    # --- input that its owners did not get past; see eos.session.suspects ----------------------------------

    @property
    def few_at_a_time(self) -> bool:
        """Whether each fetch is to be a transaction, with nothing transformed ahead of its commit."""
        return self._suspects.few_at_a_time

    def announce(self) -> bool:
        """Before the records of the last fetch are transformed: commit that they are attempted, where that is to be said.

        What is open is committed with it. Returns whether to go on; if not, the session ends, or rewinds.
        """
        if not self._suspects:
            return True
        partition, at = self._first_partition, OffsetVector()
        if partition in self._suspects.alone:
            # Nothing that can be read stands between the committed offset and the first record.
            ends = self._consumer.taken(self._fetched).ends
            epoch = ends.epoch_of(partition)
            offset = self._fetched.offsets[0]
            at = OffsetVector(
                {partition: offset}, {} if epoch is None else {partition: epoch}, ends.topic_ids
            )
            self._suspects.met_alone(partition, offset)
        due = self._suspects.unannounced(partition)
        if not due:
            return True
        if self._stop.wait(self._suspects.pause_s(due)):
            self._drop()
            self._consumer.rewind_later()
            return False
        self.join()
        self._suspects.announce(due)
        try:
            self._commit_what_is_said(due, at)
        except BaseException:
            self._suspects.announce(due, announced=False)
            raise
        return True

    def returned(self) -> None:
        """The records of the last fetch were transformed: commit that they are not in work any more, where that was announced.

        Before anything is produced, so that no wait for its commit looks like a death with them.
        """
        if self._suspects.few_at_a_time and (over := self._suspects.returned()):
            self.join()
            self._commit_what_is_said(over, OffsetVector())

    def _commit_what_is_said(self, partitions: frozenset[Partition], at: OffsetVector) -> None:
        self._due_offsets.add(partitions)
        self.commit_soon()
        self.join()
        if left := self._due_offsets.left(partitions):  # no transaction was open
            self._commit_only(self._consumer.resume_positions.merged(at).only(left))

    def deaths(self) -> int:
        """How many processes in a row died with the record that was fetched alone, if the policy is to decide on it; else 0."""
        return self._suspects.deaths(self._first_partition) if self._suspects.alone else 0

    @property
    def _first_partition(self) -> Partition:
        return Partition(self._fetched.topics[0], self._fetched.partitions[0])

    def _few_of(self, records: int) -> int:
        self._suspects.look()
        if self._suspects.alone:
            return 1
        return min(records, FEW_RECORDS) if self._suspects.few_at_a_time else records

    def _let_others_wait(self) -> bool:
        """Read the partition whose records are taken alone, or all; not before what is open, here or elsewhere, is done."""
        if not self.idle:
            return False
        ALONE.end(self)
        if not self._suspects.alone:
            ALONE.release(self)
        elif not ALONE.claim(self):
            self._suspects.look_on()
            self._stop.wait(_OTHERS_S)
            return False
        self._read_alone = self._suspects.alone
        self._consumer.read_only(self._read_alone)
        return True

    def _withdraw(self) -> None:
        """The session ends in order: that it has taken input up was no attempt. What was read to its end has no attempts left."""
        if not self._suspects:
            return
        with suppress(EosError):  # then it counts as one
            self._drop()
            self._abort(AbortTransaction("the session was closed"))
            self._producer.hurry(_WITHDRAW_S)
            self._reopen_if_over()  # first: an unanswered commit may have moved the offsets
            mine = self._consumer.still_assigned
            said = self._suspects.finished(mine if self._caught_up else ()) | self._suspects.withdraw(mine)
            if said:
                self._commit_only(self._consumer.resume_positions.only(said))

    def _commit_only(self, offsets: OffsetVector) -> None:
        self._owned.in_a_row = self._poison_row.committed
        super()._commit_only(offsets)

    def _note_committed(self, offsets: OffsetVector) -> None:
        super()._note_committed(offsets)
        self._suspects.committed(offsets)
        self._due_offsets.add(self._poison_row.noted(self._owned.stored(offsets)))

    # --- rebalances; called by the consumer from inside fetch -----------------------------------------

    def before_assigned(self, partitions: Sequence[Partition]) -> None:
        self._late_group = None
        self._join_quietly()
        super().before_assigned(partitions)

    def on_assigned(self, stored: Mapping[Partition, Committed | None]) -> None:
        super().on_assigned(stored)
        self._suspects.taken_over(stored)
        self._poison_row.taken_over(stored)
        if self._read_alone:
            self._read_alone = None

    def on_revoked(self, partitions: Sequence[Partition]) -> None:
        """End the transaction before the partitions go: their output without their offsets would be duplicates.

        Kafka accepts offsets of a partition that another live member owns, so no fence would prevent it.
        """
        self._drop()
        try:
            self.join()
            self._due_offsets.add(withdrawn := self._suspects.withdraw(partitions))
            transaction = self._sealed()
            if transaction is not None:
                transaction.commit()
                self._note_committed(transaction.offsets)
            elif withdrawn:
                self._commit_only(self._consumer.resume_positions.only(withdrawn))
        except (AbortableError, ReopenError) as error:
            self._abort(error)
            # An abort that fails too leaves the commit unsettled, whatever its error was called: it may have happened.
            self._reopen_if_over()
        except BaseException as error:
            # A signal handler's, in front of the commit: left open, the transaction would hold what others process.
            self._abort(error)
            raise
        finally:
            self._suspects.forget(partitions)
            self._poison_row.forget(partitions)
            super().on_revoked(partitions)

    def on_lost(self, partitions: Sequence[Partition]) -> None:
        """Another member may own them already: abort only."""
        self._drop()
        self._join_quietly()
        self._abort(RebalancedError("partitions were lost"))
        self._suspects.forget(partitions)
        self._poison_row.forget(partitions)
        super().on_lost(partitions)

    # --- inside ------------------------------------------------------------------------------------

    def _begin(self) -> Transaction:
        transaction = self._producer.transaction()
        transaction.begin()
        self._transaction = transaction
        self._processed = OffsetVector()
        self._late_group = None
        return transaction

    def _sealed(self) -> Transaction | None:
        """The open transaction with its offsets added, no longer ours to fill."""
        transaction = self._transaction
        if transaction is not None:
            self._owned.in_a_row = self._poison_row.produced
            transaction.add_offsets(self._to_send(transaction), self._consumer.group_metadata())
            self._transaction = None
        return transaction

    def _hand_over(self, transaction: Transaction) -> None:
        self._committing = (transaction, self._executor.submit(transaction.commit))

    def _to_send(self, transaction: Transaction) -> OffsetVector:
        """The offsets of what the open transaction holds, and of those that are due; aborts what has none to send."""
        resume = self._consumer.resume_positions
        offsets = self._processed.moved_since(resume)
        if (foreign := offsets.without(resume)) or (transaction.records_in and not offsets):
            # The partition's next owner would produce output again whose offsets are missing.
            error = RebalancedError(f"{foreign or 'the partitions read'} are not ours any more: aborted")
            self._abort(error)
            raise error
        return self._due_offsets.of(resume).merged(offsets)

    def _join_quietly(self) -> None:
        # The transaction has ended, and the producer's state says how; if not well, its input is read again.
        try:
            self.join()
        except EosError:
            self._drop()
            self._consumer.rewind_later()

    def _drop(self) -> None:
        self._staged = []
        self._fetched = InputBatch([])
