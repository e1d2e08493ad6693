"""Health: whether the workers' loops turn and their sessions are open; pure, every time is given.

A loop turns also while the brokers are away, so an outage of theirs does not make a worker unhealthy:
restarting it would not bring them back, and would cost the takeover of its shards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """An answer, and for a no what is missing, one entry per worker."""

    missing: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.missing


@dataclass(slots=True)
class _Worker:
    turned_at: float
    sessions_open: int = 0
    sessions_expected: int = 1
    at_work: str = ""


class Health:
    """What is known of each worker.

    Args:
        workers: their ordinals.
        max_silence_s: seconds without a turn after which a worker is unhealthy. The same time is given to a
            worker for its start, and to a replacement to come.
        now: seconds, monotonic, as in every call.
    """

    def __init__(self, workers: Iterable[int], max_silence_s: float, now: float) -> None:
        self.max_silence_s = max_silence_s
        self._workers = {ordinal: _Worker(now) for ordinal in workers}

    def turned(self, ordinal: int, at: float) -> None:
        """The worker's loop turned at this time."""
        worker = self._workers.get(ordinal)
        if worker is not None:
            worker.turned_at = max(worker.turned_at, at)

    def sessions(self, ordinal: int, *, open_now: int, expected: int, at_work: str = "") -> None:
        """How many of its sessions the worker has open, and what a transform of it has been at work on for long."""
        worker = self._workers.get(ordinal)
        if worker is not None:
            worker.sessions_open, worker.sessions_expected, worker.at_work = open_now, expected, at_work

    def killed(self, ordinal: int, now: float) -> None:
        """The worker's process has ended too early; its replacement has ``max_silence_s`` to come."""
        self._workers[ordinal] = _Worker(now)

    def finished(self, ordinal: int) -> None:
        """The worker has done all its work: nothing is expected of it any more."""
        self._workers.pop(ordinal, None)

    def healthy(self, now: float) -> Verdict:
        """Every worker's loop turns."""
        return Verdict(
            tuple(
                f"worker {ordinal}: no turn of its loop "
                f"for {now - worker.turned_at:.0f} s (limit {self.max_silence_s:.0f} s)"
                for ordinal, worker in sorted(self._workers.items())
                if now - worker.turned_at > self.max_silence_s
            )
        )

    def ready(
        self, unanswered_s: Mapping[int, float] | None = None, unreported_s: Mapping[int, float] | None = None
    ) -> Verdict:
        """Every worker reports and has its sessions open, its brokers answer, and no transform has been at work for long.

        Args:
            unanswered_s: seconds for which a worker's brokers have not answered, of those where that is long.
            unreported_s: seconds for which a worker has not reported, of those where that is long.
        """
        missing = []
        for ordinal, worker in sorted(self._workers.items()):
            if seconds := (unreported_s or {}).get(ordinal):
                missing.append(f"worker {ordinal}: it has not reported for {seconds:.0f} s")
                continue
            if worker.sessions_open < worker.sessions_expected:
                missing.append(
                    f"worker {ordinal}: {worker.sessions_open} of {worker.sessions_expected} sessions open"
                )
            if worker.at_work:
                missing.append(f"worker {ordinal}: its transform is at work on {worker.at_work}")
            elif seconds := (unanswered_s or {}).get(ordinal):
                missing.append(f"worker {ordinal}: the brokers have not answered for {seconds:.0f} s")
        return Verdict(tuple(missing))
