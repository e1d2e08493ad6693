"""Decisions: a listener that logs one line for each of them, with the shard, its id and the ranges."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any

import structlog

from eos.errors import ConfigError
from eos.events import (
    BatchResumed,
    CallRetried,
    Event,
    Fenced,
    InputPlanned,
    LagMeasured,
    LedgerDealt,
    LedgerRefreshed,
    LoopTurned,
    PartitionsAssigned,
    PartitionsRevoked,
    PartitionStalled,
    ProducerOpened,
    ProducerSuspect,
    RecordDeadLettered,
    Rewound,
    SessionClosed,
    SessionOpened,
    ShardsOwned,
    StartPolicyApplied,
    TransactionAborted,
    TransactionCommitted,
    TransactionExpired,
    TransactionUnresolved,
)
from eos.observe.quoting import class_only, without_values
from eos.offsets import Partition
from eos.shards import parse_transactional_id

_LIMIT_PERIOD_S = 10.0
_RETRIES_PER_PERIOD = 1
_DEAD_LETTERS_PER_PERIOD = 20  # an input that is all poison must not make the loop write a line per record
_MAX_PARTITIONS_SHOWN = 32


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
        self._limits = _Limits(clock)
        self._positions: dict[str, dict[Partition, int]] = {}  # per shard, each from a thread of its own
        self.rows: Mapping[type[Event], Callable[[Any], None]] = {
            SessionOpened: self._session_opened,
            SessionClosed: self._session_closed,
            ProducerOpened: self._producer_opened,
            ProducerSuspect: self._producer_suspect,
            TransactionCommitted: self._committed,
            TransactionAborted: self._aborted,
            TransactionExpired: self._expired,
            TransactionUnresolved: self._unresolved,
            Fenced: self._fenced,
            CallRetried: self._retried,
            PartitionsAssigned: self._assigned,
            PartitionsRevoked: self._revoked,
            Rewound: self._rewound,
            StartPolicyApplied: self._start_applied,
            InputPlanned: self._planned,
            BatchResumed: self._batch_resumed,
            LedgerDealt: self._ledger_dealt,
            LedgerRefreshed: self._ledger_refreshed,
            RecordDeadLettered: self._dead_lettered,
            LagMeasured: self._lag,
            PartitionStalled: self._stalled,
            LoopTurned: lambda _: None,  # many per second, and nothing was decided
            ShardsOwned: lambda _: None,  # sent again and again; each shard's session has lines of its own
        }

    def __call__(self, event: Event) -> None:
        row = self.rows.get(type(event))
        if row is None:
            self._write("info", type(event).__name__, event)
        else:
            row(event)

    def _write(self, level: str, what: str, event: Event, **fields: object) -> None:
        shown = {name: value for name, value in fields.items() if value not in ("", None)}
        getattr(self._log, level)(what, shard=_shard_name(event.shard), id=event.shard, **shown)

    def _session_opened(self, event: SessionOpened) -> None:
        self._write("info", "session opened", event, seconds=_rounded(event.seconds))

    def _session_closed(self, event: SessionClosed) -> None:
        self._positions.pop(event.shard, None)
        level = "warning" if event.reason else "info"
        self._write(level, "session closed", event, reason=without_values(event.reason))

    def _producer_opened(self, event: ProducerOpened) -> None:
        what = "producer rebuilt" if event.rebuilt_because else "producer opened"
        because = without_values(event.rebuilt_because)
        self._write("info", what, event, because=because, seconds=_rounded(event.seconds))

    def _producer_suspect(self, event: ProducerSuspect) -> None:
        self._write("warning", "producer suspect, rebuilt before the next begin", event, reason=event.reason)

    def _committed(self, event: TransactionCommitted) -> None:
        if self._log.is_enabled_for(logging.DEBUG):  # many per second, and the ranges cost to write out
            known = self._positions.get(event.shard, {})
            self._write(
                "debug",
                "transaction committed",
                event,
                records_in=event.records_in,
                records_out=event.records_out,
                ranges=_listed(
                    f"{partition} [{known.get(partition, '?')}, {end})"
                    for partition, end in event.offsets.items()
                ),
                seconds=_rounded(event.seconds),
                commit_seconds=_rounded(event.commit_seconds),
            )
        self._remember(event.shard, event.offsets)

    def _aborted(self, event: TransactionAborted) -> None:
        reason = without_values(event.reason)
        self._write("warning", "transaction aborted", event, reason=reason, seconds=_rounded(event.seconds))

    def _expired(self, event: TransactionExpired) -> None:
        self._write("warning", "transaction expired", event, seconds=_rounded(event.seconds))

    def _unresolved(self, event: TransactionUnresolved) -> None:
        reason = without_values(event.reason)
        self._write(
            "warning", "transaction unresolved", event, reason=reason, seconds=_rounded(event.seconds)
        )

    def _batch_resumed(self, event: BatchResumed) -> None:
        written = ", ".join(map(str, event.written))
        self._write(
            "warning", "batch resumed", event, batch=event.batch, written=written, shards=event.shards
        )

    def _ledger_dealt(self, event: LedgerDealt) -> None:
        self._write(
            "warning" if event.was or event.adopted else "info",
            "ledger dealt",
            event,
            batch=event.batch,
            query=event.query,
            shards=event.shards,
            was=event.was or None,
            adopted=event.adopted or None,
        )

    def _ledger_refreshed(self, event: LedgerRefreshed) -> None:
        if event.failed:
            self._write("warning", "ledger not refreshed", event, reason=without_values(event.failed))
        else:
            self._write("info", "ledger refreshed", event, batch=event.batch)

    def _fenced(self, event: Fenced) -> None:
        self._write("error", "fenced", event, reason=event.reason)

    def _retried(self, event: CallRetried) -> None:
        unwritten = self._limits.passed(("retry", event.shard, event.call), _RETRIES_PER_PERIOD)
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

    def _assigned(self, event: PartitionsAssigned) -> None:
        self._remember(event.shard, event.positions)
        self._write("info", "partitions assigned", event, positions=_positions(event.positions))

    def _revoked(self, event: PartitionsRevoked) -> None:
        known = self._positions.get(event.shard, {})
        for partition in event.partitions:
            known.pop(partition, None)
        level, what = ("warning", "partitions lost") if event.lost else ("info", "partitions revoked")
        self._write(level, what, event, partitions=_listed(map(str, event.partitions)))

    def _rewound(self, event: Rewound) -> None:
        self._remember(event.shard, event.positions)
        self._write("info", "rewound", event, positions=_positions(event.positions))

    def _start_applied(self, event: StartPolicyApplied) -> None:
        self._remember(event.shard, event.positions)
        self._write(
            "warning",
            "start policy applied",
            event,
            policy=event.policy,
            positions=_positions(event.positions),
        )

    def _planned(self, event: InputPlanned) -> None:
        ranges = _listed(f"{p} [{start}, {event.ends[p]})" for p, start in event.positions.items())
        self._write(
            "info",
            "input planned",
            event,
            partitions=len(event.partitions),
            offsets=sum(event.ends.values()) - sum(event.positions.values()),
            ranges=ranges or "nothing new",
        )

    def _dead_lettered(self, event: RecordDeadLettered) -> None:
        unwritten: int | None = 0
        if not event.skipped:
            unwritten = self._limits.passed(("dead letter", event.shard), _DEAD_LETTERS_PER_PERIOD)
        if unwritten is not None:
            self._write(
                "warning",
                "record skipped" if event.skipped else "record dead-lettered",
                event,
                partition=str(event.partition),
                offset=event.offset,
                error=class_only(event.error),
                unwritten=unwritten or None,
            )

    def _lag(self, event: LagMeasured) -> None:
        self._write(
            "debug",
            "lag measured",
            event,
            to_lso=sum(event.to_lso.values()),
            lso_to_high_watermark=sum(event.lso_to_high_watermark.values()),
        )

    def _stalled(self, event: PartitionStalled) -> None:
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
            seconds=_rounded(event.seconds),
            error=event.error,
        )

    def _remember(self, shard: str, positions: Mapping[Partition, int]) -> None:
        self._positions.setdefault(shard, {}).update(positions)


class _Limits:
    """How many lines of a kind may be written per period."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._windows: dict[tuple[str, ...], _Window] = {}

    def passed(self, kind: tuple[str, ...], per_period: int) -> int | None:
        """None if this line is not to be written; else how many were not since the last one that was."""
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


class _Window:
    __slots__ = ("began", "unwritten", "written")

    def __init__(self, began: float) -> None:
        self.began = began
        self.written = 0
        self.unwritten = 0


@lru_cache(maxsize=4096)
def _shard_name(transactional_id: str) -> str:
    try:
        return str(parse_transactional_id(transactional_id))
    except ConfigError:
        return transactional_id


def _positions(positions: Mapping[Partition, int]) -> str:
    return _listed(f"{partition} at {offset}" for partition, offset in positions.items())


def _listed(items: Iterable[str]) -> str:
    rest = iter(items)
    shown = list(islice(rest, _MAX_PARTITIONS_SHOWN))
    more = sum(1 for _ in rest)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _rounded(seconds: float) -> float:
    return round(seconds, 4)
