"""Metrics: counts a process's events in a Prometheus registry of its own.

The registry holds one process. The parent shows all workers' registries, with a label ``worker``
(:mod:`eos.observe.board`).
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from eos import events
from eos.events import Event
from eos.offsets import Partition

# Events that change no figure, each with the reason.
UNCOUNTED: Mapping[type[Event], str] = {
    events.InputTaken: "the end of its transaction is counted",
    events.Rewound: "follows every abort, which is counted",
    events.InputPlanned: "says what a batch run will do; its transactions are counted",
    events.BatchResumed: "says how a streaming batch goes on; its transactions are counted",
    events.LedgerSharded: "once per query, or a person's decision",
    events.LedgerRefreshed: "once a day at most",
    events.TransformAtWork: "says what a loop that is silent does; its silence shows",
    events.StartPolicyApplied: "happens once in the life of a group; the log has it",
}

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True)
class _OfShard:
    """A shard's own series, bound once: finding a series by its labels costs more than counting."""

    committed: Counter
    aborted: Counter
    unresolved: Counter
    last_turn: Gauge


class _PartitionGauge:
    """A gauge by partition. A partition that another process reads now must not be shown from here for ever."""

    def __init__(self, name: str, text: str, registry: CollectorRegistry) -> None:
        self._gauge = Gauge(name, text, ["topic", "partition"], registry=registry)
        self._shown: defaultdict[str, set[Partition]] = defaultdict(set)  # by shard

    def show(self, shard: str, figures: Mapping[Partition, float]) -> None:
        for partition, figure in figures.items():
            self._gauge.labels(*partition).set(figure)
        self._shown[shard].update(figures)

    def show_only(self, shard: str, figures: Mapping[Partition, float]) -> None:
        self.forget(shard, self._shown[shard] - figures.keys())
        self.show(shard, figures)

    def forget(self, shard: str, partitions: Iterable[Partition]) -> None:
        for partition in self._shown[shard].intersection(partitions):
            self._gauge.remove(*partition)
            self._shown[shard].discard(partition)


class MetricsListener:
    """Counts events. ``registry`` shows the figures; a few microseconds per transaction.

    Args:
        wall_clock: seconds since the epoch.
    """

    def __init__(self, *, wall_clock: Callable[[], float] = time.time) -> None:
        self.registry = registry = CollectorRegistry()
        self.open_sessions: frozenset[str] = frozenset()
        self._sessions_change = threading.Lock()  # shards may run in a thread each
        self._wall_clock = wall_clock
        self._shards: dict[str, _OfShard] = {}
        self._suspects: set[str] = set()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        seconds = partial(Histogram, registry=registry, buckets=SECONDS)

        self._transactions = counter(
            "eos_transactions",
            "Transactions ended. 'unresolved': its outcome was not known at its end; the reopen settles it.",
            ["shard", "outcome"],
        )
        self._records_in = counter(
            "eos_records_in", "Input records of committed transactions, which loops count."
        )
        self._records_out = counter("eos_records_out", "Output records of committed transactions.")
        self._seconds = seconds("eos_transaction_seconds", "Seconds from begin to the commit's answer.")
        self._commit_seconds = seconds("eos_commit_seconds", "Seconds of sending offsets and committing.")
        opens = counter(
            "eos_producer_opens",
            "Producers initialised: 'first', after a possible resend ('suspect'), or after one was 'over'.",
            ["reason"],
        )
        self._opens = {reason: opens.labels(reason) for reason in ("first", "suspect", "over")}
        self._fences = counter("eos_fences", "Shards lost to another owner.")
        self._expired = counter("eos_expired", "Transactions that outlived transaction.timeout.ms.")
        self._retries = counter("eos_retries", "Calls to Kafka made again.", ["call"])
        self._dead_letters = counter(
            "eos_dead_letters",
            "Input records that could not be processed, by input topic.",
            ["topic", "skipped"],
        )
        rebalances = counter("eos_rebalances", "Times that input partitions came or went.", ["change"])
        self._rebalances = {change: rebalances.labels(change) for change in ("assigned", "revoked", "lost")}
        self._lag = _PartitionGauge(
            "eos_lag_records",
            "Offsets from the position to the last stable offset (markers count).",
            registry,
        )
        self._lso_distance = _PartitionGauge(
            "eos_lso_distance_records",
            "Offsets from the last stable offset to the high watermark: held back by open transactions.",
            registry,
        )
        self._stalled = _PartitionGauge(
            "eos_stalled_seconds",
            "Seconds for which a partition has brought no record although it holds some and is fetched.",
            registry,
        )
        self._of_partitions = (self._lag, self._lso_distance, self._stalled)
        self._sessions = gauge("eos_sessions_open", "Sessions that are open.")
        self._owned = gauge("eos_shards_owned", "Shards that need an open session.")
        self._last_turn = gauge(
            "eos_last_turn_timestamp_seconds",
            "When the shard's loop turned last, since the epoch.",
            ["shard"],
        )
        self.counted: Mapping[type[Event], Callable[[Any], None]] = {
            events.ShardsOwned: lambda event: self._owned.set(len(event.transactional_ids)),
            events.SessionOpened: lambda event: self._change_sessions(opened={event.shard}),
            events.SessionClosed: self._session_closed,
            events.ProducerOpened: self._producer_opened,
            events.ProducerSuspect: lambda event: self._suspects.add(event.shard),
            events.TransactionCommitted: self._transaction_committed,
            events.TransactionAborted: lambda event: self._of_shard(event.shard).aborted.inc(),
            events.TransactionExpired: self._transaction_expired,
            events.TransactionUnresolved: lambda event: self._of_shard(event.shard).unresolved.inc(),
            events.Fenced: self._fenced,
            events.CallRetried: lambda event: self._retries.labels(str(event.call)).inc(),
            events.PartitionsAssigned: lambda _: self._rebalances["assigned"].inc(),
            events.PartitionsRevoked: self._partitions_revoked,
            events.RecordDeadLettered: self._record_dead_lettered,
            events.LoopTurned: lambda event: self._of_shard(event.shard).last_turn.set(self._wall_clock()),
            events.LagMeasured: self._lag_measured,
            events.PartitionStalled: self._partition_stalled,
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

    def _transaction_committed(self, event: events.TransactionCommitted) -> None:
        self._of_shard(event.shard).committed.inc()
        self._records_in.inc(event.records_in)
        self._records_out.inc(event.records_out)
        self._seconds.observe(event.seconds)
        self._commit_seconds.observe(event.commit_seconds)

    def _transaction_expired(self, event: events.TransactionExpired) -> None:
        self._of_shard(event.shard).unresolved.inc()
        self._expired.inc()

    def _session_closed(self, event: events.SessionClosed) -> None:
        self._change_sessions(closed={event.shard})
        for gauge in self._of_partitions:
            gauge.show_only(event.shard, {})
        self._shards.pop(event.shard, None)
        self._last_turn.remove(event.shard)

    def _fenced(self, event: events.Fenced) -> None:
        self._fences.inc()
        self._change_sessions(closed={event.shard})

    def _change_sessions(
        self, opened: AbstractSet[str] = frozenset(), closed: AbstractSet[str] = frozenset()
    ) -> None:
        with self._sessions_change:
            self.open_sessions = (self.open_sessions | opened) - closed  # replaced: another thread reads it
            self._sessions.set(len(self.open_sessions))

    def _producer_opened(self, event: events.ProducerOpened) -> None:
        rebuilt = "suspect" if event.shard in self._suspects else "over"
        self._opens[rebuilt if event.rebuilt_because else "first"].inc()
        self._suspects.discard(event.shard)
        self._of_shard(event.shard)  # its series start at zero, not with the first transaction

    def _partitions_revoked(self, event: events.PartitionsRevoked) -> None:
        self._rebalances["lost" if event.lost else "revoked"].inc()
        for gauge in self._of_partitions:
            gauge.forget(event.shard, event.partitions)

    def _record_dead_lettered(self, event: events.RecordDeadLettered) -> None:
        self._dead_letters.labels(event.partition.topic, str(event.skipped).lower()).inc()

    def _lag_measured(self, event: events.LagMeasured) -> None:
        self._lag.show_only(event.shard, event.to_lso)
        self._lso_distance.show_only(event.shard, event.lso_to_high_watermark)

    def _partition_stalled(self, event: events.PartitionStalled) -> None:
        if event.seconds:
            self._stalled.show(event.shard, {event.partition: event.seconds})
        else:
            self._stalled.forget(event.shard, [event.partition])
