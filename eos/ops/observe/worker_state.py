"""WorkerState: what a worker does now and what it has counted, kept from its events, without a word per record."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter

from eos import events
from eos.events import Event
from eos.offsets import Partition
from eos.ops.observe.event_texts import TEXTS, UNNOTED, dead_letter_of, note_of, shortened
from eos.ops.observe.metrics import Gauges, Metrics, total
from eos.ops.observe.worker_report import Counts, LongTransform, PartitionReport, WorkerReport

_MAX_FRESH = 40  # events between two reports; of more the latest are shown
_OF_OTHERS = re.compile(r"/(site|dist)-packages/|/lib/python3|^<frozen ")
# Events that change no figure and no state, each with the reason.
UNCOUNTED: Mapping[type[Event], str] = {
    events.InputTaken: "the end of its transaction is counted",
    events.StartPolicyApplied: "happens once in the life of a group; the log has it",
    events.OffsetsAdopted: "happens at a start alone, by a setting; the log has it",
}


@dataclass(slots=True)
class _Shard:
    """What is so of a shard while its session lives. It is changed by the thread that drives the shard, and read by others.

    Its counters are bound once: finding a series by its labels costs more than counting.
    """

    ended: dict[str, Counter] = field(default_factory=dict)
    is_open: bool = False
    turned_at: float | None = None  # since the epoch; 0: its series are shown, and it has not turned yet
    positions: dict[Partition, tuple[int, float | None]] = field(
        default_factory=dict
    )  # with the commit's time
    measured_at: float | None = None
    lag: dict[Partition, int] = field(default_factory=dict)
    lso_distance: dict[Partition, int] = field(default_factory=dict)
    stalled: dict[Partition, float] = field(default_factory=dict)
    strangers: tuple[str, ...] = ()
    outside_since: float | None = None
    open_since: float | None = None


class WorkerState:
    """A listener; a few microseconds per transaction. ``registry`` shows its figures; ``report`` is called from another thread.

    Args:
        clock: seconds, monotonic.
        wall_clock: seconds since the epoch.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._metrics = Metrics(self._gauges)
        self._shards: dict[str, _Shard] = {}
        self._owned = 0
        self._suspects: set[str] = set()
        self._at_work: dict[str, tuple[events.TransformAtWork, float]] = {}  # another thread has looked
        self._committed_at: float | None = None
        # Put into words by the thread that reports, not by the loop's.
        self._fresh: deque[tuple[float, Event]] = deque(maxlen=_MAX_FRESH)
        self._dead_letters: deque[tuple[float, events.RecordDeadLettered]] = deque(maxlen=_MAX_FRESH)
        self.counted: Mapping[type[Event], Callable[[Any], None]] = {
            events.ShardsOwned: self._shards_owned,
            events.SessionOpened: self._session_opened,
            events.SessionClosed: self._session_closed,
            events.ProducerOpened: self._producer_opened,
            events.ProducerSuspect: lambda event: self._suspects.add(event.shard),
            events.TransactionCommitted: self._committed,
            events.TransactionEnded: self._ended,
            events.Fenced: self._fenced,
            events.CallRetried: self._call_again,
            events.Waiting: self._call_again,
            events.PartitionsAssigned: self._assigned,
            events.PartitionsRevoked: self._revoked,
            events.Rewound: self._positioned,
            events.RecordDeadLettered: self._dead_lettered,
            events.Sampled: self._sampled,
            events.PartitionStalled: self._stalled,
            events.TransformAtWork: self._worked,
            events.StrangersInGroup: self._strangers_came,
        }

    @property
    def registry(self) -> CollectorRegistry:
        """The figures for Prometheus."""
        return self._metrics.registry

    @property
    def open_sessions(self) -> frozenset[str]:
        """The shards that have one."""
        return frozenset(name for name, shard in self._shards.copy().items() if shard.is_open)

    def __call__(self, event: Event) -> None:
        count = self.counted.get(type(event))
        if count is not None:
            count(event)
        if type(event) in TEXTS and type(event) not in UNNOTED:
            self._fresh.append((self._wall_clock(), event))

    def report(
        self, *, process: str = "", ended: bool = False, silent_s: float = 0.0, sessions_expected: int = 1
    ) -> WorkerReport:
        """What is so now, and the events since the last call."""
        now = self._clock()
        metrics = self._metrics
        shards = self._shards.copy().values()  # in one step: the loops go on beside this thread
        notes = (note_of(*self._fresh.popleft()) for _ in range(len(self._fresh)))
        commits = total(metrics.transactions, outcome="committed")
        return WorkerReport(
            process=process,
            pid=os.getpid(),
            ended=ended,
            silent_s=silent_s,
            sessions_open=len(self.open_sessions),
            sessions_expected=sessions_expected,
            counts=Counts(
                total(metrics.records_in),
                total(metrics.records_out),
                commits,
                total(metrics.transactions) - commits,
            ),
            partitions=tuple(one for shard in shards for one in _partitions(shard, now)),
            open_s=tuple(now - shard.open_since for shard in shards if shard.open_since is not None),
            committed_s=None if self._committed_at is None else now - self._committed_at,
            outside_s=max(
                (now - shard.outside_since for shard in shards if shard.outside_since is not None),
                default=0.0,
            ),
            at_work=tuple(
                LongTransform(event.records, now - since, shortened(_own_place(event.stack)))
                for event, since in self._at_work.copy().values()
            ),
            strangers=_strangers(shards),
            notes=tuple(note for note in notes if note is not None),
            dead_letters=tuple(
                dead_letter_of(*self._dead_letters.popleft()) for _ in range(len(self._dead_letters))
            ),
            families=tuple(self.registry.collect()),
        )

    def _gauges(self) -> Gauges:
        shards = self._shards.copy()
        partitions = {
            name: {p: n for shard in shards.values() for p, n in getattr(shard, name).copy().items()}
            for name in ("lag", "lso_distance", "stalled")
        }
        turned = {(name,): shard.turned_at for name, shard in shards.items() if shard.turned_at is not None}
        sessions = {(): float(len(self.open_sessions))}
        return {
            **partitions,
            "sessions_open": sessions,
            "shards_owned": {(): self._owned},
            "strangers": {(): len(_strangers(shards.values()))},
            "last_turn": turned,
        }

    def _of(self, event: Event) -> _Shard:
        shard = self._shards.get(event.shard)
        if shard is None:
            shard = self._shards[event.shard] = _Shard()
        return shard

    def _counting(self, event: Event) -> _Shard:
        """Its series start at zero, not with the first transaction."""
        shard = self._of(event)
        if not shard.ended:
            outcomes = ("committed", "aborted", "unresolved")
            shard.ended = {
                outcome: self._metrics.transactions.labels(event.shard, outcome) for outcome in outcomes
            }
            shard.turned_at = 0.0
        return shard

    def _shards_owned(self, event: events.ShardsOwned) -> None:
        self._owned = len(event.transactional_ids)

    def _session_opened(self, event: events.SessionOpened) -> None:
        self._of(event).is_open = True

    def _session_closed(self, event: events.SessionClosed) -> None:
        self._shards.pop(event.shard, None)

    def _fenced(self, event: events.Fenced) -> None:
        self._metrics.fences.inc()
        self._of(event).is_open = False

    def _producer_opened(self, event: events.ProducerOpened) -> None:
        rebuilt = "suspect" if event.shard in self._suspects else "over"
        self._metrics.opens.labels(rebuilt if event.rebuilt_because else "first").inc()
        self._suspects.discard(event.shard)
        self._counting(event)

    def _committed(self, event: events.TransactionCommitted) -> None:
        shard = self._counting(event)
        shard.ended["committed"].inc()
        self._metrics.records_in.inc(event.records_in)
        self._metrics.records_out.inc(event.records_out)
        for attribute, histogram in self._metrics.histograms.items():
            histogram.observe(getattr(event, attribute))
        shard.open_since = None
        self._committed_at = now = self._clock()
        for partition, offset in event.offsets.items():
            shard.positions[partition] = (offset, now)

    def _ended(self, event: events.TransactionEnded) -> None:
        shard = self._counting(event)
        shard.ended["aborted" if event.outcome == "aborted" else "unresolved"].inc()
        if event.outcome == "expired":
            self._metrics.expired.inc()
        shard.open_since = None

    def _call_again(self, event: events.CallRetried | events.Waiting) -> None:
        self._metrics.retries.labels(str(event.call)).inc()

    def _assigned(self, event: events.PartitionsAssigned) -> None:
        self._metrics.rebalances.labels("assigned").inc()
        self._positioned(event)

    def _positioned(self, event: events.PartitionsAssigned | events.Rewound) -> None:
        known = self._of(event).positions
        for partition, offset in event.positions.items():
            if known.get(partition, (None,))[0] != offset:
                known[partition] = (offset, None)

    def _revoked(self, event: events.PartitionsRevoked) -> None:
        """A partition that another process reads now must not be shown from here for ever."""
        self._metrics.rebalances.labels("lost" if event.lost else "revoked").inc()
        shard = self._of(event)
        known: dict[Partition, Any]
        for known in (shard.positions, shard.lag, shard.lso_distance, shard.stalled):
            for partition in event.partitions:
                known.pop(partition, None)

    def _dead_lettered(self, event: events.RecordDeadLettered) -> None:
        self._metrics.dead_letters.labels(event.partition.topic, str(event.skipped).lower()).inc()
        self._dead_letters.append((self._wall_clock(), event))

    def _sampled(self, event: events.Sampled) -> None:
        shard = self._counting(event)
        shard.turned_at = self._wall_clock()
        now = self._clock()
        shard.open_since = now - event.open_s if event.open_s else None
        if event.lag is not None:
            shard.measured_at = now
            shard.outside_since = now - event.lag.outside_s if event.lag.outside_s else None
            shard.lag, shard.lso_distance = dict(event.lag.to_lso), dict(event.lag.lso_to_high_watermark)

    def _stalled(self, event: events.PartitionStalled) -> None:
        stalled = self._of(event).stalled
        if event.seconds:
            stalled[event.partition] = event.seconds
        else:
            stalled.pop(event.partition, None)

    def _strangers_came(self, event: events.StrangersInGroup) -> None:
        self._of(event).strangers = event.members

    def _worked(self, event: events.TransformAtWork) -> None:
        if event.seconds:
            self._at_work[event.shard] = (event, self._clock() - event.seconds)
        else:
            self._at_work.pop(event.shard, None)


def _partitions(shard: _Shard, now: float) -> list[PartitionReport]:
    positions, stalled = shard.positions.copy(), shard.stalled.copy()
    lag, lso_distance = shard.lag.copy(), shard.lso_distance.copy()
    measured_s = None if shard.measured_at is None else now - shard.measured_at
    found = []
    for partition in dict.fromkeys((*positions, *lag, *lso_distance, *stalled)):
        committed, at = positions.get(partition, (None, None))
        found.append(
            PartitionReport(
                *partition,
                committed=committed,
                age_s=None if at is None else now - at,
                measured_s=measured_s,
                lag=lag.get(partition),
                lso_distance=lso_distance.get(partition),
                stalled_s=stalled.get(partition),
            )
        )
    return found


def _strangers(shards: Iterable[_Shard]) -> tuple[str, ...]:
    """As each shard's session has seen them last; of several the same ones."""
    return tuple(sorted({member for shard in shards for member in shard.strangers}))


def _own_place(stack: Sequence[str]) -> str:
    """The innermost place that is no library's: the one that its reader can look into."""
    return next(
        (place for place in reversed(stack) if not _OF_OTHERS.search(place)), stack[-1] if stack else ""
    )
