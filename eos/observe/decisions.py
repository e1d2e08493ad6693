"""Decisions: a listener that logs one line for each of them, with the shard, its id and the ranges."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from eos import events
from eos.errors import AbortTransaction, ConfigError
from eos.events import Event
from eos.listing import listed
from eos.observe.lean_structlog import structlog
from eos.observe.quoting import Texts, class_only, without_values
from eos.offsets import Partition
from eos.shards import OrdinalShard, parse_transactional_id

_LIMIT_PERIOD_S = 10.0
_RETRIES_PER_PERIOD = 1
_DEAD_LETTERS_PER_PERIOD = 20  # an input that is all poison must not make the loop write a line per record
_MAX_PARTITIONS_SHOWN = 32

Row = Callable[[Any], None]


@dataclass(slots=True)
class _Window:
    began: float
    written: int = 0
    unwritten: int = 0


class LogListener:
    """Writes what happened to a shard, as the decisions they are.

    Retries are written at once and then at most every 10 s per shard and call, dead letters at most 20
    times per 10 s and shard (the letters themselves hold the coordinates); skipped records leave no other
    trace, so each of them is written. The next line that is written says how many were not.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = structlog.get_logger()
        self._clock = clock
        self._windows: dict[tuple[str, ...], _Window] = {}
        self._positions: dict[str, dict[Partition, int]] = {}  # per shard, each from a thread of its own
        self.rows: Mapping[type[Event], Row] = {
            events.SessionOpened: self._row("info", "session opened", "seconds"),
            events.SessionClosed: self._session_closed,
            events.ProducerOpened: self._producer_opened,
            events.ProducerSuspect: self._row(
                "warning", "producer suspect, rebuilt before the next begin", "reason"
            ),
            events.TransactionCommitted: self._committed,
            events.TransactionAborted: self._ended("transaction aborted"),
            events.TransactionExpired: self._row("warning", "transaction expired", "seconds"),
            events.TransactionUnresolved: self._ended("transaction unresolved"),
            events.Fenced: self._row("error", "fenced", "reason"),
            events.CallRetried: self._retried,
            events.PartitionsAssigned: self._positioned("info", "partitions assigned"),
            events.PartitionsRevoked: self._revoked,
            events.Rewound: self._positioned("info", "rewound"),
            events.StartPolicyApplied: self._positioned("warning", "start policy applied", "policy"),
            events.InputPlanned: self._planned,
            events.BatchResumed: self._batch_resumed,
            events.LedgerSharded: self._ledger_sharded,
            events.LedgerRefreshed: self._ledger_refreshed,
            events.RecordDeadLettered: self._dead_lettered,
            events.LagMeasured: self._lag,
            events.PartitionStalled: self._stalled,
            events.TransformAtWork: self._at_work,
            events.LoopTurned: lambda _: None,  # many per second, and nothing was decided
            events.InputTaken: lambda _: None,  # many per second; the end of its transaction is written
            events.ShardsOwned: lambda _: None,  # sent often; each shard's session has lines of its own
        }

    def __call__(self, event: Event) -> None:
        row = self.rows.get(type(event)) or self._row("info", type(event).__name__)
        row(event)

    def _write(self, level: str, what: str, event: Event, **fields: object) -> None:
        shown = {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in fields.items()
            if value not in ("", None)
        }
        getattr(self._log, level)(what, shard=_shard_name(event.shard), id=event.shard, **shown)

    # --- rows that write an event's fields as they are -----------------------------------------------------

    def _row(self, level: str, what: str, *names: str) -> Row:
        return lambda event: self._write(level, what, event, **{name: getattr(event, name) for name in names})

    def _ended(self, what: str) -> Row:
        def write(event: Any) -> None:
            level = "info" if event.reason.startswith(AbortTransaction.__name__) else "warning"  # on purpose
            self._write(level, what, event, reason=without_values(event.reason), seconds=event.seconds)

        return write

    def _positioned(self, level: str, what: str, *names: str) -> Row:
        def write(event: Any) -> None:
            self._remember(event.shard, event.positions)
            fields = {name: getattr(event, name) for name in names}
            positions = listed(
                (f"{partition} at {offset}" for partition, offset in event.positions.items()),
                _MAX_PARTITIONS_SHOWN,
            )
            self._write(level, what, event, **fields, positions=positions)

        return write

    # --- the others ----------------------------------------------------------------------------------------

    def _session_closed(self, event: events.SessionClosed) -> None:
        self._positions.pop(event.shard, None)
        level = "warning" if event.reason else "info"
        # Its error goes to the caller, and comes with its whole text from there.
        self._write(level, "session closed", event, reason=event.reason and class_only(event.reason))

    def _producer_opened(self, event: events.ProducerOpened) -> None:
        what = "producer rebuilt" if event.rebuilt_because else "producer opened"
        self._write("info", what, event, because=without_values(event.rebuilt_because), seconds=event.seconds)

    def _committed(self, event: events.TransactionCommitted) -> None:
        if self._log.is_enabled_for(logging.DEBUG):  # many per second, and the ranges cost to write out
            known = self._positions.get(event.shard, {})
            ranges = (f"{p} [{known.get(p, '?')}, {end})" for p, end in event.offsets.items())
            self._write(
                "debug",
                "transaction committed",
                event,
                records_in=event.records_in,
                records_out=event.records_out,
                ranges=listed(ranges, _MAX_PARTITIONS_SHOWN),
                seconds=event.seconds,
                commit_seconds=event.commit_seconds,
            )
        self._remember(event.shard, event.offsets)

    def _batch_resumed(self, event: events.BatchResumed) -> None:
        written = ", ".join(map(str, event.written))
        self._write(
            "warning", "batch resumed", event, batch=event.batch, written=written, shards=event.shards
        )

    def _ledger_sharded(self, event: events.LedgerSharded) -> None:
        self._write(
            "warning" if event.was or event.adopted else "info",
            "ledger sharded",
            event,
            batch=event.batch,
            query=event.query,
            shards=event.shards,
            was=event.was or None,
            adopted=event.adopted or None,
        )

    def _ledger_refreshed(self, event: events.LedgerRefreshed) -> None:
        if event.failed:
            self._write("warning", "ledger not refreshed", event, reason=without_values(event.failed))
        else:
            self._write("info", "ledger refreshed", event, batch=event.batch)

    def _retried(self, event: events.CallRetried) -> None:
        unwritten = self._unwritten(("retry", event.shard, event.call), _RETRIES_PER_PERIOD)
        if unwritten is not None:
            self._write(
                "warning",
                "call retried",
                event,
                call=str(event.call),
                attempt=event.attempt,
                error=event.error,
                unwritten=unwritten or None,
            )

    def _revoked(self, event: events.PartitionsRevoked) -> None:
        known = self._positions.get(event.shard, {})
        for partition in event.partitions:
            known.pop(partition, None)
        level, what = ("warning", "partitions lost") if event.lost else ("info", "partitions revoked")
        self._write(level, what, event, partitions=listed(event.partitions, _MAX_PARTITIONS_SHOWN))

    def _planned(self, event: events.InputPlanned) -> None:
        ranges = listed(
            (f"{p} [{start}, {event.ends[p]})" for p, start in event.positions.items()), _MAX_PARTITIONS_SHOWN
        )
        self._write(
            "info",
            "input planned",
            event,
            partitions=len(event.partitions),
            offsets=sum(event.ends.values()) - sum(event.positions.values()),
            ranges=ranges or "nothing new",
        )

    def _dead_lettered(self, event: events.RecordDeadLettered) -> None:
        unwritten: int | None = 0
        if not event.skipped:
            unwritten = self._unwritten(("dead letter", event.shard), _DEAD_LETTERS_PER_PERIOD)
        if unwritten is not None:
            self._write(
                "warning",
                "record skipped" if event.skipped else "record dead-lettered",
                event,
                partition=str(event.partition),
                offset=event.offset,
                error=event.error if Texts.shown else class_only(event.error),
                unwritten=unwritten or None,
            )

    def _lag(self, event: events.LagMeasured) -> None:
        self._write(
            "debug",
            "lag measured",
            event,
            to_lso=sum(event.to_lso.values()),
            lso_to_high_watermark=sum(event.lso_to_high_watermark.values()),
        )

    def _stalled(self, event: events.PartitionStalled) -> None:
        if not event.seconds:
            self._write("info", "partition brings records again", event, partition=str(event.partition))
            return
        self._write(
            "warning",
            "partition brings no records, its fetches fail",
            event,
            partition=str(event.partition),
            position=event.position,
            last_stable_offset=event.lso,
            seconds=event.seconds,
            error=event.error,
        )

    def _at_work(self, event: events.TransformAtWork) -> None:
        if not event.seconds:
            self._write("info", "transform has returned", event)
            return
        self._write(
            "warning",
            "transform still at work",
            event,
            records=event.records,
            seconds=round(event.seconds),
            stack=" > ".join(event.stack),
        )

    def _remember(self, shard: str, positions: Mapping[Partition, int]) -> None:
        self._positions.setdefault(shard, {}).update(positions)

    def _unwritten(self, kind: tuple[str, ...], per_period: int) -> int | None:
        """None if this line is not to be written; else how many of its kind were not since the last one that was."""
        now = self._clock()
        window = self._windows.setdefault(kind, _Window(now))
        if now - window.began >= _LIMIT_PERIOD_S:
            window.began, window.written = now, 0
        if window.written >= per_period:
            window.unwritten += 1
            return None
        window.written += 1
        unwritten, window.unwritten = window.unwritten, 0
        return unwritten


@lru_cache(maxsize=4096)
def _shard_name(transactional_id: str) -> str:
    try:
        shard = parse_transactional_id(transactional_id)
    except ConfigError:
        return transactional_id
    return f"worker {shard.ordinal}" if isinstance(shard, OrdinalShard) else str(shard)
