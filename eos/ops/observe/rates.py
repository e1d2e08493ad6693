"""Rates: how much was done in each of the last steps of some minutes; a bounded ring."""

from __future__ import annotations

import math

from eos.ops.observe.worker_report import Counts

STEP_S = 2.0
STEPS = 150
_REPORTS_TRAIL_S = 2.0  # a step is shown when all workers have reported what they did in it
_MAX_REPORT_S = 10.0  # a report of a process that stood still says nothing of when it worked


class Rates:
    """Adds up what workers report, each a span of time, in steps of two seconds for five minutes.

    Args:
        began: as all times seconds of one monotonic clock.
    """

    def __init__(self, began: float) -> None:
        self._began = began
        self._steps: dict[int, list[float]] = {}

    def add(self, counts: Counts, since: float, until: float) -> None:
        """So much was done between these times: each step gets its share."""
        since = max(min(since, until - 0.001), until - _MAX_REPORT_S)
        last = int(until // STEP_S)
        for step in range(int(since // STEP_S), last + 1):
            part = min(until, (step + 1) * STEP_S) - max(since, step * STEP_S)
            sums = self._steps.setdefault(step, [0.0] * len(counts))
            for at, count in enumerate(counts):
                sums[at] += count * part / (until - since)
        for step in [step for step in self._steps if step < last - STEPS]:
            del self._steps[step]

    def per_second(self, now: float) -> dict[str, list[float]]:
        """The last steps that are complete, the oldest first, each as a rate."""
        end = int((now - _REPORTS_TRAIL_S) // STEP_S)
        first = max(end - STEPS, math.ceil(self._began / STEP_S))
        nothing = [0.0] * len(Counts._fields)
        rows = [self._steps.get(step, nothing) for step in range(first, end)]
        return {name: [round(row[at] / STEP_S, 3) for row in rows] for at, name in enumerate(Counts._fields)}
