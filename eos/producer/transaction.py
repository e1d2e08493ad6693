"""One atomic unit: output records and input offsets that become visible together or never."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol, Self

from eos import retry
from eos.calls import Call
from eos.deadline import Deadline
from eos.errors import (
    AbortableError,
    AbortTransaction,
    CommitOutcomeUnknownError,
    EosError,
    RecordError,
    UnavailableError,
    UsageError,
)
from eos.headers import Header
from eos.kafka.group_offsets import Committed, GroupMetadata
from eos.kafka.producer import TransactionalClient
from eos.offsets import OffsetVector, Partition
from eos.producer.uninterrupted import uninterrupted
from eos.records import OutputBatch, OutputRecord, by_topic


class TransactionState(StrEnum):
    """Where a transaction is. It changes after the broker has answered, never before."""

    NEW = "new"
    OPEN = "open"
    COMMITTING = "committing"  # a commit was sent: only the same commit may follow
    COMMITTED = "committed"
    ABORTING = "aborting"
    ABORTED = "aborted"
    UNRESOLVED = "unresolved"  # the producer must be reopened; its init ends what is left


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


_MESSAGE_KEYS = frozenset({"value", "key", "headers", "timestamp_ms", "partition"})


class TransactionOwner(Protocol):
    """The producer that a transaction belongs to."""

    def offsets_sent(self, offsets: OffsetVector, group_id: str) -> Mapping[Partition, Committed]:
        """A commit with these offsets is about to be sent; returns them with the metadata to store."""
        ...

    def ended(self, transaction: Transaction, *errors: BaseException) -> None:
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


class Transaction:
    """A block: entering begins, leaving commits, an exception aborts and goes on untouched.

    Made by a session or a :class:`eos.TransactionalProducer`; single use.

    Raises (from the block's end):
        AbortableError: the transaction was aborted; rewind and begin anew.
        FencedError: another owner has the shard; stop.
        ReopenError: the producer will be reopened at the next begin; rewind.
        CommitOutcomeUnknownError: the commit stayed without an answer.
    """

    topics: Collection[str] | None = None  # those that may be written to; None: any
    in_block = False  # of a session, which alone begins and ends it, with the offsets
    records_in = 0  # only reported
    records_out = 0
    commit_sent = False
    seconds = 0.0
    commit_seconds = 0.0
    _state = TransactionState.NEW
    _offsets: OffsetVector | None = None
    _group: GroupMetadata | None = None
    _begun_at = 0.0
    _raised: EosError | None = None
    _errors: tuple[BaseException, ...] = ()  # that led to its end
    _end_noted = False  # by the owner

    def __init__(self, client: TransactionalClient, owner: TransactionOwner) -> None:
        self._client = client
        self._owner = owner

    @property
    def state(self) -> TransactionState:
        return self._state

    @property
    def committed(self) -> bool:
        """Whether its records and offsets are visible."""
        return self._state is TransactionState.COMMITTED

    def has_raised(self, error: BaseException) -> bool:
        """Whether a call of this transaction raised this error object, not the caller's code."""
        return error is self._raised

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
        return f"<Transaction {self._state} records_out={self.records_out} offsets={self.offsets!r}>"

    # --- the block -------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if error is None:
            self.commit()
            return False
        if self._state is TransactionState.OPEN:
            self.abort(error)
        return isinstance(error, AbortTransaction)

    def begin(self) -> None:
        """Begin; local, no request is sent before the first record."""
        self._refuse_in_block("begin")
        self._require(TransactionState.NEW, "begin")
        self._begun_at = time.monotonic()
        self._expires = Deadline(self._owner.timeout_s)
        try:
            self._client.begin()
        except BaseException as error:
            self._end(TransactionState.UNRESOLVED, error)
            raise
        self._move(TransactionState.OPEN)

    # --- filling ---------------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        headers: Sequence[Header] | Mapping[str, bytes | None] = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> None:
        """Add one record.

        Args:
            topic: where to; it must exist.
            value: None is a tombstone.
            key: decides the partition by murmur2, as in Java clients; None spreads records.
            headers: (name, value) pairs.
            timestamp_ms: milliseconds since the epoch, 1 or more; None takes the client's clock.
            partition: overrides the key's choice; 0 or more.

        Raises:
            UsageError: outside the block.
            RecordRefusedError: a timestamp or partition that the client would replace by another one.
            AbortableError: the transaction has failed; leaving the block aborts it.
        """
        self._require_open("produce")
        self._produce(
            topic,
            [value],
            [key],
            headers=[list(headers.items() if isinstance(headers, Mapping) else headers)] if headers else None,
            timestamps_ms=None if timestamp_ms is None else [timestamp_ms],
            partitions=None if partition is None else [partition],
        )
        self._poll()

    def produce_batch(self, topic: str, batch: Sequence[Mapping[str, Any]] | OutputBatch) -> None:
        """Add many records of one topic, without an object for each.

        Args:
            topic: where to; it must exist.
            batch: an OutputBatch of that topic, or dicts with the arguments of :meth:`produce`.

        Raises:
            UsageError: outside the block, the batch is for another topic, or a dict has other keys.
            AbortableError: the transaction has failed; leaving the block aborts it.
        """
        self._require_open("produce_batch")
        if not isinstance(batch, OutputBatch):
            batch = _as_columns(topic, batch)
        if batch.topic != topic:
            raise UsageError(f"produce_batch({topic!r}) was given a batch for {batch.topic!r}")
        self._produce(
            topic,
            batch.values,
            batch.keys,
            headers=batch.headers and [list(headers) for headers in batch.headers],
            timestamps_ms=batch.timestamps_ms,
            partitions=batch.partitions,
        )
        self._poll()

    def produce_records(self, records: Iterable[OutputRecord]) -> None:
        """Add records; per topic they keep their order."""
        self._require_open("produce_records")
        for batch in by_topic(list(records)):
            self.produce_batch(batch.topic, batch)

    def _produce(self, topic: str, values: Sequence[Any], keys: Sequence[Any] | None, **others: Any) -> None:
        if self.topics is not None and topic not in self.topics:
            raise UsageError(f"{topic!r} is not one of the outputs: {', '.join(sorted(self.topics))}")
        try:
            self._client.produce(topic, values, keys, **others, deadline=self._expires)
        except EosError as error:
            self._raised = error
            raise
        self.records_out += len(values)

    def _poll(self) -> None:
        try:
            self._client.poll_now_and_then()
        except EosError as error:
            self._raised = error
            raise

    def add_offsets(self, offsets: OffsetVector, group: GroupMetadata) -> None:
        """Add the input offsets, once and last: they are sent at the end, after every record.

        Args:
            offsets: per partition the next offset to read.
            group: the consumer's metadata, read now, not earlier (KIP-447).

        Raises:
            UsageError: outside the block, something else than these two, or a second time. Two sends of one transaction
                could be swapped by a resend, and the older offsets would win.
        """
        self._refuse_in_block("add_offsets")
        self._require_open("add_offsets")
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
        self._refuse_in_block("commit")
        self._require_open("commit")
        began = time.monotonic()
        try:
            self._client.poll()
            if self._offsets and self._group is not None:
                stored = self._owner.offsets_sent(self._offsets, self._group.group_id)
                self._send_offsets(stored, self._group)
        except BaseException as error:
            self.abort(error)
            raise
        self.commit_sent = True
        self._move(TransactionState.COMMITTING)
        try:
            self._resume_commit(self._owner.commit_timeout_s)
        except (AbortableError, RecordError) as error:
            self.abort(error)
            if self.state is TransactionState.UNRESOLVED:
                raise CommitOutcomeUnknownError(
                    f"{error}. The abort that followed failed too, so the commit may have happened; a reopen reads the outcome",
                    code=error.code,
                ) from error
            raise
        except EosError as error:
            self._end(TransactionState.UNRESOLVED, error)
            raise
        except BaseException as error:
            # A signal handler raised. After a sent commit no abort is allowed: the same commit is tried once more, for a short time.
            try:
                self._resume_commit(self._owner.abort_timeout_s)
            except AbortableError:
                # Mostly it has not been sent: the exception came while records were waited for.
                self.abort(error)
                raise error from None
            except BaseException as unanswered:
                self._end(TransactionState.UNRESOLVED, unanswered)
                raise error from unanswered
            self._committed(began)
            raise
        self._committed(began)

    def abort(self, reason: BaseException | None = None) -> None:
        """Abort. Errors of Kafka are not raised: the producer's next init ends what cannot be aborted in time.

        Raises:
            UsageError: the transaction is not open.
        """
        self._refuse_in_block("abort")
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

    # --- inside ----------------------------------------------------------------------------------

    def _send_offsets(self, offsets: Mapping[Partition, Committed], group: GroupMetadata) -> None:
        # librdkafka retries until the timeout, also for a partition that does not exist. Half of the remaining time, so
        # that the abort after it comes before the transaction expires.
        left_s = max(1.0, self._expires.left_s / 2)
        uninterrupted(lambda: self._client.send_offsets(offsets, group, left_s), left_s)

    def _resume_commit(self, seconds: float) -> None:
        try:
            self._resume(Call.COMMIT, self._client.commit, seconds)
        except UnavailableError as error:
            raise CommitOutcomeUnknownError(
                f"{error}. The records and offsets of the transaction are visible together or not at all; which of "
                "the two is read back after a reopen",
                code=error.code,
            ) from error

    def _resume(self, call: Call, function: Callable[[float], None], seconds: float) -> None:
        retry.resume(
            call,
            function,
            deadline=Deadline(seconds),
            on_retry=self._owner.on_retry,
            given_up=self._owner.given_up,
        )

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

    def _require_open(self, what: str) -> None:
        self._require(TransactionState.OPEN, what)

    def _refuse_in_block(self, what: str) -> None:
        if self.in_block:
            raise UsageError(
                f"{what}(): the session ends its transactions itself, with the offsets of their input. "
                "Fix: leave the block, or raise AbortTransaction"
            )

    def _require(self, state: TransactionState, what: str) -> None:
        if self._state is not state:
            raise UsageError(f"{what}: the transaction is {self._state}, not {state}; a block is used once")

    def _move(self, state: TransactionState) -> None:
        if state not in _NEXT[self._state]:
            raise UsageError(f"the transaction is {self._state} and cannot become {state}")
        self._state = state


class VoidTransaction(Transaction):
    """Stands for a transaction that could not begin: each produce raises the reason. It is never committed."""

    def __init__(self, reason: EosError) -> None:
        self._raised = self._reason = reason
        self._state = TransactionState.ABORTED

    def _require_open(self, what: str) -> None:  # noqa: ARG002 - as in the class above
        raise self._reason


def _as_columns(topic: str, messages: Iterable[Mapping[str, Any]]) -> OutputBatch:
    listed = list(messages)
    if unknown := {name for message in listed for name in message} - _MESSAGE_KEYS:
        raise UsageError(
            f"produce_batch takes dicts with {', '.join(sorted(_MESSAGE_KEYS))}, not {', '.join(sorted(unknown))}"
        )

    def column(name: str) -> list[Any]:
        return [message.get(name) for message in listed]

    headers = [tuple(of.items() if isinstance(of, Mapping) else of or ()) for of in column("headers")]
    return OutputBatch(
        topic, column("value"), column("key"), headers, column("timestamp_ms"), column("partition")
    )
