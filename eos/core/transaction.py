"""One atomic unit: output records and input offsets that become visible together or never."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NoReturn, Protocol, Self

from eos import retry
from eos.base.calls import Call
from eos.base.deadline import Deadline
from eos.core.topics_used import TopicsUsed
from eos.core.uninterrupted import uninterrupted
from eos.errors import (
    COMMITTED_SHOW,
    AbortableError,
    AbortTransaction,
    CommitOutcomeUnknownError,
    EosError,
    RecordRefusedError,
    UnavailableError,
    UsageError,
    reason_of,
)
from eos.headers import Header
from eos.home import Home, end_elsewhere, refuse_elsewhere
from eos.kafka.group_offsets import Committed, GroupMetadata
from eos.kafka.producer import TransactionalClient
from eos.offsets import OffsetVector, Partition
from eos.records import OutputBatch


class TransactionState(StrEnum):
    """Where a transaction is. It changes after the broker has answered, never before."""

    NEW = "new"
    OPEN = "open"
    COMMITTING = "committing"  # a commit was sent: only the same commit may follow
    COMMITTED = "committed"
    ABORTING = "aborting"
    ABORTED = "aborted"
    UNRESOLVED = "unresolved"  # the producer must be reopened, which ends what is left, and may show that it is committed


_NEXT: Mapping[TransactionState, frozenset[TransactionState]] = {
    TransactionState.NEW: frozenset({TransactionState.OPEN, TransactionState.UNRESOLVED}),
    TransactionState.OPEN: frozenset({TransactionState.COMMITTING, TransactionState.ABORTING}),
    TransactionState.COMMITTING: frozenset(
        {TransactionState.COMMITTED, TransactionState.ABORTING, TransactionState.UNRESOLVED}
    ),
    TransactionState.ABORTING: frozenset({TransactionState.ABORTED, TransactionState.UNRESOLVED}),
    TransactionState.COMMITTED: frozenset(),
    TransactionState.ABORTED: frozenset(),
    TransactionState.UNRESOLVED: frozenset(),
}


# Of one topic: its name, values, keys, and the other columns of `TransactionalClient.produce`.
Columns = tuple[str, Sequence[Any], Sequence[Any] | None, Mapping[str, Any]]


class TransactionOwner(Protocol):
    """The producer that a transaction belongs to."""

    def offsets_sent(self, offsets: OffsetVector, group_id: str) -> Mapping[Partition, Committed]:
        """A commit with these offsets is about to be sent; returns them with the metadata to store."""
        ...

    def begins(self, transaction: ShardTransaction) -> None:
        """The transaction begins, unless another one is open."""
        ...

    @property
    def topics(self) -> TopicsUsed:
        """Whether the topics of the transaction stay the same."""
        ...

    def ended(self, transaction: ShardTransaction, *errors: BaseException) -> None:
        """The transaction reached a final state, with the errors that led there."""
        ...

    def on_retry(self, call: Call, attempt: int, error: EosError) -> None:
        """A call is made again."""
        ...

    # How long the steps may take.
    @property
    def timeout_s(self) -> float: ...
    @property
    def commit_timeout_s(self) -> float: ...
    @property
    def abort_timeout_s(self) -> float: ...
    def given_up(self) -> bool:
        """Whether the process has to end now: a call is then not resumed."""
        ...


class ShardTransaction:
    """A transaction's moves, each once; its errors are those of :class:`Transaction`, which is what users get.

    Made by a :class:`ShardProducer`.
    """

    records_in = 0  # only reported
    records_out = 0
    seconds = 0.0
    commit_seconds = 0.0
    at_work = False  # whether a call waits for the brokers
    _state = TransactionState.NEW
    _offsets: OffsetVector | None = None
    _group: GroupMetadata | None = None
    _begun_at = 0.0
    _raised: EosError | None = None
    _left_by = (
        ""  # which call was left by what, with records queued or not: what its caller made of it is unknown
    )
    _errors: tuple[BaseException, ...] = ()  # that led to its end
    _end_noted = False  # by the owner

    def __init__(self, client: TransactionalClient, owner: TransactionOwner) -> None:
        self._client = client
        self._owner = owner
        self._written: set[str] = set()  # topics
        self._home = Home.here

    @property
    def state(self) -> TransactionState:
        return self._state

    @property
    def may_have_output(self) -> bool:
        """Whether records were produced."""
        return self.records_out > 0

    @property
    def commit_sent(self) -> bool:
        """Whether its outcome may be another one than ours."""
        return self._client.commit_called

    @property
    def committed(self) -> bool:
        """Whether its records and offsets are visible."""
        return self._state is TransactionState.COMMITTED

    def meant_by(self, error: BaseException) -> EosError | None:
        """The error itself if a call of this transaction raised this object; None: it is of the caller's code."""
        return self._raised if error is self._raised else None

    @property
    def open_s(self) -> float:
        """Seconds since it was begun."""
        return time.monotonic() - self._begun_at

    @property
    def offsets(self) -> OffsetVector:
        """The input offsets added so far."""
        return self._offsets if self._offsets is not None else OffsetVector()

    @property
    def group(self) -> GroupMetadata | None:
        """The consumer's metadata that was given with them."""
        return self._group

    def __repr__(self) -> str:
        return f"<ShardTransaction {self._state} records_out={self.records_out} offsets={self.offsets!r}>"

    # --- the block -------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self.begin()
        except BaseException as error:
            if self._state is TransactionState.OPEN:  # a signal handler's, before the block
                self.abort(error)
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        end_elsewhere(self._home)
        if error is None:
            self.commit()
            return False
        if self._state is TransactionState.OPEN:
            self.abort(error)
        return isinstance(error, AbortTransaction)

    def begin(self) -> None:
        """Begin; local, no request is sent before the first record."""
        self._require(TransactionState.NEW, "begin")
        self._owner.begins(self)
        self._begun_at = time.monotonic()
        self._expires = Deadline(self._owner.timeout_s)
        try:
            self._client.begin()
            self._move(TransactionState.OPEN)
        except BaseException as error:
            if self._state is TransactionState.NEW:
                self._end(TransactionState.UNRESOLVED, error)
            raise

    # --- filling ---------------------------------------------------------------------------------

    def fill(self, batches: Iterable[Columns], *, call: str = "fill") -> None:
        """Produce records, by topic and column, of one call of the caller's. What is left in between by any exception must not commit.

        The exception of a signal handler may come when a record is queued and the caller does not know; produced again, it would
        be there twice. The same where a part of the records is queued, and another one refused.
        """
        queued = 0
        try:
            for topic, values, keys, others in batches:
                if topic not in self._written:
                    self._owner.topics.write(topic)
                    self._written.add(topic)
                self._client.produce(topic, values, keys, **others, deadline=self._expires)
                queued += len(values)
                self.records_out += len(values)
            self._client.poll_now_and_then()
        except BaseException as error:
            if queued or not self._client.refused_whole(error):
                self._left_by = self._left_by or f"{call}() was left by {reason_of(error)}"
            if not isinstance(error, EosError):
                raise
            self._raised = self._owner.topics.explained(error)
            if self._raised is error:
                raise
            raise self._raised from error

    def add(self, outputs: Sequence[OutputBatch]) -> None:
        """Produce what a transform has returned."""
        self.fill(map(columns_of, outputs))

    def add_offsets(self, offsets: OffsetVector, group: GroupMetadata) -> None:
        """Add the input offsets, once and last: they are sent at the end, after every record.

        Args:
            offsets: per partition the next offset to read.
            group: the consumer's metadata, read now, not earlier (KIP-447).

        Raises:
            UsageError: outside the block, something else than these two, or a second time. Two sends of one transaction
                could be swapped by a resend, and the older offsets would win.
        """
        self.require_open("add_offsets")
        try:
            self._add_offsets(offsets, group)
        except UsageError:
            raise
        except BaseException as error:
            self._left_by = self._left_by or f"add_offsets() was left by {reason_of(error)}"
            raise

    def _add_offsets(self, offsets: OffsetVector, group: GroupMetadata) -> None:
        if not isinstance(offsets, OffsetVector) or not isinstance(group, GroupMetadata):
            raise UsageError(
                f"add_offsets: got {type(offsets).__name__} and {type(group).__name__}. "
                "Fix: OffsetVector({Partition(topic, number): next offset}) and consumer.group_metadata()"
            )
        if wrong := [partition for partition in offsets if not isinstance(partition, Partition)]:
            raise UsageError(f"add_offsets: {wrong[0]!r} is no eos.Partition(topic, number)")
        if self._offsets is not None:
            raise UsageError("add_offsets: offsets are added once per transaction, as its last step")
        self._offsets = offsets
        self._group = group

    # --- ending ----------------------------------------------------------------------------------

    def commit(self) -> None:
        """Send the offsets, then commit. See the class for what it raises."""
        self.require_open("commit")
        began = time.monotonic()
        try:
            self._client.poll()
            self._require_whole()
            if self._offsets and self._group is not None:
                stored = self._owner.offsets_sent(self._offsets, self._group.group_id)
                self._send_offsets(stored, self._group)
        except BaseException as error:  # noqa: BLE001 - raised again
            self._abort_and_raise(error)
        self._move(TransactionState.COMMITTING)
        try:
            self._resume_commit(self._owner.commit_timeout_s)
        except EosError as error:
            if isinstance(error, (AbortableError, RecordRefusedError)) or not self.commit_sent:
                self._abort_and_raise(error)
            self._end(TransactionState.UNRESOLVED, error)
            if not isinstance(error, CommitOutcomeUnknownError) and self._client.commit_sent_again:
                raise CommitOutcomeUnknownError(
                    f"{error}. The commit may have been sent more than once, and have happened before this answer; {COMMITTED_SHOW}",
                    code=error.code,
                ) from error
            raise
        except BaseException as error:
            # A signal handler raised.
            if not self.commit_sent:
                self.abort(error)
                raise
            # No abort is allowed: the same commit is tried once more, for a short time.
            try:
                self._resume_commit(self._owner.abort_timeout_s)
            except AbortableError:
                self.abort(error)
                raise error from None
            except BaseException as unanswered:
                self._end(TransactionState.UNRESOLVED, unanswered)
                raise error from unanswered
            self._committed(began)
            raise
        self._committed(began)

    def _abort_and_raise(self, error: BaseException) -> NoReturn:
        """Abort a transaction whose commit cannot be sent, or was answered so, and raise why."""
        explained = self._owner.topics.explained(error) if isinstance(error, EosError) else error
        self.abort(explained)
        if self.commit_sent and self._state is TransactionState.UNRESOLVED:
            raise CommitOutcomeUnknownError(
                f"{error}. The abort that followed failed too, so the commit may have happened or not; {COMMITTED_SHOW}",
                code=explained.code if isinstance(explained, EosError) else None,
            ) from error
        if explained is error:
            raise error
        raise explained from error

    def abort(self, reason: BaseException | None = None) -> None:
        """Abort. Errors of Kafka are not raised: the producer's next init ends what cannot be aborted in time.

        Raises:
            UsageError: the transaction is not open.
        """
        self._move(TransactionState.ABORTING)
        reasons = () if reason is None else (reason,)
        try:
            self._resume(Call.ABORT, self._client.abort, self._owner.abort_timeout_s)
        except BaseException as error:
            if reason is not None:
                reason.add_note(f"the abort that followed failed too: {error}")
            self._end(TransactionState.UNRESOLVED, *reasons, error)
            if isinstance(error, EosError):
                return
            raise
        self._end(TransactionState.ABORTED, *reasons)

    def settle(self, reason: BaseException) -> None:
        """Bring it to an end, after an exception of a signal handler has left any call of it."""
        if self._state is TransactionState.OPEN:
            self.abort(reason)
        elif _NEXT[self._state]:
            # The call may have reached the broker, or not.
            self._end(TransactionState.UNRESOLVED, reason)
        elif not self._end_noted:
            self._note_end()

    def has_committed(self) -> None:
        """A reopen has shown that the commit without an answer has happened."""
        self._state = TransactionState.COMMITTED

    # --- inside ----------------------------------------------------------------------------------

    def _send_offsets(self, offsets: Mapping[Partition, Committed], group: GroupMetadata) -> None:
        # librdkafka retries until the timeout, also for a partition that does not exist. Half of the remaining time, so
        # that the abort after it comes before the transaction expires.
        left_s = max(1.0, self._expires.left_s / 2)
        try:
            self.at_work = True
            uninterrupted(
                lambda: self._client.send_offsets(offsets, group, left_s),
                left_s,
                self._owner.given_up,
                meanwhile=lambda over: self._client.prepare_commit(self._owner.topics.last_look, over),
            )
        finally:
            self.at_work = False

    def _resume_commit(self, seconds: float) -> None:
        try:
            look = self._owner.topics.last_look
            self._resume(Call.COMMIT, lambda slice_s: self._client.commit(slice_s, look), seconds)
        except UnavailableError as error:
            if not self.commit_sent:
                error.unanswered = False  # the records wait, and no question: it counts as a try
                raise AbortableError(
                    f"{error}. No commit was sent, so the transaction is aborted", code=error.code
                ) from error
            raise CommitOutcomeUnknownError(
                f"{error}. The records and offsets of the transaction are visible together or not at all; {COMMITTED_SHOW}",
                code=error.code,
            ) from error

    def _resume(self, call: Call, function: Callable[[float], None], seconds: float) -> None:
        try:
            self.at_work = True
            retry.resume(
                call,
                function,
                deadline=Deadline(seconds),
                on_retry=self._owner.on_retry,
                given_up=self._owner.given_up,
            )
        finally:
            self.at_work = False

    def _committed(self, began: float) -> None:
        self.commit_seconds = time.monotonic() - began
        self._end(TransactionState.COMMITTED)

    def _end(self, state: TransactionState, *errors: BaseException) -> None:
        self._errors = errors
        self._move(state)
        self._note_end()

    def _note_end(self) -> None:
        self.seconds = time.monotonic() - self._begun_at
        self._owner.ended(self, *self._errors)
        self._end_noted = True

    def require_open(self, what: str) -> None:
        """Refuse a call of the caller's outside its block, in a fork, or behind an exception that has left another one."""
        refuse_elsewhere(self._home, what)
        self._require(TransactionState.OPEN, what)
        if what != "commit":  # which aborts
            self._require_whole()

    def _require_whole(self) -> None:
        if self._left_by:
            self._client.check_deliveries()  # may say more
            self._raised = AbortableError(
                f"{self._left_by}. Whether its records are in the transaction is not known to the code that went on, so it is "
                "aborted. Fix: let the exception end the block"
            )
            raise self._raised

    def _require(self, state: TransactionState, what: str) -> None:
        if self._state is not state:
            raise UsageError(f"{what}: the transaction is {self._state}, not {state}; a block is used once")

    def _move(self, state: TransactionState) -> None:
        if state not in _NEXT[self._state]:
            raise UsageError(f"the transaction is {self._state} and cannot become {state}")
        self._state = state


def listed_headers(headers: Any) -> list[Header]:
    """(name, value) pairs of what a user gave as headers."""
    return list(headers.items() if isinstance(headers, Mapping) else headers)


def columns_of(batch: OutputBatch) -> Columns:
    """As :meth:`ShardTransaction.fill` takes it."""
    columns: dict[str, Any] = {
        "headers": batch.headers and [listed_headers(of_record) for of_record in batch.headers],
        "timestamps_ms": batch.timestamps_ms,
        "partitions": batch.partitions,
    }
    return batch.topic, batch.values, batch.keys, columns
