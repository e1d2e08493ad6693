"""Aggregator: what the parent knows of all workers: as Prometheus metrics, as answers to health checks, as the page's status."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

from eos.base.printable import printable
from eos.ops.observe.job_status import HealthVerdict, JobStatus, Totals
from eos.ops.observe.worker_report import unpacked

# One call of a turn may wait for the brokers until transaction.timeout.ms (60 s by default) without an event:
# send_offsets is not cut into slices. An outage must not look like a loop that is stuck.
MAX_SILENCE_S = 120.0


class Aggregator(Collector):
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
        self.registry = CollectorRegistry()
        self._clock = clock
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._job = JobStatus(expected_workers, about or {}, max_silence_s, clock())
        self.registry.register(self)

    def take(self, ordinal: int, message: bytes) -> None:
        """A report of a worker, as it came out of the pipe."""
        report = unpacked(message)
        with self._lock:
            self._job.take(ordinal, report, self._clock())

    def done(self, ordinal: int) -> None:
        """The worker has done all that there was to do: nothing is expected of it any more."""
        with self._lock:
            self._job.done(ordinal)

    def restarted(self, ordinal: int, why: str = "") -> None:
        """The worker's process has ended too early, and another is started under its ordinal."""
        with self._lock:
            self._job.restarted(ordinal, why, self._clock(), self._wall_clock())

    def healthy(self) -> HealthVerdict:
        """Whether every worker's loop turns."""
        with self._lock:
            return self._job.healthy(self._clock())

    def ready(self) -> HealthVerdict:
        """Whether every worker reports and has its sessions open, its brokers answer, and no transform has run for long."""
        with self._lock:
            return self._job.ready(self._clock())

    def lag_is_old(self) -> bool:
        """Whether the lag that was last measured says nothing of now: a loop that waits for brokers measures none."""
        with self._lock:
            return self._job.lag_is_old(self._clock())

    def totals(self) -> Totals:
        """What all workers have done, and what is left."""
        with self._lock:
            return self._job.totals()

    def status(self) -> dict[str, Any]:
        """What the page shows, as JSON takes it."""
        with self._lock:
            return self._job.shown(self._clock(), self._wall_clock())

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
            for ordinal, worker in self._job.workers.items():
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
