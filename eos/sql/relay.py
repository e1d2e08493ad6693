"""Relay: the loop of one shard of an outbox: read rows, produce their records and commit the position, in one transaction of Kafka.

What is committed is said by the ledger of the shard's producer, and by nothing else: each turn begins at the entry that it has
stored. So an abort needs no rewind, and an unanswered commit that has happened is gone on from as soon as the reopen says so.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import Engine

from eos import retry
from eos.base.calls import Call
from eos.base.deadline import Deadline, grace_over
from eos.core.producer import ShardProducer
from eos.core.tries import Tries
from eos.errors import (
    Action,
    ConfigError,
    EosError,
    FencedError,
    OffsetGapError,
    RecordRefusedError,
    UnavailableError,
)
from eos.events import (
    CallRetried,
    Listener,
    RecordDeadLettered,
    Sampled,
    SessionClosed,
    SessionOpened,
    Waiting,
    guarded,
)
from eos.group.committed import committed_elsewhere, committed_offsets, fresh_reader
from eos.group.metadata import OwnershipMode
from eos.group.topics import says_recreated
from eos.kafka.group_offsets import GroupMetadata
from eos.offsets import OffsetVector
from eos.settings import Settings
from eos.shards import SinkShard, ledger_group
from eos.sql.limits import Limits
from eos.sql.meaning import asked
from eos.sql.outbox_position import MAX_OPEN, OutboxPosition
from eos.sql.outbox_read import OutboxRow, Page, Part, columns_of
from eos.sql.relay_entry import Reached, Relayed, RelayEntry, RelayMetadata, entry_in
from eos.sql.relay_mark import RelayMark
from eos.sql.relay_pace import RelayPace
from eos.sql.relay_source import RelaySource

_OUTAGE_PAUSE_S = 1.0
_DROPPED_S = 3.0  # until a coordinator has dropped the offsets of a topic that was deleted

log = logging.getLogger(__name__)


class Relay:
    """Runs until it is stopped, or, with ``until_caught_up``, until all that was committed at its begin is relayed.

    Args:
        settings: how to reach the cluster, the transaction's limits, the poison policy.
        engine: to the outbox's database.
        relayed: what the job relays.
        shard: whose rows.
        until_caught_up: end when no row is left of those that were committed at the begin.
        stop: set it to end behind the open transaction.
        listener: called with each event.

    Raises:
        ConfigError: a table, a topic or the stored position is not as the job needs it.
        FencedError: another owner has the shard.
        OffsetGapError: the database went back, or is another one.
        RecordRefusedError: a row that no try will take.
        UnavailableError: the cluster or the database did not answer in time.
    """

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        relayed: Relayed,
        shard: SinkShard,
        *,
        until_caught_up: bool,
        stop: threading.Event,
        listener: Listener,
    ) -> None:
        self._settings = settings
        outbox, outputs, shards = relayed
        self._table = outbox.table.fullname
        self._outputs = outputs
        self._places = relayed.places
        self._shard = shard
        self._shards = shards
        self._until_caught_up = until_caught_up
        self._stop = stop
        self._listener = guarded(listener)
        self._group = ledger_group(shard.app, shard.group, shard.number)
        self._reached = Reached()
        metadata = RelayMetadata(
            OwnershipMode.SINK, str(shard), app=shard.app, shards=shards, reached=self._reached
        )
        self._producer = ShardProducer(
            settings,
            shard,
            metadata=metadata,
            listener=self._listener,
            started_partitions=dict.fromkeys(outputs, 0),  # there is one offset, and it is no partition's
            compare_when_fenced=True,
        )
        self._producer.give_up(grace_over(stop, settings.shutdown.grace_s))
        self._mark = RelayMark(self._group, str(shard), metadata.owner)
        self._source = RelaySource(
            engine, outbox, Part(shard.number, shards), self._mark, Limits.of(settings)
        )
        self._pace = RelayPace(settings.transaction.max_records, settings.transaction.max_bytes)
        self._tries = Tries(settings.input.offline_timeout_s, self._on_retry)
        self._group_metadata: GroupMetadata | None = None
        self._partition = relayed.places[0]
        self._committed_at = 0.0
        self._in_a_row = 0  # rows that were left out; what the open transaction commits
        self._furthest: RelayEntry | None = None  # that was found, or that a commit has reached
        self._held_back: Deadline | None = None
        self._end: OutboxPosition | None = None  # where a run until it has caught up ends
        self._caught_up = False

    def run(self) -> None:
        """Open, relay, close."""
        reason = ""
        with retry.given_up_when(self._stop.is_set):
            try:
                self._open()
                while not (self._stop.is_set() or self._caught_up):
                    try:
                        self._turn()
                    except EosError as error:
                        self._go_on_after(error)
            except BaseException as error:
                reason = str(error)
                raise
            finally:
                self._source.close()
                self._producer.close()
                self._listener(SessionClosed(self._shard.transactional_id, reason))

    def _open(self) -> None:
        began = time.monotonic()
        self._asked(self._source.open)
        self._producer.open()
        while not self._stop.is_set():
            try:
                if self._producer.is_over:
                    self._producer.reopen()
                self._take_over()
            except EosError as error:
                if error.action is Action.STOP:
                    raise self._lost_with_its_topic(error) or error from error
                self._go_on_after(error)
            else:
                self._listener(SessionOpened(self._shard.transactional_id, time.monotonic() - began))
                return

    def _take_over(self) -> None:
        """Find where to go on, and commit it as this owner's."""
        stored = self._producer.take_over(self._group, self._places)
        elsewhere = committed_elsewhere(self._settings, self._group, self._places)
        found = entry_in(stored, elsewhere, group=self._group, app=self._shard.app, shards=self._shards)
        entry = None
        if found is not None:
            self._partition, entry = found
            self._furthest = entry
        self._producer.ledger_of(self._group).in_a_row = lambda: self._in_a_row
        with fresh_reader(self._settings, self._group, stable=False) as reader:
            self._group_metadata = reader.group_metadata()
        try:
            position = self._asked(lambda: self._source.claim(entry))
        except OffsetGapError:
            self._producer.refuse_rival()  # a successor's mark is no sign that an offset is lost
            raise
        if self._until_caught_up:
            self._end = self._asked(self._source.end)
        # Before the first row: without a commit of this owner's, a former one that comes back would take itself for the owner.
        relayed, in_a_row = (0, 0) if entry is None else (entry.relayed, entry.in_a_row)
        self._commit([], relayed, position, in_a_row=in_a_row)

    # --- turns -------------------------------------------------------------------------------------

    def _turn(self) -> None:
        began = time.monotonic()
        self._listener(Sampled(self._shard.transactional_id))
        if self._producer.is_over:
            self._producer.reopen()
        entry = self._gone_on()
        page = self._source.read(entry, self._pace.rows)
        if page.rows:
            self._held_back = None
            self._relay(entry, page)
            self._caught_up = self._end is not None and self._entry.position.covers(self._end)
        else:
            if self._until_caught_up and page.held_back:
                self._wait_for_the_oldest()
            self._caught_up = self._until_caught_up and not page.held_back
            if began - self._committed_at > self._settings.input.recommit_idle_after_s:
                # Where it stands: the mark would not show a database that lost what a later position has seen.
                self._commit([], entry.relayed, entry.position, in_a_row=entry.in_a_row)
        self._tries.succeeded()
        if not page.full and not self._caught_up:
            self._stop.wait(max(0.0, began + self._settings.transaction.interval_s - time.monotonic()))

    def _relay(self, entry: RelayEntry, page: Page) -> None:
        rows = page.rows
        relayed = entry.relayed + len(rows)
        size = sum(len(row.value or b"") + len(row.key or b"") for row in rows)
        if page.full:
            self._source.read_ahead(
                RelayEntry(relayed, page.position, self._shards, in_a_row=0),
                self._pace.behind(len(rows), size),
            )
        try:
            self._commit(rows, relayed, page.position, in_a_row=0)
        except RecordRefusedError as error:
            if len(rows) > 1:
                self._pace.refused(len(rows))
                return
            self._leave_out(rows[0], entry, page.position, error)
        else:
            self._pace.relayed(len(rows), size)

    def _leave_out(
        self, row: OutboxRow, entry: RelayEntry, position: OutboxPosition, error: RecordRefusedError
    ) -> None:
        """What the policy says of a row that Kafka takes at no try."""
        poison = self._settings.poison
        where = f"{self._table}, row {row.id}"
        if poison.policy != "skip":
            raise RecordRefusedError(
                f"{where}: {error}. Fix: correct or delete the row; or poison.policy = 'skip', which leaves it out"
            ) from error
        if entry.in_a_row >= poison.max_in_a_row:
            raise RecordRefusedError(
                f"{where}: {error}. The {entry.in_a_row} rows before it were left out too (poison.max_in_a_row). Fix: what writes them"
            ) from error
        self._commit([], entry.relayed + 1, position, in_a_row=entry.in_a_row + 1)
        self._listener(
            RecordDeadLettered(
                self._shard.transactional_id,
                self._partition,
                entry.relayed,
                f"{where}: {error}",
                skipped=True,
            )
        )
        self._pace.relayed(1, 1)

    def _commit(
        self, rows: Sequence[OutboxRow], relayed: int, position: OutboxPosition, *, in_a_row: int
    ) -> None:
        """Records and position, in one transaction."""
        assert self._group_metadata is not None  # noqa: S101 - `_open` sets it
        columns = columns_of(rows, self._outputs)
        self._reached.position = position
        self._in_a_row = in_a_row
        transaction = self._producer.new_transaction()
        transaction.records_in = len(rows)
        with transaction:
            transaction.fill(columns)
            transaction.add_offsets(OffsetVector({self._partition: relayed}), self._group_metadata)
        self._committed_at = time.monotonic()
        self._furthest = RelayEntry(relayed, position, self._shards, in_a_row=in_a_row)

    def _gone_on(self) -> RelayEntry:
        """What is committed; again first, where the coordinator has forgotten the offset of a transaction that is (`core.forgotten`)."""
        entry, furthest = self._entry, self._furthest
        if furthest is not None and entry.relayed < furthest.relayed:
            self._commit([], furthest.relayed, furthest.position, in_a_row=furthest.in_a_row)
            entry = self._entry
        return entry

    def _wait_for_the_oldest(self) -> None:
        self._held_back = self._held_back or Deadline(self._settings.held_back_timeout_s)
        if self._held_back.passed:
            raise UnavailableError(
                f"{self._table} has committed rows of transactions that began while more than {MAX_OPEN} others were open, and so many "
                "still are. Fix: end the oldest of them (those with a backend_xid in pg_stat_activity, and pg_prepared_xacts), or wait "
                "for longer (input.held_back_deadline_ms)"
            )

    @property
    def _entry(self) -> RelayEntry:
        """What is committed."""
        stored = self._producer.ledger_of(self._group).stored[self._partition]
        entry = None if stored is None else RelayEntry.parse(stored)
        assert entry is not None  # noqa: S101 - `_open` has committed one
        return entry

    # --- errors ------------------------------------------------------------------------------------

    def _go_on_after(self, error: EosError) -> None:
        if (lost := self._lost_with_its_topic(error)) is not None:
            raise lost from error
        out = self._tries.sits_out(error)
        if error.action is Action.STOP and not out:
            raise error
        if out:
            self._listener(Waiting(self._shard.transactional_id, Call.BEGIN, str(error)))
            self._stop.wait(_OUTAGE_PAUSE_S)
        else:
            self._stop.wait(self._tries.failed(error))

    def _lost_with_its_topic(self, error: EosError) -> OffsetGapError | None:
        """The error for an offset that Kafka has dropped, with the topic that it stood on.

        To a producer that looks like another owner, or like an input that was deleted. But another owner would have committed one.
        """
        furthest = self._furthest
        if furthest is None:
            return None
        if isinstance(error, OffsetGapError) and says_recreated(error, self._partition.topic):
            return self._lost(furthest)
        if not isinstance(error, (ConfigError, FencedError)):
            return None
        try:
            with fresh_reader(self._settings, self._group, stable=False) as reader:
                gone = Deadline(_DROPPED_S).wait_for(
                    lambda: not committed_offsets(reader, self._places, timeout_s=_DROPPED_S)
                )
        except EosError:
            return None
        return self._lost(furthest) if gone else None

    def _lost(self, furthest: RelayEntry) -> OffsetGapError:
        theirs = None
        with suppress(EosError):  # a successor may have come and gone
            theirs = self._asked(self._source.read_by_another)
        return self._mark.lost(theirs or furthest.relayed)

    def _asked(self, question: Any) -> Any:
        return asked(
            Call.COMMITTED, question, timeout_s=self._settings.open_timeout_s, on_retry=self._on_retry
        )

    def _on_retry(self, call: Call, attempt: int, error: EosError) -> None:
        self._listener(CallRetried(self._shard.transactional_id, call, attempt, str(error)))
