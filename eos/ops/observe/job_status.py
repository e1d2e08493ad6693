"""JobStatus: what the workers' reports say of the job, gathered and bounded; docs/reference/monitoring.md has the fields of its page."""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

from eos.ops.observe.alerts import alerts
from eos.ops.observe.event_texts import DeadLetter, Note
from eos.ops.observe.log_lines import eos_version
from eos.ops.observe.rates import STEP_S, Rates
from eos.ops.observe.worker_report import Counts, PartitionReport, WorkerReport
from eos.ops.observe.worker_status import WorkerStatus

_MAX_NOTES = 60
_MAX_LETTERS = 20
_WAITS = ("waits_s", "held_back_s", "unmeasured_s")  # why a partition goes no further
_MEASURED_S = 10.0  # a lag that was measured longer ago is not known
_UNANSWERED_S = 10.0  # … for so long: the brokers do not answer
_DIGITS = re.compile(r"\d+")

_Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class HealthVerdict:
    """An answer, and for a no what is missing, one entry per worker."""

    missing: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.missing


class Totals(NamedTuple):
    """What all workers have done, over restarts too; what is left of their input, as last measured (None: by no worker)."""

    counts: Counts
    lag: int | None
    lso_distance: int


class JobStatus:
    """Not thread-safe: its aggregator has the lock.

    Args:
        ordinals: of the workers.
        about: what is known of the job from the beginning: shown as it is.
        max_silence_s: seconds without a sign of life after which a worker is silent.
        now: seconds, monotonic, as in every call.
    """

    def __init__(
        self, ordinals: Iterable[int], about: Mapping[str, object], max_silence_s: float, now: float
    ) -> None:
        self.workers = {
            ordinal: WorkerStatus(ordinal, max_silence_s, now) for ordinal in sorted(set(ordinals))
        }
        self._about = dict(about)
        self._began = now
        self._rates = Rates(now)
        # By what they have in common but for figures: the last, how often, and since when.
        self._notes: OrderedDict[tuple[Any, ...], tuple[Note, int, float]] = OrderedDict()
        self._dead_letters: deque[tuple[int, DeadLetter]] = deque(maxlen=_MAX_LETTERS)
        # By partition that goes no further although it could, or could but for an open transaction: since when.
        self._waiting: dict[_Partition, tuple[str, int | None, float]] = {}

    def take(self, ordinal: int, report: WorkerReport, now: float) -> None:
        """A report of a worker's process; one of a process that is over is passed over."""
        worker = self.workers[ordinal]
        former, reported_at = worker.last, worker.reported_at
        if not worker.take(report, now):
            return
        if former is not None and former.process == report.process:
            self._rates.add(report.counts.since(former.counts), reported_at or now, now)
        else:
            self._rates.add(report.counts, now - 1.0, now)
        owned = report.owned
        for partition in former.owned if former is not None else ():
            if partition not in owned:
                self._waiting.pop(partition, None)
        for one in owned.values():
            self._look_why_it_waits(one, now)
        for note in report.notes:
            self._note(ordinal, note)
        self._dead_letters.extend((ordinal, letter) for letter in report.dead_letters)

    def done(self, ordinal: int) -> None:
        """The worker has done all that there was to do: nothing is expected of it any more."""
        self.workers[ordinal].done = True

    def restarted(self, ordinal: int, why: str, now: float, wall_now: float) -> None:
        """Its process has ended too early."""
        self.workers[ordinal].restarted(now)
        self._note(ordinal, Note(wall_now, "warning", "worker replaced", "", why))

    def healthy(self, now: float) -> HealthVerdict:
        """Whether every worker's loop turns."""
        return HealthVerdict(tuple(why for worker in self.workers.values() if (why := worker.unhealthy(now))))

    def ready(self, now: float) -> HealthVerdict:
        """Whether every worker reports and has its sessions open, its brokers answer, and no transform has run for long."""
        unanswered_s = self.unanswered_s(now)
        return HealthVerdict(
            tuple(
                why
                for ordinal, worker in self.workers.items()
                for why in worker.unready(now, unanswered_s.get(ordinal))
            )
        )

    def unanswered_s(self, now: float) -> dict[int, float]:
        """Workers whose brokers have not answered for long, and for how long: no lag could be measured, or no group reached.

        A worker that has lost its partitions over that has none left that would show it.
        """
        silent: dict[int, float] = {}
        for ordinal, report in self._alive.items():
            if report.outside_s > _UNANSWERED_S:
                silent[ordinal] = report.outside_s
            for partition in report.owned:
                why, _, since = self._waiting.get(partition, ("", None, now))
                if why == "unmeasured_s" and now - since > _UNANSWERED_S:
                    silent[ordinal] = max(silent.get(ordinal, 0.0), now - since)
        return silent

    def lag_is_old(self, now: float) -> bool:
        """Whether the lag of an owned partition was measured too long ago to say anything of now."""
        return any(
            one.measured_s is not None and not _is_fresh(one, self.workers[ordinal].later(now))
            for ordinal, report in self._alive.items()
            for one in report.owned.values()
        )

    def totals(self) -> Totals:
        """What all of it comes to."""
        counts = reduce(Counts.plus, (worker.counts for worker in self.workers.values()), Counts())
        partitions = [one for report in self._alive.values() for one in report.partitions]
        lags = [one.lag for one in partitions if one.lag is not None]
        return Totals(counts, sum(lags) if lags else None, sum(one.lso_distance or 0 for one in partitions))

    def shown(self, now: float, wall_now: float) -> dict[str, Any]:
        """All of it, as JSON takes it."""
        healthy, ready = self.healthy(now), self.ready(now)
        committed = [s for worker in self.workers.values() if (s := worker.committed_s(now)) is not None]
        status: dict[str, Any] = {
            "version": 1,
            "eos": eos_version(),
            **self._about,
            "at": wall_now,
            "uptime_s": now - self._began,
            "healthy": {"ok": healthy.ok, "missing": healthy.missing},
            "ready": {"ok": ready.ok, "missing": ready.missing},
            "committed_s": min(committed, default=None),
            "workers": [worker.shown(now) for worker in self.workers.values()],
            "partitions": self._partitions(now),
            "strangers": sorted({one for report in self._alive.values() for one in report.strangers}),
            "rates": {"step_s": STEP_S, **self._rates.per_second(now)},
            "events": [
                {"worker": key[0], **note._asdict(), "times": times, "since": since}
                for key, (note, times, since) in reversed(self._notes.items())
            ],
            "dead_letters": [
                {"worker": ordinal, **letter._asdict()} for ordinal, letter in reversed(self._dead_letters)
            ],
        }
        status["problems"] = alerts(status)
        rounded: dict[str, Any] = _rounded(status)
        return rounded

    @property
    def _alive(self) -> dict[int, WorkerReport]:
        return {n: worker.alive for n, worker in self.workers.items() if worker.alive is not None}

    def _look_why_it_waits(self, one: PartitionReport, now: float) -> None:
        if not _is_fresh(one, 0.0) or one.lag is None:
            why = "unmeasured_s"
        else:
            why = "waits_s" if one.lag else "held_back_s" if one.lso_distance else ""
        known = self._waiting.get(one.name)
        if not why:
            self._waiting.pop(one.name, None)
        elif known is None or known[:2] != (why, one.committed):
            self._waiting[one.name] = (why, one.committed, now)

    def _note(self, ordinal: int, note: Note) -> None:
        key = (ordinal, note.shard, note.kind, _DIGITS.sub("0", note.text))
        _, times, since = self._notes.pop(key, (note, 0, note.at))
        self._notes[key] = (note, times + 1, since)
        while len(self._notes) > _MAX_NOTES:
            self._notes.popitem(last=False)

    def _partitions(self, now: float) -> list[dict[str, Any]]:
        """Each as the worker says that reported last: one that is frozen does not know what it has lost."""
        rows: dict[_Partition, dict[str, Any]] = {}
        for worker in sorted(self.workers.values(), key=lambda one: (not one.over, one.reported_at or 0.0)):
            later = worker.later(now)
            for one in worker.last.partitions if worker.last is not None else ():
                known = not worker.over and one.committed is not None and _is_fresh(one, later)
                why, _, since = self._waiting.get(one.name, ("", None, now))
                rows[one.name] = {
                    "topic": one.topic,
                    "partition": one.partition,
                    "worker": None if worker.over else worker.ordinal,
                    "committed": one.committed,
                    "committed_s": None if one.age_s is None else one.age_s + later,
                    "lag": one.lag if known else None,
                    "lso_distance": one.lso_distance if known else None,
                    "stalled_s": one.stalled_s,
                    **{name: now - since if why == name else None for name in _WAITS},
                }
        return [rows[partition] for partition in sorted(rows)]


def _is_fresh(one: PartitionReport, later: float) -> bool:
    """Whether its lag is known, so long after its report."""
    return one.measured_s is not None and one.measured_s + later <= _MEASURED_S


def _rounded(value: Any) -> Any:
    """With milliseconds, and with numbers of records as such."""
    match value:
        case float():
            return int(value) if value.is_integer() else round(value, 3)
        case dict():
            return {key: _rounded(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_rounded(inner) for inner in value]
    return value
