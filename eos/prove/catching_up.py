"""Catching up: what a job has still to do, whether it gets that done in its own time, and how much more it can be given."""

from __future__ import annotations

import time
from collections.abc import Callable

from eos.errors import EosError
from eos.prove.coordinators import Coordinators
from eos.prove.fleet import Fleet
from eos.prove.gauge import Gauge
from eos.prove.inputs import Inputs

_POLL_S = 0.2
_HEALED_S = 120.0  # beyond the transaction's timeout, for all that is left at the usual speed
_SLOWER = 3  # times as long as it took before: what follows a fault begins with recovery
# Any client asks for a topic's partitions again after five minutes (topic.metadata.refresh.interval.ms, metadata.max.age.ms).
_REFRESHED_S = 330.0
_PLAIN = (
    "; if it is one of plain confluent-kafka: has its producer metadata.recovery.strategy=none? Without that it may wait for ever "
    "once it has lost all connections (librdkafka's issue 5511)"
)
_WAITS_S = 30.0  # of the job's work may wait for it …
_AT_LEAST = 100  # … records in any case: before its first commit nothing is known of its speed


class CatchingUp:
    """Waits until a job has done all that is there, and says why not if it does not get on.

    Args:
        gauge: how far it is.
        fleet: its processes.
        inputs: its input topics.
        coordinators: which know how long its transactions may stay open.
        ledger: how much of a query's ledger is still to be written.
        timeout_s: of transactions, by the settings.
    """

    def __init__(
        self,
        gauge: Gauge,
        fleet: Fleet,
        inputs: Inputs,
        coordinators: Coordinators,
        ledger: Callable[[], int],
        *,
        timeout_s: float,
    ) -> None:
        self._gauge, self._fleet, self._inputs, self._coordinators = gauge, fleet, inputs, coordinators
        self._ledger, self._timeout_s, self._own = ledger, timeout_s, fleet.runtime.is_eos

    @property
    def timeout_s(self) -> float:
        """For how long a transaction of the job may stay open that nobody ends."""
        return max(self._timeout_s, 0.0 if self._own else self._coordinators.longest_timeout_s)

    def __call__(self) -> list[str]:
        """What speaks against it; nothing, once the job has caught up."""
        self._coordinators.looked([])
        began, moved, was = time.monotonic(), time.monotonic(), 0
        patience_s = self._patience_s()
        while self._fleet.instances:
            self._fleet.keep_up()
            now = time.monotonic()
            over = now - began > patience_s or (now - moved > self._stalled_s and not self._is_new(was))
            if over:
                hint = "" if self._own else _PLAIN
                return [
                    f"the job did not catch up: {was:,} offsets were left {now - began:.0f} s later{hint}"
                ]
            try:
                left = self._left()
            except EosError:  # no answer
                continue
            if not left:
                return []
            if left != was:
                moved, was = time.monotonic(), left
            time.sleep(_POLL_S)
        return ["the job did not catch up: none of it runs any more"]

    def _left(self) -> int:
        sample = self._gauge.look()
        if self._own or not sample.lag or sample.left > sample.lag:
            return sample.left or self._ledger()
        return self._gauge.unread()

    @property
    def _stalled_s(self) -> float:
        # A program that was killed may have to wait for its transaction's end, and then takes as long for the next one.
        return self._fleet.runtime.stalls_s + (0.0 if self._own else 2 * self.timeout_s)

    def _is_new(self, left: int) -> bool:
        """Whether what is left may be of a partition that the program need not know yet."""
        grown = self._inputs.grown_at
        return not self._own and left > 0 and grown is not None and time.monotonic() - grown < _REFRESHED_S

    def _patience_s(self) -> float:
        usual = self.timeout_s + _HEALED_S + self._stalled_s
        grown = self._inputs.grown_at
        if not self._own and grown is not None:
            usual += max(0.0, _REFRESHED_S - (time.monotonic() - grown))
        speed, lag = self._gauge.speed, self._gauge.samples[-1].lag if self._gauge.samples else 0
        return usual + (_SLOWER * lag / speed if speed else 0.0)


class InputRoom:
    """How much input a job can be given, so that it can be judged after a fault, however long a record takes."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._looks, self._fed = 0, 0

    def room(self, fed: int) -> int:
        """How many records more, when so many were fed so far."""
        samples = self._gauge.samples
        if len(samples) > self._looks:
            self._looks, self._fed = len(samples), fed
        waiting = (samples[-1].lag if samples else 0) + fed - self._fed
        return max(_AT_LEAST, round(_WAITS_S * self._gauge.speed)) - waiting
