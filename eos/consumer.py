"""ReadCommittedConsumer: input that is only committed records, from positions that are never reset silently."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol, Self

from eos.admission import refuse_members, refuse_other_mode
from eos.errors import ConfigError, EosError, RebalancedError, ReopenError, RetriableError, UsageError
from eos.events import (
    LagMeasured,
    Listener,
    PartitionsAssigned,
    PartitionsRevoked,
    Rewound,
    StartPolicyApplied,
    nobody,
)
from eos.job import checked_topics
from eos.kafka.admin import Admin
from eos.kafka.consumer import Committed, ConsumerClient, GroupMetadata
from eos.offsets import OffsetVector, Partition
from eos.ownership import Outcome
from eos.producer import TransactionalProducer
from eos.readers import committed_offsets, log_span
from eos.records import InputBatch
from eos.settings import Settings
from eos.stamps import OwnershipMode
from eos.start import apply_start_policy
from eos.transaction import Transaction, TransactionState

_SEEK_S = 5.0
_SEEK_PAUSE_S = 0.02
_ERROR_PAUSE_S = 0.2
_LOOK_EVERY_S = 30.0  # after the input topics
_LOOK_AGAIN_S = 2.0
_LOOK_CALL_S = 1.0
_NO_TOPIC = {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"}
_NO_RECORDS = InputBatch([])


class RebalanceHooks(Protocol):
    """What an owner does when partitions come and go; called from inside :meth:`ReadCommittedConsumer.fetch`."""

    def before_assigned(self, partitions: Sequence[Partition]) -> None: ...
    def on_assigned(self, stored: Mapping[Partition, Committed | None]) -> None: ...
    def on_revoked(self, partitions: Sequence[Partition]) -> None: ...
    def on_lost(self, partitions: Sequence[Partition]) -> None: ...


class ReadCommittedConsumer:
    """Reads input topics by group (subscribe) or the given partitions (assign).

    It is read_committed, commits nothing by itself, and has no auto.offset.reset: a group without offsets
    starts as ``input.start`` says, once; a position that has fallen off the log is an OffsetGapError.

    >>> with ReadCommittedConsumer(settings, ["settlements"], group="refunds") as consumer:  # doctest: +SKIP
    ...     batch = consumer.fetch(1000, timeout_s=1.0)

    Args:
        settings: how to reach the cluster, ownership, start policy.
        topics: the input topics.
        group: the consumer group whose offsets say where to go on.
        partitions: read exactly these, without a membership; otherwise the group assigns.
        ordinal: this instance's number, for static membership.
        app: first part of the transactional.id under which a start policy is applied.
        listener: told what happens; ``shard`` is the name it is told under.
        hooks: an owner that must act before partitions go.

    Raises:
        ConfigError: a topic is missing, nothing says where to start, or the group's offsets or members
            belong to the other mode of ownership.
        OffsetGapError: input was deleted before it was processed.
        UnavailableError: the cluster did not answer in time.
    """

    def __init__(
        self,
        settings: Settings,
        topics: Sequence[str],
        *,
        group: str,
        partitions: Sequence[Partition] | None = None,
        ordinal: int | None = None,
        app: str = "consumer",
        listener: Listener = nobody,
        shard: str = "",
        hooks: RebalanceHooks | None = None,
    ) -> None:
        self._settings = settings
        self._topics = checked_topics("topics", topics)
        self._group = group
        self._given = None if partitions is None else tuple(partitions)
        self._ordinal = ordinal
        self._app = app
        self._listener = listener
        self._shard = shard or group
        self._hooks = hooks
        self._mode = OwnershipMode(settings.ownership.mode)
        self._client: ConsumerClient | None = None
        self._member: dict[str, Any] = {}  # how this member joins
        self._resume: dict[Partition, int] = {}  # where each owned partition goes on after an abort
        self._ended: set[Partition] = set()
        self._look_at = time.monotonic() + _LOOK_EVERY_S
        self._seen_gone = False
        self._rewind_due = False
        self._seeking_since: float | None = None
        self._callback_error: BaseException | None = None

    # --- life --------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Check the group, apply the start policy if it has no offsets, and begin to read."""
        client = ConsumerClient(self._settings.consumer_config(self._group, None))
        try:
            if self._given is not None:
                admin = Admin(self._settings.client_config())
                refuse_members(admin, self._group, self._mode, within_s=self._settings.open_deadline_s)
            partitions, stored = apply_start_policy(
                self._settings, self._topics, client, app=self._app, tell=self._started, own=self._given
            )
            own = partitions if self._given is None else self._given
            self._check_mode({p: stored[p] for p in own if p in stored})
            if self._given is None:
                self._member = self._settings.consumer_config(self._group, self._ordinal, partitions)
            else:
                self._client = client
                self._take_over(self._given)
                client.assign(self._resume)
        except BaseException:
            self._client = None
            client.close()
            raise
        if self._given is None:
            client.close()
            self._join()

    def close(self) -> None:
        """Stop reading; end the open transaction before.

        A dynamic member leaves the group, a static one keeps its partitions until its session times out.
        """
        client = self._client
        if client is not None:
            client.close()
            self._client = None

    @property
    def instance_id(self) -> str | None:
        """The group.instance.id under which the group knows this member; None of a dynamic one, or none."""
        found: str | None = self._member.get("group.instance.id")
        return found

    def give_all_up(self) -> None:
        """The membership is over: all partitions are lost. They are not read any more; fetch raises why."""
        if self._resume:
            self._give_up(sorted(self._resume), lost=True)
            self._raise_callback_error()

    def rejoin(self) -> None:
        """Join the group as a new member, after :meth:`give_all_up`: librdkafka's own is of no use after a fence."""
        self.close()
        self._callback_error = None  # of the old one, which was over anyway
        self._join()

    # --- reading -----------------------------------------------------------------------------------

    def fetch(self, max_records: int, timeout_s: float, linger_s: float = 0.0) -> InputBatch:
        """Up to ``max_records`` records; waits ``timeout_s`` for the first one and ``linger_s`` for more.

        Partitions may come and go inside this call (see the hooks). While brokers are away it returns
        nothing and the client reconnects by itself.

        Raises:
            OffsetGapError: a position is no longer in the log.
            FencedError: another member took over this group.instance.id.
            ConfigError: access was refused, or an input topic was deleted.
        """
        client = self._require_client()
        self._callback_error = None
        self._look_after_topics(client)
        try:
            fetched = client.consume(max_records, timeout_s, linger_s)
        except RetriableError as error:
            if error.code in _NO_TOPIC:  # told once, and then the group is dealt without the topic
                self._look_at = min(self._look_at, time.monotonic() + _LOOK_AGAIN_S)
            time.sleep(min(_ERROR_PAUSE_S, timeout_s))
            return _NO_RECORDS
        finally:
            self._raise_callback_error()
        if self._rewind_due:
            self._rewind_once()
            return _NO_RECORDS
        self._ended.update(fetched.ends)
        return InputBatch(fetched.messages) if fetched.messages else _NO_RECORDS

    @property
    def assignment(self) -> frozenset[Partition]:
        """The partitions owned now."""
        return frozenset(self._resume)

    @property
    def caught_up(self) -> bool:
        """Whether every owned partition, if any, has been read to its LSO at least once since it was assigned."""
        return self._ended >= self._resume.keys()

    def positions(self) -> OffsetVector:
        """Per owned partition that was read from, the next offset to read."""
        return self._require_client().positions(self._resume)

    def positions_behind(self, batch: InputBatch) -> OffsetVector:
        """As :meth:`positions`, for a batch that :meth:`fetch` has just returned.

        Raises:
            RebalancedError: the assignment is gone, though nobody has been told yet: after a fatal error librdkafka
                takes it back by itself (measured: a static member that is fenced while records are transformed).
        """
        positions = self.positions()
        # Looked at only if some partition has none, which is usual for those that were never read.
        if len(positions) < len(self._resume) and (
            gone := set(zip(batch.topics, batch.partitions, strict=True)) - positions.keys()
        ):
            raise RebalancedError(
                f"{sorted(gone)} were read from and have no position any more: the assignment is gone"
            )
        return positions

    @contextmanager
    def transaction(self, producer: TransactionalProducer, batch: InputBatch) -> Iterator[Transaction]:
        """A transaction for what is made of the batch that :meth:`fetch` has just returned; its offsets go with it.

        Leaving the block commits the records and how far the input was read. After anything else the next fetch goes back
        behind the last commit. A commit without an answer is settled by reopening the producer.

        Raises:
            RebalancedError: partitions of the batch are not ours any more; nothing was produced.
            FencedError: another owner has the shard.
            EosError: see :class:`eos.transaction.Transaction`. Of those, AbortableError and ReopenError let one go on: the
                same input comes again.
        """
        transaction: Transaction | None = None
        moved = OffsetVector()
        happened = False
        try:
            positions = self.positions_behind(batch)
            moved = OffsetVector({p: o for p, o in positions.items() if self._resume.get(p) != o})
            if gone := set(map(Partition, batch.topics, batch.partitions)) - self._resume.keys():
                raise RebalancedError(f"{sorted(gone)} are not ours any more")
            transaction = producer.transaction()
            with transaction:
                yield transaction
                transaction.add_offsets(moved, self.group_metadata())
        except ReopenError:
            happened = producer.reopen() is Outcome.COMMITTED
            if not happened:
                raise
        finally:
            if happened or (transaction is not None and transaction.state is TransactionState.COMMITTED):
                self.advanced(moved)
            else:
                self.rewind_later()

    def advanced(self, committed: Mapping[Partition, int]) -> None:
        """These offsets are committed: a rewind goes no further back."""
        self._resume.update((p, offset) for p, offset in committed.items() if p in self._resume)

    @property
    def resume_positions(self) -> OffsetVector:
        """Where a rewind goes to."""
        return OffsetVector(self._resume)

    @property
    def rewind_due(self) -> bool:
        """Whether the next fetch rewinds first: until then the positions count what will be read again."""
        return self._rewind_due

    def rewind_later(self) -> None:
        """Rewind at the end of the fetch that runs now, or of the next; its records are read again."""
        self._rewind_due = True

    def rewind(self) -> None:
        """Go back to the committed offsets of every owned partition, and drop what was fetched ahead."""
        self._rewind_due = True
        while self._rewind_due:
            self._rewind_once()

    def _rewind_once(self) -> None:
        try:
            for position in self._resume.items():
                self._require_client().seek(dict([position]))
        except UsageError:
            # _STATE: a partition that was assigned a moment ago is not being fetched yet; or the assignment is gone
            # by a fatal error, which the next consume tells.
            now = time.monotonic()
            self._seeking_since = self._seeking_since or now
            if now - self._seeking_since > _SEEK_S:
                raise
            time.sleep(_SEEK_PAUSE_S)
            return
        self._rewind_due = False
        self._seeking_since = None
        if self._resume:
            self._ended.clear()
            self._listener(Rewound(self._shard, OffsetVector(self._resume)))

    def group_metadata(self) -> GroupMetadata:
        """The member's metadata, for the transaction that commits now (KIP-447: do not keep it)."""
        return self._require_client().group_metadata()

    def lag(self) -> LagMeasured:
        """Offsets from the position to the LSO, and from the LSO to the high watermark, per owned partition.

        As the last fetches brought them: nothing is asked; partitions that were not fetched yet are left out.
        """
        client = self._require_client()
        to_lso: dict[Partition, int] = {}
        distance: dict[Partition, int] = {}
        for partition, position in OffsetVector(self._resume).merged(self.positions()).items():
            marks = client.watermarks(partition)
            if marks is not None:
                to_lso[partition] = max(0, marks.lso - position)
                distance[partition] = max(0, marks.high - marks.lso)
        return LagMeasured(self._shard, to_lso, distance)

    # --- rebalances; called by the client inside consume; must not raise -----------------------------

    def assigned(self, partitions: Sequence[Partition]) -> None:
        try:
            self._take_over(partitions)
            self._require_client().incremental_assign({p: self._resume[p] for p in partitions})
        except BaseException as error:  # noqa: BLE001 - an exception must not cross the client's callback
            self._callback_error = error

    def revoked(self, partitions: Sequence[Partition]) -> None:
        self._give_up(partitions, lost=False)

    def lost(self, partitions: Sequence[Partition]) -> None:
        self._give_up(partitions, lost=True)

    def _give_up(self, partitions: Sequence[Partition], *, lost: bool) -> None:
        try:
            if self._hooks is not None:
                (self._hooks.on_lost if lost else self._hooks.on_revoked)(partitions)
        except BaseException as error:  # noqa: BLE001 - as above
            self._callback_error = error
        for partition in partitions:
            self._resume.pop(partition, None)
            self._ended.discard(partition)
        # The running fetch may hold records of these partitions already: everything unprocessed is read again.
        self._rewind_due = True
        self._listener(PartitionsRevoked(self._shard, tuple(partitions), lost))
        try:
            self._require_client().incremental_unassign(partitions)
        except EosError as error:
            self._callback_error = self._callback_error or error

    # --- inside ------------------------------------------------------------------------------------

    def _look_after_topics(self, client: ConsumerClient) -> None:
        """Whether the input topics are still there: librdkafka goes on without a deleted one, silently under assign()."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_EVERY_S
        try:
            client.partitions_of(self._topics, _LOOK_CALL_S)
        except RetriableError:
            return  # brokers are away; that is not the question here
        except ConfigError as error:
            if self._seen_gone:
                raise ConfigError(
                    f"an input topic was deleted while the job ran: {error}. Kafka forgets the group's offsets with it: "
                    "if it is created anew, it starts with --start earliest"
                ) from error
            self._look_at = now + _LOOK_AGAIN_S  # a broker may be behind with its metadata
            self._seen_gone = True
        else:
            self._seen_gone = False

    def _join(self) -> None:
        self._client = ConsumerClient(self._member)
        self._client.subscribe(self._topics, self)

    def _started(self, positions: OffsetVector) -> None:
        self._listener(StartPolicyApplied(self._shard, positions, self._settings.input.start))

    def _take_over(self, partitions: Sequence[Partition]) -> None:
        client = self._require_client()
        if self._hooks is not None:
            self._hooks.before_assigned(partitions)

        found = committed_offsets(client, partitions, timeout_s=self._settings.open_deadline_s)
        self._check_mode(found)
        stored = {p: found.get(p) for p in partitions}
        for partition, committed in stored.items():
            self._resume[partition] = (
                committed.offset if committed is not None else self._beginning_of_new(partition)
            )
            self._ended.discard(partition)
        if self._hooks is not None:
            self._hooks.on_assigned(stored)
        self._listener(
            PartitionsAssigned(self._shard, OffsetVector({p: self._resume[p] for p in partitions}))
        )

    def _beginning_of_new(self, partition: Partition) -> int:
        """A partition without an offset in a topic that was started before is new: it starts at its beginning."""
        beginning, _ = log_span(self._require_client(), partition, timeout_s=self._settings.open_deadline_s)
        return beginning

    def _check_mode(self, stored: Mapping[Partition, Committed]) -> None:
        refuse_other_mode(self._settings, self._group, stored, self._mode)

    def _raise_callback_error(self) -> None:
        error, self._callback_error = self._callback_error, None
        if error is None:
            return
        raise error

    def _require_client(self) -> ConsumerClient:
        if self._client is None:
            raise UsageError(f"the consumer of group {self._group!r} is not open")
        return self._client
