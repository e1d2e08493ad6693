"""WorkerStatus: what the parent knows of one worker; pure, every time is given.

A worker that is restarted goes on counting where its predecessor stopped. Gauges are facts about a living process and go with
it. What a killed worker counted after its last report, about a second's worth, is lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prometheus_client import Metric

from eos.ops.observe.worker_report import Counts, WorkerReport

_UNREPORTED_S = 8.0  # a worker reports every second: one that has missed so many does not run

_Labels = tuple[tuple[str, str], ...]


class WorkerStatus:
    """An ordinal: the last report of its present process, and the sums of the processes before.

    Attributes:
        restarts: of its process, which had ended too early.
        done: nothing is expected of it any more.
        last: what its last process reported last, until the next one reports.
        reported_at: when that was.
        over: its process has ended, and the next one has not reported yet.

    Args:
        max_silence_s: seconds without a sign of life after which the worker is unhealthy. The same time is given to it for its
            start, and to a replacement to come.
        now: seconds, monotonic, as in every call.
    """

    def __init__(self, ordinal: int, max_silence_s: float, now: float) -> None:
        self.ordinal = ordinal
        self.restarts = 0
        self.done = False
        self.last: WorkerReport | None = None
        self.reported_at: float | None = None
        self._max_silence_s = max_silence_s
        self._sign_at = now
        self.over = False
        self._added = ""  # the process that was added to the sums last
        self._ready = (
            0,
            1,
            "",
        )  # sessions that are open, and needed; what a transform is at work on for long
        self._before: list[Metric] = []
        self._counts_before = Counts()

    def take(self, report: WorkerReport, now: float) -> bool:
        """False for a report of a process that is over: it would be counted twice."""
        if report.process == self._added:
            return False
        if self.last is not None and self.last.process != report.process:
            self._process_over()
        self.last, self.reported_at, self.over = report, now, False
        self._sign_at = max(self._sign_at, now - report.silent_s)
        if not report.ended:  # else the parent says whether anything is expected of the ordinal now
            at_work = "; ".join(f"{one.records} for {one.seconds:.0f} s" for one in report.at_work)
            self._ready = (report.sessions_open, report.sessions_expected, at_work)
        return True

    def restarted(self, now: float) -> None:
        """Its process has ended too early."""
        self.restarts += 1
        self._process_over()
        self._sign_at, self._ready = now, (0, 1, "")

    def _process_over(self) -> None:
        if self.last is not None and not self.over:
            self._before = _added_up([*self._before, *_counts(self.last)])
            self._counts_before = self._counts_before.plus(self.last.counts)
            self._added = self.last.process
        self.over = True

    @property
    def alive(self) -> WorkerReport | None:
        """The last report, if its process goes on."""
        return None if self.last is None or self.over or self.done or self.last.ended else self.last

    @property
    def counts(self) -> Counts:
        """What all its processes have done."""
        before = self._counts_before
        return before if self.over or self.last is None else before.plus(self.last.counts)

    def families(self) -> list[Metric]:
        """Its series for Prometheus."""
        if self.over or self.last is None:
            return self._before
        return _added_up([*self._before, *(_counts(self.last) if self.last.ended else self.last.families)])

    def later(self, now: float) -> float:
        """Seconds since the ages of its last report were taken."""
        return 0.0 if self.reported_at is None else now - self.reported_at

    def unreported_s(self, now: float) -> float | None:
        """For how long its process, which lives, has not reported, where that is long: a frozen one does not run."""
        return self.later(now) if self.alive is not None and self.later(now) > _UNREPORTED_S else None

    def committed_s(self, now: float) -> float | None:
        """Since its last commit."""
        if self.last is None or self.last.committed_s is None:
            return None
        return self.last.committed_s + self.later(now)

    def unhealthy(self, now: float) -> str:
        """Why it is; "" if its loop turns.

        A loop turns also while the brokers are away: restarting it would not bring them back, and would cost the takeover of
        its shards.
        """
        silent_s = now - self._sign_at
        if self.done or silent_s <= self._max_silence_s:
            return ""
        return f"worker {self.ordinal}: no turn of its loop for {silent_s:.0f} s (limit {self._max_silence_s:.0f} s)"

    def unready(self, now: float, unanswered_s: float | None) -> list[str]:
        """What is missing. ``unanswered_s``: for how long its brokers have not answered, where that is long."""
        if self.done:
            return []
        name, (is_open, needed, at_work) = f"worker {self.ordinal}", self._ready
        if seconds := self.unreported_s(now):
            return [f"{name}: it has not reported for {seconds:.0f} s"]
        missing = []
        if is_open < needed:
            missing.append(f"{name}: {is_open} of {needed} sessions open")
        if at_work:
            missing.append(f"{name}: its transform is at work on {at_work}")
        elif unanswered_s:
            missing.append(f"{name}: the brokers have not answered for {unanswered_s:.0f} s")
        return missing

    def shown(self, now: float) -> dict[str, Any]:
        """Its row of the page."""
        alive, later, last = self.alive, self.later(now), self.last
        return {
            "ordinal": self.ordinal,
            "pid": alive and alive.pid,
            "state": self._state(now),
            "restarts": self.restarts,
            "reported_s": None if self.reported_at is None else later,
            "silent_s": now - self._sign_at,
            "sessions_open": last.sessions_open if last else 0,
            "sessions_expected": last.sessions_expected if last else 1,
            "open_s": max((seconds + later for seconds in alive.open_s), default=None) if alive else None,
            "committed_s": self.committed_s(now),
            "at_work": [
                {**one._asdict(), "seconds": one.seconds + later} for one in (alive.at_work if alive else ())
            ],
        }

    def _state(self, now: float) -> str:
        last = self.last
        if self.done:
            return "done"
        if self.over:
            return "restarting"
        if last is not None and last.ended:
            return "ended"
        if last is not None and last.at_work:
            return "stuck"
        if self.unreported_s(now):
            return "frozen"
        if now - self._sign_at > self._max_silence_s:
            return "silent"
        if last is None:
            return "starting"
        return "opening" if last.sessions_open < last.sessions_expected else "running"


def _counts(report: WorkerReport) -> list[Metric]:
    """What goes on after the process: gauges are facts about a living one."""
    return [family for family in report.families if family.type in {"counter", "histogram"}]


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
