"""Metrics: counts a process's events in a Prometheus registry of its own.

The registry holds one process. The parent shows all workers' registries, with a label ``worker``
(:mod:`eos.observe.board`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

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
from eos.offsets import Partition

# Events that change no figure, each with the reason.
UNCOUNTED: Mapping[type[Event], str] = {
    Rewound: "follows every abort, which is counted",
    InputPlanned: "says what a batch run will do; its transactions are counted",
    BatchResumed: "says how a streaming batch goes on; its transactions are counted",
    LedgerDealt: "once per query, or a person's decision",
    LedgerRefreshed: "once a day at most",
    StartPolicyApplied: "happens once in the life of a group; the log has it",
}

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True)
class _OfShard:
    """A shard's own series, bound once: finding a series by its labels costs more than counting."""

    committed: Counter
    aborted: Counter
    unresolved: Counter
    last_turn: Gauge


class MetricsListener:
    """Counts events. ``registry`` shows the figures; a few microseconds per transaction.

    Args:
        wall_clock: seconds since the epoch.
    """

    def __init__(self, *, wall_clock: Callable[[], float] = time.time) -> None:
        self.registry = registry = CollectorRegistry()
        self.open_sessions: frozenset[str] = frozenset()
        self._wall_clock = wall_clock
        self._shards: dict[str, _OfShard] = {}
        self._suspects: set[str] = set()
        self._measured: dict[str, set[Partition]] = {}
        self._stalls: dict[str, set[Partition]] = {}

        self._transactions = Counter(
            "eos_transactions",
            "Transactions ended. 'unresolved': its outcome was not known at its end; the reopen settles it.",
            ["shard", "outcome"],
            registry=registry,
        )
        self._records_in = Counter(
            "eos_records_in", "Input records of committed transactions, which loops count.", registry=registry
        )
        self._records_out = Counter(
            "eos_records_out", "Output records of committed transactions.", registry=registry
        )
        self._seconds = Histogram(
            "eos_transaction_seconds",
            "Seconds from begin to the commit's answer.",
            registry=registry,
            buckets=_SECONDS,
        )
        self._commit_seconds = Histogram(
            "eos_commit_seconds",
            "Seconds of sending offsets and committing.",
            registry=registry,
            buckets=_SECONDS,
        )
        opens = Counter(
            "eos_producer_opens",
            "Producers initialised: 'first', after a possible resend ('suspect'), or after one was 'over'.",
            ["reason"],
            registry=registry,
        )
        self._opens = {reason: opens.labels(reason) for reason in ("first", "suspect", "over")}
        self._fences = Counter("eos_fences", "Shards lost to another owner.", registry=registry)
        self._expired = Counter(
            "eos_expired", "Transactions that outlived transaction.timeout.ms.", registry=registry
        )
        self._retries = Counter("eos_retries", "Calls to Kafka made again.", ["call"], registry=registry)
        self._dead_letters = Counter(
            "eos_dead_letters",
            "Input records that could not be processed, by input topic.",
            ["topic", "skipped"],
            registry=registry,
        )
        rebalances = Counter(
            "eos_rebalances", "Times that input partitions came or went.", ["change"], registry=registry
        )
        self._rebalances = {change: rebalances.labels(change) for change in ("assigned", "revoked", "lost")}
        self._lag = Gauge(
            "eos_lag_records",
            "Offsets from the position to the last stable offset (markers count).",
            ["topic", "partition"],
            registry=registry,
        )
        self._lso_distance = Gauge(
            "eos_lso_distance_records",
            "Offsets from the last stable offset to the high watermark: held back by open transactions.",
            ["topic", "partition"],
            registry=registry,
        )
        self._stalled = Gauge(
            "eos_stalled_seconds",
            "Seconds for which a partition has brought no record although it holds some and is fetched.",
            ["topic", "partition"],
            registry=registry,
        )
        self._sessions_change = threading.Lock()  # shards may run in a thread each
        self._sessions = Gauge("eos_sessions_open", "Sessions that are open.", registry=registry)
        self._owned = Gauge("eos_shards_owned", "Shards that need an open session.", registry=registry)
        self._last_turn = Gauge(
            "eos_last_turn_timestamp_seconds",
            "When the shard's loop turned last, since the epoch.",
            ["shard"],
            registry=registry,
        )
        self.counted: Mapping[type[Event], Callable[[Any], None]] = {
            ShardsOwned: lambda event: self._owned.set(len(event.transactional_ids)),
            SessionOpened: self._session_opened,
            SessionClosed: self._session_closed,
            ProducerOpened: self._producer_opened,
            ProducerSuspect: self._producer_suspect,
            TransactionCommitted: self._transaction_committed,
            TransactionAborted: lambda event: self._of_shard(event.shard).aborted.inc(),
            TransactionExpired: self._transaction_expired,
            TransactionUnresolved: lambda event: self._of_shard(event.shard).unresolved.inc(),
            Fenced: self._fenced,
            CallRetried: lambda event: self._retries.labels(str(event.call)).inc(),
            PartitionsAssigned: lambda _: self._rebalances["assigned"].inc(),
            PartitionsRevoked: self._partitions_revoked,
            RecordDeadLettered: self._record_dead_lettered,
            LoopTurned: lambda event: self._of_shard(event.shard).last_turn.set(self._wall_clock()),
            LagMeasured: self._lag_measured,
            PartitionStalled: self._partition_stalled,
        }

    def __call__(self, event: Event) -> None:
        count = self.counted.get(type(event))
        if count is not None:
            count(event)

    def _of_shard(self, shard: str) -> _OfShard:
        bound = self._shards.get(shard)
        if bound is None:
            bound = self._shards[shard] = _OfShard(
                committed=self._transactions.labels(shard, "committed"),
                aborted=self._transactions.labels(shard, "aborted"),
                unresolved=self._transactions.labels(shard, "unresolved"),
                last_turn=self._last_turn.labels(shard),
            )
        return bound

    def _transaction_committed(self, event: TransactionCommitted) -> None:
        self._of_shard(event.shard).committed.inc()
        self._records_in.inc(event.records_in)
        self._records_out.inc(event.records_out)
        self._seconds.observe(event.seconds)
        self._commit_seconds.observe(event.commit_seconds)

    def _transaction_expired(self, event: TransactionExpired) -> None:
        self._of_shard(event.shard).unresolved.inc()
        self._expired.inc()

    def _session_opened(self, event: SessionOpened) -> None:
        self._change_sessions(opened={event.shard})

    def _session_closed(self, event: SessionClosed) -> None:
        self._change_sessions(closed={event.shard})
        self._forget_lag(event.shard, self._measured.pop(event.shard, ()))
        self._forget_stalls(event.shard, list(self._stalls.get(event.shard, ())))
        self._shards.pop(event.shard, None)
        self._last_turn.remove(event.shard)

    def _fenced(self, event: Fenced) -> None:
        self._fences.inc()
        self._change_sessions(closed={event.shard})

    def _change_sessions(
        self, opened: AbstractSet[str] = frozenset(), closed: AbstractSet[str] = frozenset()
    ) -> None:
        with self._sessions_change:
            self.open_sessions = (self.open_sessions | opened) - closed  # replaced: another thread reads it
            self._sessions.set(len(self.open_sessions))

    def _producer_suspect(self, event: ProducerSuspect) -> None:
        self._suspects.add(event.shard)

    def _producer_opened(self, event: ProducerOpened) -> None:
        rebuilt = "suspect" if event.shard in self._suspects else "over"
        self._opens[rebuilt if event.rebuilt_because else "first"].inc()
        self._suspects.discard(event.shard)
        self._of_shard(event.shard)  # its series start at zero, not with the first transaction

    def _partitions_revoked(self, event: PartitionsRevoked) -> None:
        self._rebalances["lost" if event.lost else "revoked"].inc()
        self._forget_lag(event.shard, event.partitions)
        self._forget_stalls(event.shard, event.partitions)

    def _record_dead_lettered(self, event: RecordDeadLettered) -> None:
        self._dead_letters.labels(event.partition.topic, str(event.skipped).lower()).inc()

    def _lag_measured(self, event: LagMeasured) -> None:
        now = event.to_lso.keys() | event.lso_to_high_watermark.keys()
        self._forget_lag(event.shard, self._measured.get(event.shard, set()) - now)
        self._measured[event.shard] = now
        for (topic, number), records in event.to_lso.items():
            self._lag.labels(topic, number).set(records)
        for (topic, number), records in event.lso_to_high_watermark.items():
            self._lso_distance.labels(topic, number).set(records)

    def _partition_stalled(self, event: PartitionStalled) -> None:
        if event.seconds:
            self._stalls.setdefault(event.shard, set()).add(event.partition)
            self._stalled.labels(*event.partition).set(event.seconds)
        else:
            self._forget_stalls(event.shard, [event.partition])

    def _forget_stalls(self, shard: str, partitions: Iterable[Partition]) -> None:
        stalled = self._stalls.get(shard, set())
        for partition in stalled & set(partitions):
            self._stalled.remove(*partition)
            stalled.discard(partition)

    def _forget_lag(self, shard: str, partitions: Iterable[Partition]) -> None:
        """A partition that another process reads now must not be shown from here for ever."""
        for partition in list(partitions):
            self._lag.remove(*partition)
            self._lso_distance.remove(*partition)
            self._measured.get(shard, set()).discard(partition)
