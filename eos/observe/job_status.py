"""JobStatus: what the job's page shows, gathered from the workers' reports and bounded; docs/RUNBOOK.md has its fields."""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from typing import Any

from eos.observe.health import Verdict
from eos.observe.logs import eos_version
from eos.observe.notes import Letter, Note
from eos.observe.problems import problems
from eos.observe.rates import STEP_S, Counts, Rates
from eos.observe.relay import Snapshot
from eos.observe.worker_state import Position, State

_MAX_NOTES = 60
_MAX_LETTERS = 20
_GAUGES = {
    "eos_lag_records": "lag",
    "eos_lso_distance_records": "lso_distance",
    "eos_stalled_seconds": "stalled_s",
}
_WAITS = ("waits_s", "held_back_s", "unmeasured_s")  # why a partition goes no further
_MEASURED_S = 10.0  # a lag that was measured longer ago is not known
_UNANSWERED_S = 10.0  # … for so long: the brokers do not answer
_UNREPORTED_S = 8.0  # a worker reports every second: one that has missed so many does not run
_DIGITS = re.compile(r"\d+")

_Partition = tuple[str, int]


class _Worker:
    """An ordinal; what its last process reported stays until the next one reports."""

    def __init__(self, now: float) -> None:
        self.restarts = 0
        self.done = False
        self.over = False  # its process has ended, and the next one has not reported yet
        self.process = ""
        self.counts = Counts()
        self.reported_at: float | None = None
        self.sign_at = now
        self.sessions_open, self.sessions_expected = 0, 1
        self.ended = False
        self.state: State | None = None
        self.gauges: dict[_Partition, dict[str, float]] = {}


class JobStatus:
    """Not thread-safe: its board has the lock.

    Args:
        ordinals: of the workers.
        about: what is known of the job from the beginning: shown as it is.
        max_silence_s: seconds without a sign of life after which a worker is silent.
        now: seconds, monotonic, as in every call.
    """

    def __init__(
        self, ordinals: Iterable[int], about: Mapping[str, object], max_silence_s: float, now: float
    ) -> None:
        self._about = dict(about)
        self._max_silence_s = max_silence_s
        self._began = now
        self._workers = {ordinal: _Worker(now) for ordinal in ordinals}
        self._rates = Rates(now)
        # By what they have in common but for figures: the last, how often, and since when.
        self._notes: OrderedDict[tuple[Any, ...], tuple[Note, int, float]] = OrderedDict()
        self._letters: deque[tuple[int, Letter]] = deque(maxlen=_MAX_LETTERS)
        # By partition that goes no further although it could, or could but for an open transaction: since when.
        self._waiting: dict[_Partition, tuple[str, int | None, float]] = {}

    def take(self, ordinal: int, snapshot: Snapshot, now: float) -> None:
        """A report of a worker's present process."""
        worker = self._workers[ordinal]
        counts = Counts.of(snapshot.families)
        known = worker.counts if snapshot.process == worker.process else Counts()
        since = now - 1.0 if snapshot.process != worker.process else worker.reported_at or now
        self._rates.add(counts.since(known), since, now)
        worker.process, worker.counts, worker.reported_at, worker.over = snapshot.process, counts, now, False
        worker.sign_at = max(worker.sign_at, now - snapshot.silent_s)
        worker.sessions_open, worker.sessions_expected = snapshot.sessions_open, snapshot.sessions_expected
        worker.ended = snapshot.ended
        former = set(map(_of, worker.state.positions)) if worker.state is not None else set()
        worker.gauges = _gauges(snapshot)
        worker.state = state = snapshot.state
        self._look_who_waits(worker, former.difference(map(_of, state.positions if state else ())), now)
        if state is not None:
            for note in state.notes:
                self._note(ordinal, note)
            for letter in state.letters:
                self._letters.append((ordinal, letter))

    def done(self, ordinal: int) -> None:
        self._workers[ordinal].done = True

    def restarted(self, ordinal: int, why: str, now: float, wall_now: float) -> None:
        """Its process has ended too early."""
        worker = self._workers[ordinal]
        worker.restarts += 1
        worker.over, worker.sign_at = True, now
        self._note(ordinal, Note(wall_now, "warning", "worker replaced", "", why))

    def unanswered_s(self, now: float) -> dict[int, float]:
        """Workers whose brokers have not answered for long, and for how long: no lag could be measured, or no group reached.

        A worker that has lost its partitions over that has none left that would show it.
        """
        silent: dict[int, float] = {}
        for ordinal, worker in self._workers.items():
            if worker.done or worker.over or worker.ended or worker.state is None:
                continue
            if worker.state.outside_s > _UNANSWERED_S:
                silent[ordinal] = worker.state.outside_s
            for partition in map(_of, worker.state.positions):
                why, _, since = self._waiting.get(partition, ("", None, now))
                if why == "unmeasured_s" and now - since > _UNANSWERED_S:
                    silent[ordinal] = max(silent.get(ordinal, 0.0), now - since)
        return silent

    def unreported_s(self, now: float) -> dict[int, float]:
        """Workers whose process lives and has stopped reporting, and for how long: a frozen one does not run."""
        return {
            ordinal: now - worker.reported_at
            for ordinal, worker in self._workers.items()
            if not (worker.done or worker.over or worker.ended)
            and worker.reported_at is not None
            and now - worker.reported_at > _UNREPORTED_S
        }

    def lag_is_old(self, now: float) -> bool:
        """Whether the lag of an owned partition was measured too long ago to say anything of now."""
        return any(
            one.measured_s is not None and not _is_fresh(one, now - (worker.reported_at or now))
            for worker in self._workers.values()
            if worker.state is not None and not (worker.done or worker.over or worker.ended)
            for one in worker.state.positions
        )

    def shown(self, healthy: Verdict, ready: Verdict, now: float, wall_now: float) -> dict[str, Any]:
        """All of it, as JSON takes it."""
        rates = self._rates.per_second(now)
        committed = [s for w in self._workers.values() if (s := _ago(w, now, "committed_s")) is not None]
        status: dict[str, Any] = {
            "version": 1,
            "eos": eos_version(),
            **self._about,
            "at": wall_now,
            "uptime_s": now - self._began,
            "healthy": {"ok": healthy.ok, "missing": healthy.missing},
            "ready": {"ok": ready.ok, "missing": ready.missing},
            "committed_s": min(committed, default=None),
            "workers": [self._worker(ordinal, worker, now) for ordinal, worker in self._workers.items()],
            "partitions": self._partitions(now),
            "rates": {"step_s": STEP_S, **rates},
            "events": [
                {"worker": key[0], **note._asdict(), "times": times, "since": since}
                for key, (note, times, since) in reversed(self._notes.items())
            ],
            "dead_letters": [
                {"worker": ordinal, **letter._asdict()} for ordinal, letter in reversed(self._letters)
            ],
        }
        status["problems"] = problems(status)
        rounded: dict[str, Any] = _rounded(status)
        return rounded

    def _look_who_waits(self, worker: _Worker, gone: Iterable[_Partition], now: float) -> None:
        for partition in gone:
            self._waiting.pop(partition, None)
        positions = worker.state.positions if worker.state is not None else ()
        for partition, one in ((_of(one), one) for one in positions):
            figures = worker.gauges.get(partition, {})
            if not _is_fresh(one, 0.0) or "lag" not in figures:
                why = "unmeasured_s"
            else:
                why = "waits_s" if figures["lag"] else "held_back_s" if figures.get("lso_distance") else ""
            known = self._waiting.get(partition)
            if not why:
                self._waiting.pop(partition, None)
            elif known is None or known[:2] != (why, one.committed):
                self._waiting[partition] = (why, one.committed, now)

    def _note(self, ordinal: int, note: Note) -> None:
        key = (ordinal, note.shard, note.kind, _DIGITS.sub("0", note.text))
        _, times, since = self._notes.pop(key, (note, 0, note.at))
        self._notes[key] = (note, times + 1, since)
        while len(self._notes) > _MAX_NOTES:
            self._notes.popitem(last=False)

    def _worker(self, ordinal: int, worker: _Worker, now: float) -> dict[str, Any]:
        state = worker.state
        alive = None if worker.over or worker.ended else state
        reported = worker.reported_at
        later = 0.0 if reported is None else now - reported  # since the report's ages were taken
        at_work = alive.at_work if alive is not None else ()
        return {
            "ordinal": ordinal,
            "pid": None if alive is None else alive.pid,
            "state": self._state_of(worker, now),
            "restarts": worker.restarts,
            "reported_s": None if reported is None else later,
            "silent_s": now - worker.sign_at,
            "sessions_open": worker.sessions_open,
            "sessions_expected": worker.sessions_expected,
            "open_s": max((seconds + later for seconds in alive.open_s), default=None) if alive else None,
            "committed_s": _ago(worker, now, "committed_s"),
            "at_work": [{**one._asdict(), "seconds": one.seconds + later} for one in at_work],
        }

    def _state_of(self, worker: _Worker, now: float) -> str:
        if worker.done:
            return "done"
        if worker.over:
            return "restarting"
        if worker.ended:
            return "ended"
        if worker.state is not None and worker.state.at_work:
            return "stuck"
        if worker.reported_at is not None and now - worker.reported_at > _UNREPORTED_S:
            return "frozen"
        if now - worker.sign_at > self._max_silence_s:
            return "silent"
        if worker.state is None:
            return "starting"
        return "opening" if worker.sessions_open < worker.sessions_expected else "running"

    def _partitions(self, now: float) -> list[dict[str, Any]]:
        """Each as the worker says that reported last: one that is frozen does not know what it has lost."""
        rows: dict[_Partition, dict[str, Any]] = {}
        for ordinal, worker in sorted(self._workers.items(), key=_reported):
            if worker.state is None:
                continue
            later = now - (worker.reported_at or now)
            known = {_of(one): one for one in worker.state.positions}
            for partition in known.keys() | worker.gauges.keys():
                one = known.get(partition)
                figures = worker.gauges.get(partition, {})
                if worker.over or one is None or not _is_fresh(one, later):
                    figures = {name: value for name, value in figures.items() if name == "stalled_s"}
                why, _, since = self._waiting.get(partition, ("", None, now))
                rows[partition] = {
                    "topic": partition[0],
                    "partition": partition[1],
                    "worker": None if worker.over else ordinal,
                    "committed": one and one.committed,
                    "committed_s": None if one is None or one.age_s is None else one.age_s + later,
                    **dict.fromkeys(_GAUGES.values()),
                    **figures,
                    **{name: now - since if why == name else None for name in _WAITS},
                }
        return [rows[partition] for partition in sorted(rows)]


def _reported(item: tuple[int, _Worker]) -> tuple[bool, float]:
    """What sorts workers by how new that is which is known of them."""
    return not item[1].over, item[1].reported_at or 0.0


def _ago(worker: _Worker, now: float, age: str) -> float | None:
    """An age of a report, now."""
    seconds = None if worker.state is None else getattr(worker.state, age)
    return None if seconds is None else seconds + now - (worker.reported_at or now)


def _of(one: Position) -> _Partition:
    return one.topic, one.partition


def _is_fresh(one: Position, later: float) -> bool:
    """Whether its lag is known, so long after its report."""
    return one.measured_s is not None and one.measured_s + later <= _MEASURED_S


def _gauges(snapshot: Snapshot) -> dict[_Partition, dict[str, float]]:
    gauges: dict[_Partition, dict[str, float]] = {}
    for family in snapshot.families:
        if (name := _GAUGES.get(family.name)) is not None:
            for sample in family.samples:
                partition = (sample.labels["topic"], int(sample.labels["partition"]))
                gauges.setdefault(partition, {})[name] = sample.value
    return gauges


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
