"""ShardProducer: a shard's producer through its life: open, transaction, suspect, reopen, close."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from eos import retry
from eos.base.calls import Call
from eos.base.deadline import Deadline
from eos.base.listing import listed
from eos.base.opened import Opened
from eos.core.block import Transaction
from eos.core.forgotten import ForgottenOffsets
from eos.core.ledger import Ledger, Outcome
from eos.core.own_offsets import Asking, OwnOffsets
from eos.core.topics_used import TopicsUsed
from eos.core.transaction import ShardTransaction, TransactionState
from eos.errors import (
    ONE_OWNER,
    EosError,
    FencedError,
    ReopenError,
    RetriableError,
    TransactionExpiredError,
    UnprovenFenceError,
    UsageError,
    reason_of,
)
from eos.events import (
    CallRetried,
    Event,
    Fenced,
    Listener,
    ProducerOpened,
    ProducerSuspect,
    TransactionCommitted,
    TransactionEnded,
    guarded,
    ignore_event,
)
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.home import Home, refuse_elsewhere
from eos.kafka.classify import ID_EXPIRED, expired_id
from eos.kafka.config import producer_config
from eos.kafka.group_offsets import Committed
from eos.kafka.late_copies import LAST_EPOCH, FenceDoubt, ProducerIdentity
from eos.kafka.producer import TransactionalClient
from eos.offsets import OffsetVector, Partition
from eos.settings import Settings
from eos.shards import Shard

# An abort needs one round trip; what is not aborted by then is ended by the next init, or by the timeout.
_ABORT_DEADLINE_S = 15.0
_IDENTITY_WAIT_S = 2.0
_COMMITS_AGAIN = 3
_MAX_NAMED = 3
_ONE_THREAD = "Fix: leave its block first; in several threads a producer for each, with an ordinal of its own, or a lock around the block"
_CLAIM_ANEW = (
    "Fix: if another producer has taken over from this one, end here. Else make a new one, which claims the shard anew, and go on from "
    "what is committed then (the group's offsets; without any, the output), not from where this one stood"
)
_OTHER_CAUSES = (
    "a copy of an earlier init that arrived late, or from a coordinator whose clock runs ahead and which ended the "
    "transaction before its time"
)


class ProducerState(StrEnum):
    """Where a shard's producer is in its life."""

    NEW = "new"
    READY = "ready"
    SUSPECT = "suspect"  # a resend cannot be excluded, or a record failed: reopened before the next begin
    OVER = "over"  # the instance cannot go on: reopened before the next begin
    FENCED = "fenced"
    CLOSED = "closed"


class ShardProducer(Opened):
    """The one producer of a shard.

    The transactional.id comes from the shard, so another process that opens the same shard fences this producer,
    and aborts at once what it left open. Errors are those of :class:`eos.TransactionalProducer`.

    Args:
        settings: how to reach the cluster, and the transaction's limits.
        shard: the unit of ownership.
        listener: called with each event.
        metadata: what is stored with offsets; by default with a new owner token. Not with a ledger, which has it.
        ledger: that of the session, in the shard's group; by default one of its own, for the first group it commits in.
        started_partitions: per topic, how many partitions have or had an offset, for the next day (`eos.group.expiry`);
            by default the first commit reads it.
        by_epoch: the epoch alone shows whether another owner came; see :meth:`reopen`.
        compare_when_fenced: a fence is an UnprovenFenceError, at most three times in ten minutes: the reopen after it looks
            for another owner's commit. For owners that commit soon after open, or are members of a group. An owner that may
            wait before its first commit would be fenced by the older owner.
    """

    def __init__(
        self,
        settings: Settings,
        shard: Shard,
        *,
        listener: Listener = ignore_event,
        metadata: OffsetMetadata | None = None,
        ledger: Ledger | None = None,
        started_partitions: Mapping[str, int] | None = None,
        by_epoch: bool = False,
        compare_when_fenced: bool = False,
    ) -> None:
        self.shard = shard
        self.transactional_id = shard.transactional_id
        self._settings = settings
        self._listener = guarded(listener)
        self.topics = TopicsUsed(settings)
        group = None if ledger is None else shard.group
        if ledger is None:
            metadata = metadata or OffsetMetadata(OwnershipMode(settings.ownership.mode), str(shard))
            ledger = Ledger(replace(metadata, app=shard.app))
        asking = Asking(settings, self.on_retry, lambda: self._open_timeout_s)
        self._offsets = OwnOffsets(
            asking, ledger, group, topics=self.topics, started=started_partitions, name=self.transactional_id
        )
        self.home = Home.here
        self._state = ProducerState.NEW
        self._why = ""
        self._fence: FencedError | None = None
        self._client: TransactionalClient | None = None
        self._open_transaction: ShardTransaction | None = None
        self._begun: ShardTransaction | None = None  # the open one, if it has begun
        self._one_thread = threading.RLock()  # makes a transaction, or lets it begin
        self._used = False  # since the last init
        self._unresolved: ShardTransaction | None = None  # that the next reopen says the outcome of
        self._committed_unreported = (
            False  # an unanswered commit has happened, and the caller has not learned it yet
        )
        self._gives_up: Callable[[], bool] = lambda: False
        self._hurry: Deadline | None = None
        self._by_epoch = by_epoch
        self._doubt = FenceDoubt(_OTHER_CAUSES if compare_when_fenced else "")
        self._fence_unproven = False  # since the last init …
        self._id_expired = False  # … and so is this
        self._forgotten = ForgottenOffsets(settings)
        self._commits_again = False

    @property
    def state(self) -> ProducerState:
        return self._state

    @property
    def is_over(self) -> bool:
        """Whether the instance cannot go on, and is reopened before the next begin."""
        return self._state is ProducerState.OVER

    @property
    def is_fenced(self) -> bool:
        """Whether another owner has the shard."""
        return self._state is ProducerState.FENCED

    @property
    def timeout_s(self) -> float:
        """Seconds that an open transaction may live."""
        return self._settings.transaction.timeout_s

    @property
    def commit_timeout_s(self) -> float:
        return self._settings.transaction.commit_timeout_s

    @property
    def abort_timeout_s(self) -> float:
        return min(_ABORT_DEADLINE_S, self.timeout_s)

    @property
    def settling_s(self) -> float:
        """As of its client; 0 if it has none."""
        return 0.0 if self._client is None else self._client.settling_s

    def given_up(self) -> bool:
        return self._gives_up()

    def give_up(self, when: Callable[[], bool] = lambda: True) -> None:
        """Leave calls without an answer: the process has to end. The next owner's init settles what is left."""
        self._gives_up = when

    def hurry(self, seconds: float) -> None:
        """The process ends: a reopen takes no longer than so many seconds from now, all its calls together."""
        self._hurry = Deadline(seconds)

    def __repr__(self) -> str:
        return f"<ShardProducer {self.transactional_id} {self._state}>"

    # --- life --------------------------------------------------------------------------------------

    def open(self) -> None:
        """Fence every older producer of the shard; end what it left open. Does nothing if open already."""
        refuse_elsewhere(self.home, "open()")
        if self._state is ProducerState.NEW:
            self._init("")

    def close(self) -> None:
        """Abort what is open (confluent-kafka's close does not: the LSO would stay pinned), and let go.

        Raises:
            UsageError: a call of its transaction is at work: a signal handler closes it, or another thread. Or this is a fork.
        """
        refuse_elsewhere(self.home, "close()")
        transaction = self._open_transaction
        if transaction is not None and transaction is self._begun:
            if transaction.at_work:
                raise UsageError(
                    f"close(): the transaction of {self!r} is being ended. Fix: leave its block first, then close"
                )
            transaction.settle(UsageError("the producer was closed inside a transaction"))
        self._drop_client()
        self._forgotten.close()
        if self._state is not ProducerState.FENCED:
            self._state = ProducerState.CLOSED

    def transaction(self) -> Transaction:
        """A new transaction as a block; see :meth:`new_transaction`."""
        return Transaction(self.new_transaction())

    def new_transaction(self) -> ShardTransaction:
        """A new transaction, not yet begun.

        A producer that is suspect is reopened first: see :meth:`reopen`.

        Raises:
            UsageError: the last transaction is still open, the producer is closed, or a commit without an answer
                has happened and the caller has not called :meth:`reopen` to learn it: its input would be processed twice.
            FencedError: another owner has the shard.
        """
        refuse_elsewhere(self.home, "transaction()")
        with self._one_thread:
            return self._transaction()

    def _transaction(self) -> ShardTransaction:
        self._require_usable()
        if self._state is ProducerState.NEW:
            self.open()
        if (
            self._settings.transaction.fence_every == "transaction"
            and self._state is ProducerState.READY
            and self._used
        ):
            self._suspect("fence_every = transaction")
        if not self._committed_unreported and self._state in (ProducerState.SUSPECT, ProducerState.OVER):
            self._committed_unreported = self.reopen() is Outcome.COMMITTED
        if self._committed_unreported:
            raise UsageError(
                f"{self!r}: the last commit got no answer, and it has happened: its records must not be produced again. "
                "Fix: call reopen() after a CommitOutcomeUnknownError; it returns the outcome of the commit"
            )
        transaction = ShardTransaction(self._require_client(), self)
        self.topics.begin()
        self._open_transaction = transaction
        return transaction

    def begins(self, transaction: ShardTransaction) -> None:
        """Called by the transaction, before its client begins.

        Raises:
            UsageError: another one was made meanwhile, as by another thread: both would write into one transaction.
        """
        refuse_elsewhere(self.home, "begin()")
        with self._one_thread:
            if self._open_transaction is not transaction:
                raise UsageError(
                    f"{self!r}: another transaction of it was made since this one. {_ONE_THREAD}"
                )
            self._begun = transaction

    def reopen(self) -> Outcome:
        """Close and open again under the same id, and show that no other owner came in between.

        Before the init (which would fence the current owner) and after it, the committed offsets must be what
        this producer last committed, metadata included.

        A producer that has sent no offsets compares its epoch instead. So does one whose offsets another owner of the id need not
        touch (``by_epoch``): what it had committed in one partition stays as it was when its successor commits in another one. The
        epoch cannot settle a transaction that expired or got no answer, and then this raises.

        Returns:
            The outcome of an unanswered commit (ABORTED if there was none, UNKNOWN if it carried no offsets).

        Raises:
            FencedError: another owner has the shard.
            UsageError: a transaction is open, or the producer is not.
            ReopenError: nothing shows whether another owner came; the producer is closed.
            UnavailableError: the cluster did not answer in time.
        """
        self._require_usable()
        if self._state is ProducerState.NEW:
            raise UsageError(f"{self!r}: it is not open")
        if self._committed_unreported:  # a call of transaction() has learned it meanwhile
            self._committed_unreported = False
            return Outcome.COMMITTED
        reason = self._why or "reopened"
        try:
            group = self._offsets.group
            if group is not None:
                self._offsets.look_for_rival(group, after_a_fence=self._fence_unproven)
            if group is None or self._by_epoch or (self._id_expired and not self._offsets.show_owners):
                return self._reopen_by_epoch(reason)
            self._drop_client()
            self._init(reason)
            # Not ready before the comparison: if it cannot be made now, the next begin reopens again.
            self._over(reason)
            outcome = self._offsets.compare(group)
        except FencedError as error:
            raise self._fenced(error) from error
        self._state = ProducerState.READY
        self._why = ""
        left, self._unresolved = self._unresolved, None
        # No offset shows what became of a commit that carried none.
        result = Outcome.UNKNOWN if left and left.commit_sent and not left.offsets else outcome
        if left and result is Outcome.COMMITTED:
            left.has_committed()
        self._offsets.ledger.ended(outcome)
        self._offsets.ledger.proved()
        return result

    # --- offsets -----------------------------------------------------------------------------------

    def ledger_of(self, group_id: str) -> Ledger:
        """What this producer has committed in a group, which is the only one from now on.

        Raises:
            UsageError: it has committed in another group.
        """
        return self._offsets.ledger_of(group_id)

    def take_over(self, group_id: str, partitions: Iterable[Partition]) -> dict[Partition, Committed]:
        """What a group has stored for partitions that this owner takes over; later comparisons start from it.

        Read after the init, which has ended what the last owner left pending. Partitions without an offset are
        left out.

        Raises:
            UsageError: the producer is not open, or has committed in another group.
            UnavailableError: the cluster did not answer, or another transaction stayed pending on the offsets.
        """
        self._require_client()
        return self._offsets.take_over(group_id, partitions)

    def refuse_rival(self) -> None:
        """Look whether another owner has committed since the offsets were taken over. Raises FencedError."""
        try:
            if self._offsets.group is not None:
                self._offsets.look_for_rival(self._offsets.group, after_a_fence=False)
        except FencedError as error:
            raise self._fenced(error) from error

    def claim(self, partitions: Iterable[Partition]) -> None:
        """Nothing to do: :meth:`open` has fenced every older producer of the shard, and the group its older members."""

    def offsets_sent(self, offsets: OffsetVector, group_id: str) -> Mapping[Partition, Committed]:
        """A transaction is about to send these offsets; returns them with the metadata to store. Called by the transaction.

        Raises: as :meth:`OwnOffsets.sent`.
        """
        return self._offsets.sent(offsets, group_id)

    def ended(self, transaction: ShardTransaction, *errors: BaseException) -> None:
        """A transaction has reached a final state. Called by the transaction; again, if an exception has left this call."""
        self._open_transaction = None
        self._used = True
        client = self._client
        for error in errors:
            if isinstance(error, FencedError):
                self._fenced(error)
        event: Event | None = None  # sent last: the listener is the caller's code, and may raise
        if transaction.state is TransactionState.COMMITTED:
            self._settle(Outcome.COMMITTED)
            event = TransactionCommitted(
                self.transactional_id,
                transaction.records_in,
                transaction.records_out,
                transaction.offsets,
                transaction.seconds,
                transaction.commit_seconds,
            )
        elif transaction.state is TransactionState.ABORTED:
            # A TxnOffsetCommit that arrives late would overwrite the offsets of the next transaction; a commit that
            # was answered with an error may still be carried out (the broker's answer -1 says nothing).
            sent = transaction.commit_sent or self._offsets.ledger.pending is not None
            if sent and self._state is ProducerState.READY:
                self._suspect("offsets or a commit had been sent in a transaction that was then aborted")
            self._settle(Outcome.ABORTED)
            event = TransactionEnded(self.transactional_id, "aborted", _shown(errors), transaction.seconds)
        elif self._state is not ProducerState.FENCED:
            self._left_unresolved(transaction, errors)
        if self._state is ProducerState.READY and client is not None and client.suspicion:
            self._suspect(client.suspicion)
        if event is not None:
            self._listener(event)
        if transaction.state is TransactionState.COMMITTED and client is not None and client.forgets_offsets:
            self._commit_what_is_forgotten(transaction)

    # --- inside ------------------------------------------------------------------------------------

    def _init(self, reason: str) -> None:
        began = time.monotonic()
        config = producer_config(self._settings, self.transactional_id)
        client = TransactionalClient(config, transaction_timeout_s=self.timeout_s, doubt=self._doubt)
        on_retry = (
            None if self._listener is ignore_event else self.on_retry
        )  # who listens to nothing has the log
        try:
            retry.resume(Call.INIT, client.init, deadline=Deadline(self._open_timeout_s), on_retry=on_retry)
        except BaseException as error:
            client.close()
            self._doubt.init_may_come_late(f"it ended with {type(error).__name__}")
            if isinstance(error, FencedError):
                self._fenced(error)
            raise
        self._client = client
        self._state = ProducerState.READY
        self._why = ""
        self._fence_unproven = self._id_expired = False
        self._used = False
        self._forgotten.epoch_begins()
        self._listener(ProducerOpened(self.transactional_id, time.monotonic() - began, reason))

    def _commit_what_is_forgotten(self, transaction: ShardTransaction) -> None:
        """Commit the offsets of a committed transaction again where the group's coordinator has forgotten them.

        Nothing is raised: the transaction is committed. The next one with these partitions mends it as well.
        """
        group = transaction.group
        if group is None or not transaction.offsets or self._commits_again or self.given_up():
            return
        self._commits_again = True
        try:
            for attempt in range(1, _COMMITS_AGAIN + 1):
                forgotten = self._forgotten.of(group.group_id, self._offsets.ledger)
                if not forgotten:
                    return
                named = f"the group's coordinator has forgotten the offsets of {listed(forgotten, _MAX_NAMED)}: committed again"
                self.on_retry(Call.SEND_OFFSETS, attempt, RetriableError(named))
                again = self.new_transaction()
                again.begin()
                again.add_offsets(transaction.offsets.only(forgotten), group)
                again.commit()
        except EosError as error:
            self.on_retry(Call.COMMITTED, 1, error)
        finally:
            self._commits_again = False

    def _reopen_by_epoch(self, reason: str) -> Outcome:
        """The epoch is the proof: it rises by one per init, and ours is the only one since.

        Only after a transaction that ended cleanly: the abort of an expired one raises the epoch as well, and
        then a rival's init looks the same as the coordinator's abort.
        """
        client = self._client  # None if an init has failed meanwhile
        before = client.identity(_IDENTITY_WAIT_S) if client is not None else None
        sent_again = client.suspicion if client is not None else ""
        if self._state is ProducerState.OVER or before is None:
            self.close()
            raise ReopenError(
                f"{self.transactional_id}: {reason}. {self._nothing_shows()} whether another owner came since. {_CLAIM_ANEW}"
            )
        self._drop_client()
        self._init(reason)
        after = self._require_client().identity(_IDENTITY_WAIT_S)
        if after is not None and _follows(before, after):
            return Outcome.ABORTED
        rose = f"{self.transactional_id}: the producer epoch went from {before} to {after} while one init was ours"
        doubt = self._doubt.reason
        if after is not None and after.producer_id != before.producer_id and not after.epoch:
            self.close()
            raise ReopenError(f"{expired_id(rose)}. {_CLAIM_ANEW}", code=ID_EXPIRED)
        if after is not None and sent_again and after.epoch == before.epoch + 2:
            doubt = (
                doubt
                or f"a copy of a request of its own that arrived late and opened a transaction ({sent_again})"
            )
        if after is not None and not doubt:
            raise FencedError(f"{rose}: another owner has opened the shard. {ONE_OWNER}")
        self.close()
        other = f"it comes from {doubt}" if doubt else "the new epoch did not arrive in time"
        raise ReopenError(
            f"{rose}: another owner has opened the shard, or {other}. {self._nothing_shows()} which. {_CLAIM_ANEW}"
        )

    def _nothing_shows(self) -> str:
        if self._offsets.group is None:
            return "Its transactions carried no offsets, so nothing shows"
        return "The group's committed offsets show what has been committed, but not"

    def _left_unresolved(self, transaction: ShardTransaction, errors: Sequence[BaseException]) -> None:
        self._unresolved = transaction
        self._over(_shown(errors))
        if any(isinstance(error, UnprovenFenceError) for error in errors):
            self._fence_unproven = True
            self._doubt.doubted()
        if any(isinstance(error, EosError) and error.code == ID_EXPIRED for error in errors):
            self._id_expired = True
        expired = [error for error in errors if isinstance(error, TransactionExpiredError)]
        self._listener(
            TransactionEnded(
                self.transactional_id,
                "expired" if expired else "unresolved",
                _shown(expired or errors),
                transaction.seconds,
            )
        )

    @property
    def _open_timeout_s(self) -> float:
        timeout_s = self._settings.open_timeout_s
        return timeout_s if self._hurry is None else min(timeout_s, self._hurry.left_s)

    def _settle(self, outcome: Outcome) -> None:
        self._offsets.ledger.ended(outcome)
        if outcome is Outcome.COMMITTED:
            self._offsets.ledger.proved()

    def _over(self, reason: str) -> None:
        self._state = ProducerState.OVER
        self._why = reason

    def _suspect(self, reason: str) -> None:
        self._state = ProducerState.SUSPECT
        self._why = reason
        self._listener(ProducerSuspect(self.transactional_id, reason))

    def _fenced(self, error: FencedError) -> FencedError:
        if self._fence is None:
            self._fence = error
            self._drop_client()
            self._listener(Fenced(self.transactional_id, str(error)))
        self._state = ProducerState.FENCED
        return error

    def _drop_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _require_usable(self) -> None:
        if self._fence is not None:
            raise FencedError(str(self._fence), code=self._fence.code) from self._fence
        if self._state is ProducerState.CLOSED:
            raise UsageError(f"{self!r}: it is closed. Fix: make a new one")
        if self._open_transaction is not None and self._open_transaction is self._begun:
            raise UsageError(f"{self!r}: its transaction is still open; blocks do not nest. {_ONE_THREAD}")

    def _require_client(self) -> TransactionalClient:
        if self._client is None:
            raise UsageError(f"{self!r}: it is not open")
        return self._client

    def on_retry(self, call: Call, attempt: int, error: EosError) -> None:
        self._listener(CallRetried(self.transactional_id, call, attempt, str(error)))


def _follows(before: ProducerIdentity, after: ProducerIdentity) -> bool:
    if before.producer_id == after.producer_id:
        return after.epoch == before.epoch + 1
    return before.epoch >= LAST_EPOCH and after.epoch == 0


def _shown(errors: Iterable[BaseException]) -> str:
    return "; ".join(map(reason_of, errors))
