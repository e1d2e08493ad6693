"""Board: what the parent knows of all workers: as Prometheus metrics, as answers to health checks, as the page's status.

A worker that is restarted goes on counting where its predecessor stopped: what a process counted is kept
per ordinal. Gauges are facts about a living process and go with it. What a killed worker counted after its
last report, about a second's worth, is lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

from eos.observe.health import Health, Verdict
from eos.observe.job_status import JobStatus
from eos.observe.relay import Snapshot, unpacked
from eos.printable import printable

# One call of a turn may wait for the brokers until transaction.timeout.ms (60 s by default) without an event:
# send_offsets is not cut into slices. An outage must not look like a loop that is stuck.
MAX_SILENCE_S = 120.0

_Labels = tuple[tuple[str, str], ...]


class _Worker:
    """An ordinal: the last report of its present process, and the sums of the processes before."""

    def __init__(self) -> None:
        self.restarts = 0
        self._before: list[Metric] = []
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
            self._before = _added_up([*self._before, *_counts(self._last)])
            self._over = self._last.process
            self._last = None

    def families(self) -> list[Metric]:
        if self._last is None:
            return self._before
        return _added_up([*self._before, *(_counts(self._last) if self._last.ended else self._last.families)])


def _counts(snapshot: Snapshot) -> list[Metric]:
    """What goes on after the process: gauges are facts about a living one."""
    return [family for family in snapshot.families if family.type in {"counter", "histogram"}]


def _added_up(families: Iterable[Metric]) -> list[Metric]:
    """One family of each name, the samples of equal name and labels summed."""
    added: dict[str, Metric] = {}
    sums: dict[tuple[str, str, _Labels], float] = {}
    for family in families:
        added.setdefault(family.name, Metric(family.name, family.documentation, family.type))
        for sample in family.samples:
            # When a series was created says nothing once processes are added up.
            if not sample.name.endswith("_created"):
                key = (family.name, sample.name, tuple(sample.labels.items()))
                sums[key] = sums.get(key, 0.0) + sample.value
    for (name, sample_name, labels), value in sums.items():
        added[name].add_sample(sample_name, dict(labels), value)
    return list(added.values())


class Board(Collector):
    """What the workers reported last. Thread-safe: the parent's loop writes, the HTTP server reads.

    Args:
        expected_workers: the ordinals that this parent runs.
        max_silence_s: seconds without a sign of life after which a worker is unhealthy; more than
            transaction.timeout.ms.
        about: what the page says of the job: its name, its group.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        expected_workers: Iterable[int],
        *,
        max_silence_s: float = MAX_SILENCE_S,
        about: Mapping[str, object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        ordinals = sorted(expected_workers)
        self.registry = CollectorRegistry()
        self._clock = clock
        self._lock = threading.Lock()
        self._workers = {ordinal: _Worker() for ordinal in ordinals}
        self._health = Health(ordinals, max_silence_s, clock())
        self._wall_clock = wall_clock
        self._status = JobStatus(ordinals, about or {}, max_silence_s, clock())
        self.registry.register(self)

    def take(self, ordinal: int, report: bytes) -> None:
        """A report of a worker's relay, as it came out of the pipe."""
        snapshot = unpacked(report)
        with self._lock:
            if not self._workers[ordinal].take(snapshot):
                return
            self._status.take(ordinal, snapshot, self._clock())
            if not snapshot.ended:  # else the parent says whether anything is expected of the ordinal now
                self._health.turned(ordinal, self._clock() - snapshot.silent_s)
                self._health.sessions(
                    ordinal,
                    open_now=snapshot.sessions_open,
                    expected=snapshot.sessions_expected,
                    at_work=snapshot.at_work,
                )

    def done(self, ordinal: int) -> None:
        """The worker has done all that there was to do: nothing is expected of it any more."""
        with self._lock:
            self._health.finished(ordinal)
            self._status.done(ordinal)

    def restarted(self, ordinal: int, why: str = "") -> None:
        """The worker's process has ended too early, and another is started under its ordinal."""
        with self._lock:
            worker = self._workers[ordinal]
            worker.restarts += 1
            worker.process_over()
            self._health.killed(ordinal, self._clock())
            self._status.restarted(ordinal, why, self._clock(), self._wall_clock())

    def healthy(self) -> Verdict:
        """Whether every worker's loop turns."""
        with self._lock:
            return self._health.healthy(self._clock())

    def ready(self) -> Verdict:
        """Whether every worker reports and has its sessions open, its brokers answer, and no transform has run for long."""
        with self._lock:
            return self._ready(self._clock())

    def lag_is_old(self) -> bool:
        """Whether the lag that was last measured says nothing of now: a loop that waits for brokers measures none."""
        with self._lock:
            return self._status.lag_is_old(self._clock())

    def status(self) -> dict[str, Any]:
        """What the page shows, as JSON takes it."""
        with self._lock:
            now = self._clock()
            return self._status.shown(self._health.healthy(now), self._ready(now), now, self._wall_clock())

    def _ready(self, now: float) -> Verdict:
        return self._health.ready(self._status.unanswered_s(now), self._status.unreported_s(now))

    def describe(self) -> Iterable[Metric]:
        """Nothing: the families are known when workers have reported them."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All workers' families, with a label ``worker``, and what the parent itself counts."""
        restarts = CounterMetricFamily(
            "eos_worker_restarts",
            "Worker processes that a signal has ended and that were replaced.",
            labels=["worker"],
        )
        merged: dict[str, Metric] = {}
        with self._lock:
            for ordinal, worker in self._workers.items():
                name = str(ordinal)
                restarts.add_metric([name], worker.restarts)
                for family in worker.families():
                    metric = merged.setdefault(
                        family.name, Metric(family.name, family.documentation, family.type)
                    )
                    for sample in family.samples:
                        labels = {label: printable(value) for label, value in sample.labels.items()}
                        metric.add_sample(sample.name, {"worker": name, **labels}, sample.value)
        yield restarts
        yield from merged.values()
