"""Run statistics: what a run's workers have done so far, how fast, and what is left; as a live line, as log lines, as a sum at the end."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

from eos.base.deadline import Deadline
from eos.base.listing import counted
from eos.cli.bars import Update, live_line
from eos.ops.observe import Aggregator
from eos.ops.observe.worker_report import Counts

_WINDOW_S = 10.0  # of the rates
_LINE_EVERY_S = 30.0
_LOOK_EVERY_S = 0.5
_HELD_BACK_S = 10.0

log = logging.getLogger("eos.progress")


class _Sum(NamedTuple):
    at: float
    counts: Counts = Counts()

    def since(self, earlier: _Sum) -> _Sum:
        return _Sum(self.at - earlier.at, self.counts.since(earlier.counts))


class RunStatistics:
    """What the workers have reported, about once a second each.

    Attributes:
        held_back_s: for how many seconds nothing was committed while all that is left is held back by open transactions.
        lag: records that are committed and not processed yet, as last measured (every 2 s; transaction markers count);
            None if no worker has measured it, or not of late.

    Args:
        aggregator: takes the workers' reports.
        clock: seconds, monotonic.
    """

    def __init__(self, aggregator: Aggregator, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.held_back_s = 0.0
        self.lag: int | None = None
        self._aggregator = aggregator
        self._clock = clock
        self._began = _Sum(clock())
        self._sums = deque([self._began])
        self._committed_at: float | None = None
        self._stood_since: float | None = None
        self._total = 0
        self._measured = False

    def read(self) -> tuple[int, int]:
        """(records processed, records that there are to process), the latter as far as it is known."""
        totals = self._aggregator.totals()
        now, last = self._clock(), self._sums[-1]
        self._sums.append(_Sum(now, totals.counts))
        has_committed = totals.counts.commits > last.counts.commits
        if has_committed:
            self._committed_at = now
        while self._sums[1].at <= now - _WINDOW_S:
            self._sums.popleft()
        lag = totals.lag
        stands = lag == 0 and totals.lso_distance > 0 and not has_committed
        self._stood_since = (self._stood_since or now) if stands else None
        self.held_back_s = 0.0 if self._stood_since is None else now - self._stood_since
        processed = int(totals.counts.records_in)
        if lag is not None and lag != self.lag:  # a new measurement
            self._total = processed + lag
        self.lag = None if self._aggregator.lag_is_old() else lag
        self._measured = self._measured or lag is not None
        return processed, max(processed, self._total)

    def __str__(self) -> str:
        """As last read, in one line."""
        span, moved = self._sums[-1].since(self._sums[0])
        seconds, done = max(span, 1.0), self._sums[-1].counts
        parts = [
            f"{done.records_in:,.0f} in ({moved.records_in / seconds:,.0f}/s)",
            f"{done.records_out:,.0f} out ({moved.records_out / seconds:,.0f}/s)",
            f"{moved.commits / seconds:,.1f} commits/s",
            f"lag {self.lag:,}"
            if self.lag is not None
            else "lag not known now"
            if self._measured
            else "lag not measured yet",
        ]
        if self._committed_at is not None:
            parts.append(f"last commit {self._clock() - self._committed_at:.0f} s ago")
        return ", ".join(parts)

    def summary(self) -> str:
        """What all of it comes to, in one line."""
        seconds, whole = self._sums[-1].since(self._began)
        return (
            f"{counted(round(whole.records_in), 'record')} in, {whole.records_out:,.0f} out, in "
            f"{counted(round(whole.commits), 'transaction')} and "
            f"{seconds:,.1f} s ({whole.records_in / max(seconds, 0.001):,.0f} records/s)"
        )


@contextmanager
def moving(
    aggregator: Aggregator, *, with_line: bool, has_end: bool, on_held_back: Callable[[], None]
) -> Iterator[Callable[[], None]]:
    """Show how a run gets on: a live line, or a log line every 30 s; and what it has done, in the log at its end.

    Args:
        aggregator: takes the workers' reports.
        with_line: there is a terminal for a live line.
        has_end: the run ends when all is processed, so that a bar says how far it is.
        on_held_back: called from a thread when open transactions have held back all that is left for 10 s.

    Yields:
        A function that brings the line up to date; it is called after each report.
    """
    statistics = RunStatistics(aggregator)
    lines, looks, named = Deadline(_LINE_EVERY_S), Deadline(0), False

    def show(update: Update) -> None:
        nonlocal looks, named
        if (
            not looks.passed
        ):  # to add up all workers' reports at each report of each costs more with each worker
            return
        looks = Deadline(_LOOK_EVERY_S)
        processed, total = statistics.read()
        # A full bar would say that all is done, but how much there is has not been measured yet.
        update(str(statistics), processed, total if total > processed else 0)
        if statistics.held_back_s >= _HELD_BACK_S and not named:
            threading.Thread(target=on_held_back, name="eos-held-back", daemon=True).start()
        named = statistics.held_back_s >= _HELD_BACK_S

    def write(what: str, processed: int, total: int) -> None:
        nonlocal lines
        if lines.passed:
            lines = Deadline(_LINE_EVERY_S)
            log.info(
                "%s%s", f"{processed:,} of about {total or processed:,} records: " if has_end else "", what
            )

    try:
        with live_line(with_bar=has_end) if with_line else nullcontext(write) as update:
            yield lambda: show(update)
    finally:
        statistics.read()
        log.info("processed %s", statistics.summary())
