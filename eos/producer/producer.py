"""ShardProducer: a shard's producer through its life: open, transaction, suspect, reopen, close."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Self

from eos import retry
from eos.calls import Call
from eos.deadline import Deadline
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
    TransactionAborted,
    TransactionCommitted,
    TransactionExpired,
    TransactionUnresolved,
    guarded,
    ignore_event,
)
from eos.group.committed import committed_offsets, fresh_reader
from eos.group.expiry import StartedPartitions
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.group.topic_ids import refuse_recreated, stored_topic_ids
from eos.kafka.config import producer_config
from eos.kafka.group_offsets import Committed
from eos.kafka.late_copies import FenceDoubt
from eos.kafka.producer import ProducerIdentity, TransactionalClient
from eos.listing import listed
from eos.offsets import OffsetVector, Partition
from eos.producer.forgotten import ForgottenOffsets
from eos.producer.last_commit import Outcome, OwnedOffsets
from eos.producer.topics_used import TopicsUsed
from eos.producer.transaction import Transaction, TransactionState
from eos.settings import Settings
from eos.shards import Shard

# An abort needs one round trip; what is not aborted by then is ended by the next init, or by the timeout.
_ABORT_DEADLINE_S = 15.0
_IDENTITY_WAIT_S = 2.0
_MAX_EPOCH = 32_766  # the coordinator gives out a new producer id after it
# How long a rival has to show a commit after a fence: a session commits the offsets it took over some 0.1 s after its init.
_RIVAL_SHOWS_S = 3.0
_LOOK_EVERY_S = 0.2
_COMMITS_AGAIN = 3
_MAX_NAMED = 3
_ONE_THREAD = "Fix: leave its block first; in several threads a producer for each, with an ordinal of its own, or a lock around the block"
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


class ShardProducer:
    """The one producer of a shard.

    The transactional.id comes from the shard, so another process that opens the same shard fences this producer,
    and aborts at once what it left open. Errors are those of :class:`eos.TransactionalProducer`.

    Args:
        settings: how to reach the cluster, and the transaction's limits.
        shard: the unit of ownership.
        listener: called with each event.
        metadata: what is stored with offsets; by default with a new owner token.
        started_partitions: per topic, how many partitions have or had an offset, for the next day (`eos.group.expiry`);
            by default the first commit reads it.
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
        started_partitions: Mapping[str, int] | None = None,
        compare_when_fenced: bool = False,
    ) -> None:
        self.shard = shard
        self.transactional_id = shard.transactional_id
        self._settings = settings
        self._listener = guarded(listener)
        metadata = metadata or OffsetMetadata(OwnershipMode(settings.ownership.mode), str(shard))
        self._metadata = replace(metadata, app=shard.app)
        self.topics = TopicsUsed(settings)
        self._state = ProducerState.NEW
        self._why = ""
        self._fence: FencedError | None = None
        self._client: TransactionalClient | None = None
        self._open_transaction: Transaction | None = None
        self._begun: Transaction | None = None  # the open one, if it has begun
        self._one_thread = threading.RLock()  # makes a transaction, or lets it begin
        self._owned: dict[str, OwnedOffsets] = {}  # by group
        self._known_started = started_partitions
        self._started: dict[str, StartedPartitions] = {}  # by group
        self._used = False  # since the last init
        self._unanswered = False  # a commit without offsets got no answer
        self._committed_unreported = (
            False  # an unanswered commit has happened, and the caller has not learned it yet
        )
        self._given_up = False
        self._hurry: Deadline | None = None
        self._doubt = FenceDoubt(_OTHER_CAUSES if compare_when_fenced else "")
        self._fence_unproven = False  # since the last init
        self._forgotten = ForgottenOffsets(settings)
        self._commits_again = False

    @property
    def state(self) -> ProducerState:
        return self._state

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
        return self._given_up

    def give_up(self) -> None:
        """Leave calls without an answer: the process has to end. The next owner's init settles what is left."""
        self._given_up = True

    def hurry(self, seconds: float) -> None:
        """The process ends: a reopen takes no longer than so many seconds from now, all its calls together."""
        self._hurry = Deadline(seconds)

    def __repr__(self) -> str:
        return f"<ShardProducer {self.transactional_id} {self._state}>"

    # --- life --------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Fence every older producer of the shard; end what it left open. Does nothing if open already."""
        if self._state is ProducerState.NEW:
            self._init("")

    def close(self) -> None:
        """Abort what is open (confluent-kafka's close does not: the LSO would stay pinned), and let go."""
        transaction = self._open_transaction
        if transaction is not None and transaction.state is TransactionState.OPEN:
            transaction.abort(UsageError("the producer was closed inside a transaction"))
        self._drop_client()
        self._forgotten.close()
        if self._state is not ProducerState.FENCED:
            self._state = ProducerState.CLOSED

    def transaction(self) -> Transaction:
        """A new transaction: a block that begins when it is entered.

        A producer that is suspect is reopened first: see :meth:`reopen`.

        Raises:
            UsageError: the last transaction is still open, the producer is closed, or a commit without an answer
                has happened and the caller has not called :meth:`reopen` to learn it: its input would be processed twice.
            FencedError: another owner has the shard.
        """
        with self._one_thread:
            return self._transaction()

    def _transaction(self) -> Transaction:
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
        transaction = Transaction(self._require_client(), self)
        self.topics.begin()
        self._open_transaction = transaction
        return transaction

    def begins(self, transaction: Transaction) -> None:
        """Called by the transaction, before its client begins.

        Raises:
            UsageError: another one was made meanwhile, as by another thread: both would write into one transaction.
        """
        with self._one_thread:
            if self._open_transaction is not transaction:
                raise UsageError(
                    f"{self!r}: another transaction of it was made since this one. {_ONE_THREAD}"
                )
            self._begun = transaction

    def reopen(self) -> Outcome:
        """Close and open again under the same id, and show that no other owner came in between.

        Before the init (which would fence the current owner) and after it, the committed offsets must be what
        this producer last committed, metadata included. A producer that has sent no offsets compares its epoch
        instead. It cannot settle a transaction that expired or got no answer, and raises.

        Returns:
            The outcome of an unanswered commit (ABORTED if there was none, UNKNOWN if it carried no offsets).

        Raises:
            FencedError: another owner has the shard.
            UsageError: a transaction is open, or the producer is not.
            ReopenError: the transactions carried no offsets to compare; the producer is closed.
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
            if not self._owned:
                return self._reopen_by_epoch(reason)
            self._look_for_rival()
            self._drop_client()
            self._init(reason)
            # Not ready before the comparison: if it cannot be made now, the next begin reopens again.
            self._over(reason)
            outcomes = [
                (owned, owned.compare(self._stored(group, owned, stable=True)))
                for group, owned in self._owned.items()
            ]
        except FencedError as error:
            raise self._fenced(error) from error
        self._state = ProducerState.READY
        self._why = ""
        result = Outcome.UNKNOWN if self._unanswered else Outcome.ABORTED
        self._unanswered = False
        for owned, outcome in outcomes:
            if owned.pending is not None:
                result = outcome
            owned.ended(outcome)
            owned.proved()
        return result

    def settle(self) -> None:
        """Reopen now if the next begin would: the owned offsets then have the outcome of an unanswered commit."""
        self._require_usable()
        if self._committed_unreported or self._state in (ProducerState.SUSPECT, ProducerState.OVER):
            self.reopen()

    # --- offsets -----------------------------------------------------------------------------------

    def owned_offsets(self, group_id: str) -> OwnedOffsets:
        """What this producer has committed for a group."""
        return self._owned.setdefault(group_id, OwnedOffsets(self._metadata))

    def take_over(self, group_id: str, partitions: Iterable[Partition]) -> dict[Partition, Committed]:
        """What a group has stored for partitions that this owner takes over; later comparisons start from it.

        Read after the init, which has ended what the last owner left pending. Partitions without an offset are
        left out.

        Raises:
            UsageError: the producer is not open.
            UnavailableError: the cluster did not answer, or another transaction stayed pending on the offsets.
        """
        self._require_client()
        wanted = tuple(partitions)
        stored = self._committed(group_id, wanted, stable=True)
        self.owned_offsets(group_id).taken_over(dict.fromkeys(wanted) | stored)
        return stored

    def offsets_sent(self, offsets: OffsetVector, group_id: str) -> Mapping[Partition, Committed]:
        """A transaction is about to send these offsets; returns them with the metadata to store. Called by the transaction.

        Raises:
            AbortableError: what the metadata needs could not be read.
            OffsetGapError: a topic was deleted and created anew since the stored offsets were committed.
        """
        owned = self.owned_offsets(group_id)
        # Offsets that say which topic they count in are compared at the last look, before the commit is sent. Of others the ids
        # are asked first: offsets that are read after it belong to the topic with this id, or that look refuses them.
        unnamed = {topic for topic, _ in offsets if not offsets.topic_ids.get(topic)}
        asked = self.topics.ids_of(unnamed)
        if unknown := offsets.without(owned.stored(offsets)):
            self.take_over(group_id, unknown)
        # Offsets that say themselves which topic they count in replace what is stored, also where that counts in a deleted one.
        stored_ids = stored_topic_ids(owned.stored(offsets))
        refuse_recreated(((t, i) for t, i in stored_ids if t in unnamed), asked)
        ids = {topic: asked.get(topic) or offsets.topic_ids.get(topic, "") for topic, _ in offsets}
        self.topics.read(ids)
        started = self._started.setdefault(
            group_id, StartedPartitions(self._settings, group_id, self._known_started)
        )
        return owned.sent(offsets, started.with_offsets_of(offsets), ids)

    def ended(self, transaction: Transaction, *errors: BaseException) -> None:
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
            sent = transaction.commit_sent or any(owned.pending is not None for owned in self._owned.values())
            if sent and self._state is ProducerState.READY:
                self._suspect("offsets or a commit had been sent in a transaction that was then aborted")
            self._settle(Outcome.ABORTED)
            event = TransactionAborted(self.transactional_id, _shown(errors), transaction.seconds)
        elif self._state is not ProducerState.FENCED:
            self._unresolved(transaction, errors)
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
        self._fence_unproven = False
        self._used = False
        self._forgotten.epoch_begins()
        self._listener(ProducerOpened(self.transactional_id, time.monotonic() - began, reason))

    def _commit_what_is_forgotten(self, transaction: Transaction) -> None:
        """Commit the offsets of a committed transaction again where the group's coordinator has forgotten them.

        Nothing is raised: the transaction is committed. The next one with these partitions mends it as well.
        """
        group = transaction.group
        if group is None or not transaction.offsets or self._commits_again or self._given_up:
            return
        self._commits_again = True
        try:
            for attempt in range(1, _COMMITS_AGAIN + 1):
                forgotten = self._forgotten.of(group.group_id, self.owned_offsets(group.group_id))
                if not forgotten:
                    return
                named = f"the group's coordinator has forgotten the offsets of {listed(forgotten, _MAX_NAMED)}: committed again"
                self.on_retry(Call.SEND_OFFSETS, attempt, RetriableError(named))
                again = self.transaction()
                again.begin()
                again.add_offsets(transaction.offsets.only(forgotten), group)
                again.commit()
        except EosError as error:
            self.on_retry(Call.COMMITTED, 1, error)
        finally:
            self._commits_again = False

    def _reopen_by_epoch(self, reason: str) -> Outcome:
        """Without offsets, the epoch is the proof: it rises by one per init, and ours is the only one since.

        Only after a transaction that ended cleanly: the abort of an expired one raises the epoch as well, and
        then a rival's init looks the same as the coordinator's abort.
        """
        client = self._client  # None if an init has failed meanwhile
        before = client.identity(_IDENTITY_WAIT_S) if client is not None else None
        if self._state is ProducerState.OVER or before is None:
            self.close()
            raise ReopenError(
                f"{self.transactional_id}: {reason}. Its transactions carried no offsets, so nothing shows whether "
                "another owner came since. Fix: make a new producer, which claims the shard anew",
            )
        self._drop_client()
        self._init(reason)
        after = self._require_client().identity(_IDENTITY_WAIT_S)
        if after is not None and _follows(before, after):
            return Outcome.ABORTED
        rose = f"{self.transactional_id}: the producer epoch went from {before} to {after} while one init was ours"
        doubt = self._doubt.reason
        if after is not None and not doubt:
            raise FencedError(f"{rose}: another owner has opened the shard. {ONE_OWNER}")
        self.close()
        other = f"it comes from {doubt}" if doubt else "the new epoch did not arrive in time"
        raise ReopenError(
            f"{rose}: another owner has opened the shard, or {other}. The transactions carried no offsets, so nothing shows "
            "which. Fix: make a new producer, which claims the shard anew",
        )

    def _look_for_rival(self) -> None:
        """Look for what only another owner can have committed, and after a fence give it time to commit."""
        deadline = Deadline(_RIVAL_SHOWS_S if self._fence_unproven else 0.0)
        while True:
            for group, owned in self._owned.items():
                owned.look_for_rival(self._stored(group, owned, stable=False))
            if deadline.passed:
                return
            time.sleep(_LOOK_EVERY_S)

    def _unresolved(self, transaction: Transaction, errors: Sequence[BaseException]) -> None:
        self._over(_shown(errors))
        if transaction.commit_sent and not transaction.offsets:
            self._unanswered = True  # and no offset shows its outcome
        if any(isinstance(error, UnprovenFenceError) for error in errors):
            self._fence_unproven = True
            self._doubt.doubted()
        if any(isinstance(error, TransactionExpiredError) for error in errors):
            self._listener(TransactionExpired(self.transactional_id, transaction.seconds))
        else:
            self._listener(TransactionUnresolved(self.transactional_id, _shown(errors), transaction.seconds))

    def _stored(self, group_id: str, owned: OwnedOffsets, *, stable: bool) -> dict[Partition, Committed]:
        return self._committed(group_id, owned.partitions, stable=stable)

    def _committed(
        self, group_id: str, partitions: Iterable[Partition], *, stable: bool
    ) -> dict[Partition, Committed]:
        """What the group has stored. Not ``stable``: also while a transaction is pending on the offsets."""
        with fresh_reader(self._settings, group_id, stable=stable) as reader:
            return committed_offsets(
                reader, partitions, timeout_s=self._open_timeout_s, on_retry=self.on_retry
            )

    @property
    def _open_timeout_s(self) -> float:
        timeout_s = self._settings.open_timeout_s
        return timeout_s if self._hurry is None else min(timeout_s, self._hurry.left_s)

    def _settle(self, outcome: Outcome) -> None:
        for owned in self._owned.values():
            owned.ended(outcome)
            if outcome is Outcome.COMMITTED:
                owned.proved()

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
            raise UsageError(f"{self!r}: it is closed")
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
    return before.epoch >= _MAX_EPOCH and after.epoch == 0


def _shown(errors: Iterable[BaseException]) -> str:
    return "; ".join(map(reason_of, errors))
