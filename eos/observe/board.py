"""Board: what the parent knows of all workers, as Prometheus metrics and as answers to health checks.

A worker that is restarted goes on counting where its predecessor stopped: what a process counted is kept
per ordinal. Gauges are facts about a living process and go with it. What a killed worker counted after its
last report, about a second's worth, is not known to anybody.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

from eos.observe.health import Health, Verdict
from eos.observe.relay import Family, Series, Snapshot, unpacked

# One call of a turn may wait for the brokers until transaction.timeout.ms (60 s by default) without an event:
# send_offsets is not cut into slices. An outage must not look like a loop that is stuck.
MAX_SILENCE_S = 120.0
_ADDED_UP = frozenset({"counter", "histogram"})

_Key = tuple[str, tuple[tuple[str, str], ...]]  # a sample's name and labels


class _Figures:
    """Metric families, to which those of one process after the other are added."""

    def __init__(self) -> None:
        self._families: dict[str, tuple[str, str, dict[_Key, float]]] = {}

    def add(self, families: Iterable[Family], *, gauges: bool) -> None:
        for name, kind, documentation, series in families:
            added = kind in _ADDED_UP
            if not (added or gauges):
                continue
            values = self._families.setdefault(name, (kind, documentation, {}))[2]
            for sample, labels, value in series:
                key = (sample, labels)
                values[key] = values.get(key, 0.0) + value if added else value

    def families(self) -> Iterator[Family]:
        for name, (kind, documentation, values) in self._families.items():
            series = tuple(Series(sample, labels, value) for (sample, labels), value in values.items())
            yield Family(name, kind, documentation, series)


class _Worker:
    """An ordinal: the last report of its present process, and the sums of those before."""

    def __init__(self) -> None:
        self.restarts = 0
        self._before = _Figures()
        self._last: Snapshot | None = None
        self._over = ""  # the process that was added to the sums last

    def take(self, snapshot: Snapshot) -> bool:
        """False for a report of a process that is over: it would be counted twice."""
        if snapshot.process == self._over:
            return False
        if self._last is not None and self._last.process != snapshot.process:
            self.process_over()
        self._last = snapshot
        return True

    def process_over(self) -> None:
        if self._last is not None:
            self._before.add(self._last.families, gauges=False)
            self._over = self._last.process
            self._last = None

    def families(self) -> Iterator[Family]:
        total = _Figures()
        total.add(self._before.families(), gauges=False)
        if self._last is not None:
            total.add(self._last.families, gauges=not self._last.ended)
        return total.families()


class Board(Collector):
    """What the workers reported last. Thread-safe: the parent's loop writes, the HTTP server reads.

    Args:
        expected_workers: the ordinals that this parent runs.
        max_silence_s: seconds without a sign of life after which a worker is unhealthy; more than
            transaction.timeout.ms.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        expected_workers: Iterable[int],
        *,
        max_silence_s: float = MAX_SILENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        ordinals = sorted(expected_workers)
        self.registry = CollectorRegistry()
        self._clock = clock
        self._lock = threading.Lock()
        self._workers = {ordinal: _Worker() for ordinal in ordinals}
        self._health = Health(ordinals, max_silence_s, clock())
        self.registry.register(self)

    def take(self, ordinal: int, report: bytes) -> None:
        """A report of a worker's relay, as it came out of the pipe."""
        snapshot = unpacked(report)
        with self._lock:
            if not self._workers[ordinal].take(snapshot):
                return
            if snapshot.ended:
                self._health.finished(ordinal)
                return
            self._health.turned(ordinal, self._clock() - snapshot.silent_s)
            self._health.sessions(
                ordinal, open_now=snapshot.sessions_open, expected=snapshot.sessions_expected
            )

    def restarted(self, ordinal: int) -> None:
        """The worker's process was killed, and another is started under its ordinal."""
        with self._lock:
            worker = self._workers[ordinal]
            worker.restarts += 1
            worker.process_over()
            self._health.killed(ordinal, self._clock())

    def healthy(self) -> Verdict:
        """Whether every worker's loop turns."""
        with self._lock:
            return self._health.healthy(self._clock())

    def ready(self) -> Verdict:
        """Whether every worker has its sessions open."""
        with self._lock:
            return self._health.ready()

    def describe(self) -> Iterable[Metric]:
        """Nothing: the families are known when workers have reported them."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All workers' families, with a label ``worker``, and what the parent itself counts."""
        restarts = CounterMetricFamily(
            "eos_worker_restarts", "Worker processes that were killed and replaced.", labels=["worker"]
        )
        merged: dict[str, Metric] = {}
        with self._lock:
            for ordinal, worker in self._workers.items():
                name = str(ordinal)
                restarts.add_metric([name], worker.restarts)
                for family in worker.families():
                    metric = merged.setdefault(family.name, Metric(family.name, family.help, family.kind))
                    for sample, labels, value in family.series:
                        metric.add_sample(sample, {"worker": name, **dict(labels)}, value)
        yield restarts
        yield from merged.values()
