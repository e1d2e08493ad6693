"""Transaction: what a user fills inside a block."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Self

from eos.core.transaction import ShardTransaction, TransactionState, columns_of, listed_headers
from eos.errors import EosError, UsageError
from eos.headers import Header
from eos.kafka.group_offsets import GroupMetadata
from eos.offsets import OffsetVector
from eos.records import OutputBatch, OutputRecord, by_topic

_MESSAGE_KEYS = frozenset({"value", "key", "headers", "timestamp_ms", "partition"})


class Transaction:
    """A block: entering begins, leaving commits, an exception aborts and goes on untouched.

    Made by a session, which enters and leaves it itself, or a :class:`eos.TransactionalProducer`; single use.

    Raises (from the block's end):
        AbortableError: the transaction was aborted; rewind and begin anew.
        FencedError: another owner has the shard; stop.
        ReopenError: the producer will be reopened at the next begin; rewind.
        CommitOutcomeUnknownError: the commit stayed without an answer.

    Args:
        inner: its moves; or why it could not begin, which each call raises then.
        outputs: the topics that may be written to; None: any.
        adds_offsets: whether the caller does; a session adds those of the batch.
    """

    def __init__(
        self,
        inner: ShardTransaction | EosError,
        *,
        outputs: Collection[str] | None = None,
        adds_offsets: bool = True,
    ) -> None:
        self._inner = inner
        self._outputs = outputs
        self._adds_offsets = adds_offsets

    @property
    def state(self) -> TransactionState:
        """Where it is."""
        return TransactionState.ABORTED if isinstance(self._inner, EosError) else self._inner.state

    @property
    def committed(self) -> bool:
        """Whether its records and offsets are visible."""
        return self.state is TransactionState.COMMITTED

    def __repr__(self) -> str:
        return repr(self._inner)

    def __enter__(self) -> Self:
        self._refuse_of_a_session("with")
        self._begun().__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        return self._begun().__exit__(kind, error, traceback)

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
        transaction = self._open("produce")
        self._require_outputs([topic])
        columns = {
            "headers": [listed_headers(headers)] if headers else None,
            "timestamps_ms": None if timestamp_ms is None else [timestamp_ms],
            "partitions": None if partition is None else [partition],
        }
        transaction.fill([(topic, [value], [key], columns)], call="produce")

    def produce_batch(self, topic: str, batch: Sequence[Mapping[str, Any]] | OutputBatch) -> None:
        """Add many records of one topic, without an object for each.

        Args:
            topic: where to; it must exist.
            batch: an OutputBatch of that topic, or dicts with the arguments of :meth:`produce`.

        Raises:
            UsageError: outside the block, the batch is for another topic, or a dict has other keys.
            AbortableError: the transaction has failed; leaving the block aborts it.
        """
        transaction = self._open("produce_batch")
        if not isinstance(batch, OutputBatch):
            batch = _as_columns(topic, batch)
        if batch.topic != topic:
            raise UsageError(f"produce_batch({topic!r}) was given a batch for {batch.topic!r}")
        self._require_outputs([topic])
        transaction.fill([columns_of(batch)], call="produce_batch")

    def produce_records(self, records: Iterable[OutputRecord]) -> None:
        """Add records; per topic they keep their order."""
        transaction = self._open("produce_records")
        batches = by_topic(records)
        self._require_outputs(batch.topic for batch in batches)
        transaction.fill(map(columns_of, batches), call="produce_records")

    def add_offsets(self, offsets: OffsetVector, group: GroupMetadata) -> None:
        """Add the input offsets, once and last: they are sent at the end, after every record.

        Args:
            offsets: per partition the next offset to read.
            group: the consumer's metadata, read now, not earlier (KIP-447).

        Raises:
            UsageError: outside the block, in a session's block, something else than these two, or a second time. Two sends of
                one transaction could be swapped by a resend, and the older offsets would win.
        """
        self._refuse_of_a_session("add_offsets()")
        self._begun().add_offsets(offsets, group)

    # --- inside ------------------------------------------------------------------------------------

    def _refuse_of_a_session(self, what: str) -> None:
        if not self._adds_offsets:
            raise UsageError(
                f"{what}: the session ends its transactions itself, with the offsets of their input. "
                "Fix: leave the block, or raise AbortTransaction"
            )

    def _begun(self) -> ShardTransaction:
        if isinstance(self._inner, EosError):
            raise self._inner
        return self._inner

    def _open(self, call: str) -> ShardTransaction:
        transaction = self._begun()
        transaction.require_open(call)
        return transaction

    def _require_outputs(self, topics: Iterable[str]) -> None:
        if (allowed := self._outputs) is not None:
            for topic in topics:
                if topic not in allowed:
                    raise UsageError(f"{topic!r} is not one of the outputs: {', '.join(sorted(allowed))}")


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
