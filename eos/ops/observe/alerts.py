"""Alerts: what of a job's status a person has to look at, the worst first, each with what to do about it; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from eos.base.listing import listed

_NO_COMMIT_S = 60.0
_OPEN_S = 30.0
_INTERVALS = 3  # so long a transaction may be filled: see `eos.runner.pace`
_HELD_BACK_S = 30.0
_UNMEASURED_S = 20.0
_RECENT_S = 300.0  # as long as the page's plots
_ABORTED_SHARE = 0.1  # as the alert EosTransactionsFail
_FEW_ABORTS = 3
_MAX_NAMED = 3
_TRIED = 5
_RESTART_S = 15.0  # of imports and a first report
_NOW_S = 15.0
_NAMED = (
    "stuck",
    "frozen",
    "silent",
    "restarting",
)  # states of a worker that say why its partitions go no further
_SKIPPED = "poison.policy = 'skip': the log has each of them, and nothing else does"
_DEAD_LETTERED = "The dead-letter topic has each of them with its error: see 'A poison record' in docs/operations/poison-records.md"

Status = Mapping[str, Any]
_Found = Iterator[tuple[str, str, str]]


def alerts(status: Status) -> list[dict[str, str]]:
    """Each with ``level`` ("error": nothing goes on there, or "warning"), ``text`` and ``fix``."""
    found = [
        *_workers(status),
        *_strangers(status),
        *_partitions(status),
        *_transactions(status),
        *_events(status),
    ]
    return [
        {"level": level, "text": text, "fix": fix}
        for level, text, fix in sorted(found, key=lambda one: one[0] != "error")
    ]


def _workers(status: Status) -> _Found:
    for worker in status["workers"]:
        name = f"Worker {worker['ordinal']}"
        for one in worker["at_work"]:
            place = f", in {one['place']}" if one["place"] else ""
            yield (
                "error",
                f"{name} is stuck: its transform has been at {one['records']} for {one['seconds']:,.0f} s{place}.",
                "Look at that record and that line. poison.transform_timeout_ms ends such a transform",
            )
        match worker["state"]:
            case "frozen":
                yield (
                    "error",
                    f"{name} is frozen: it has not reported for {worker['reported_s']:,.0f} s. What is shown of it is as it was then.",
                    (
                        "A paused process, a machine that swaps, or code that holds Python's lock (py-spy dump shows where). A restart "
                        "loses nothing"
                    ),
                )
            case "silent" if not worker["at_work"]:
                yield (
                    "error",
                    f"{name} is silent: its loop has not turned for {worker['silent_s']:,.0f} s.",
                    "A paused process, or code that holds Python's lock: py-spy dump shows where; a restart loses nothing",
                )
            case "restarting" if worker["silent_s"] > _RESTART_S:
                yield (
                    "error",
                    f"{name} has been ended by a signal, and its next process has not reported for {worker['silent_s']:,.0f} s.",
                    "Out of memory? The events below name the signal; workers.max_restarts bounds the tries",
                )
            case "opening" if status["uptime_s"] > _OPEN_S:
                yield (
                    "error",
                    f"{name} has {worker['sessions_open']} of {worker['sessions_expected']} sessions open.",
                    "Its log says what it waits for: usually the brokers, or another's open transaction",
                )
            case "starting" if worker["silent_s"] > _OPEN_S:
                yield (
                    "error",
                    f"{name} has not reported since its start {worker['silent_s']:,.0f} s ago.",
                    "Its log says what it waits for: usually the job's imports, or the brokers",
                )


def _strangers(status: Status) -> _Found:
    if status["strangers"]:
        text = (
            f"Members of the group are no instances of this job: {listed(status['strangers'], _MAX_NAMED)}. "
            "Partitions that they are given are not processed, and offsets that they commit are refused."
        )
        yield (
            "error",
            text,
            "Stop them (eos show looks into a topic). Then see 'An offset that eos has not committed' in docs/operations/offsets.md",
        )


def _partitions(status: Status) -> _Found:
    stalled = [p for p in status["partitions"] if p["stalled_s"]]
    if stalled:
        longest = max(p["stalled_s"] for p in stalled)
        yield (
            "error",
            f"{_named(stalled)}: no record comes, although there are some, for {longest:,.0f} s.",
            "Fetches fail: see 'A partition brings no records' in docs/operations/brokers.md",
        )
    named, unanswered = _named_workers(status), _unanswered(status)
    behind = [
        p
        for p in status["partitions"]
        if p["lag"]
        and (p["waits_s"] or 0.0) > _NO_COMMIT_S + _filled_s(status)
        and p["worker"] not in named
        and p not in unanswered
    ]
    if behind:
        longest, lag = max(p["waits_s"] for p in behind), sum(p["lag"] for p in behind)
        yield (
            "error",
            f"{_named(behind)}: nothing was committed for {longest:,.0f} s, and the lag is {lag:,.0f}.",
            "The events below say what is tried again",
        )
    if unanswered:
        longest = max(p["unmeasured_s"] for p in unanswered)
        yield (
            "error",
            f"{_named(unanswered)}: the brokers have not answered for {longest:,.0f} s.",
            "Are they up, and can they be reached from here? Nothing is lost: it goes on when they answer, or after a later start",
        )
    held = [p for p in status["partitions"] if p["lso_distance"] and (p["held_back_s"] or 0.0) > _HELD_BACK_S]
    if held:
        offsets = sum(p["lso_distance"] for p in held)
        yield (
            "warning",
            f"{_named(held)}: {offsets:,.0f} offsets are held back by an open transaction of another writer.",
            "`eos transactions list` names it: see 'The LSO is stuck' in docs/operations/lso.md",
        )


def _named_workers(status: Status) -> set[int]:
    """The workers whose state is a problem of its own, which says why their partitions go no further."""
    return {one["ordinal"] for one in status["workers"] if one["state"] in _NAMED}


def _unanswered(status: Status) -> list[Mapping[str, Any]]:
    """The owned partitions of which the brokers have said nothing for a while; a worker's own condition counts first."""
    named = _named_workers(status)
    return [
        p
        for p in status["partitions"]
        if (p["unmeasured_s"] or 0.0) > _UNMEASURED_S and p["worker"] is not None and p["worker"] not in named
    ]


def _cut_off(status: Status) -> set[int]:
    """The workers that no broker answers: what else goes wrong in them has this cause, which is named once."""
    return {p["worker"] for p in _unanswered(status)}


def _filled_s(status: Status) -> float:
    """For how long a transaction may be open before its commit begins."""
    return float(_INTERVALS * status.get("interval_s", 0.0))


def _transactions(status: Status) -> _Found:
    cut_off = _cut_off(status)
    for worker in status["workers"]:
        if (
            (worker["open_s"] or 0.0) > _OPEN_S + _filled_s(status)
            and not worker["at_work"]
            and worker["ordinal"] not in cut_off
        ):
            yield (
                "error",
                f"Worker {worker['ordinal']}'s transaction has been open for {worker['open_s']:,.0f} s.",
                "Its commit waits for the brokers, or a transform takes long. Readers of its outputs wait meanwhile",
            )
    rates = status["rates"]
    aborts, commits = (sum(rates[name]) * rates["step_s"] for name in ("aborts", "commits"))
    if aborts >= _FEW_ABORTS and aborts > _ABORTED_SHARE * (aborts + commits):
        yield (
            "warning",
            f"{aborts:,.0f} of the last {aborts + commits:,.0f} transactions were aborted: correct, but slow.",
            "Brokers that come and go, or rebalances: the events below say why",
        )


def _lost(status: Status, recent: Sequence[Mapping[str, Any]]) -> _Found:
    """Workers whose partitions went and did not come back: without any, they have no lag that could show it."""
    running = {worker["ordinal"] for worker in status["workers"] if worker["state"] == "running"}
    latest: dict[int, Mapping[str, Any]] = {}
    for event in recent:
        if event["kind"] in ("assigned", "lost"):
            latest.setdefault(event["worker"], event)
    for ordinal, event in latest.items():
        if event["kind"] == "lost" and ordinal in running:
            yield (
                "warning",
                f"Worker {ordinal} has lost {event['text']}, and has got none back yet.",
                "The brokers did not answer for ownership.session_timeout_ms, or another process has its ordinal. No record is lost",
            )


def _events(status: Status) -> _Found:
    recent = [event for event in status["events"] if status["at"] - event["at"] <= _RECENT_S]
    for event in recent:
        if event["kind"] == "fenced":
            yield (
                "error",
                f"Worker {event['worker']} was fenced: {event['text']}",
                "Two owners of a shard: see 'Fenced ping-pong' in docs/operations/fenced-ping-pong.md",
            )
    cut_off = _cut_off(status)
    for event in recent:
        if (
            event["kind"].endswith(("retried", "waits"))
            and event["worker"] not in cut_off
            and event["times"] >= _TRIED
            and status["at"] - event["at"] <= _NOW_S
        ):
            yield (
                "warning",
                f"Worker {event['worker']} tries again what Kafka does not answer: {event['kind']}, {event['text']}",
                "Are the brokers up, and can they be reached? Nothing is lost meanwhile",
            )
    yield from _lost(status, recent)
    restarts = {worker["ordinal"]: worker["restarts"] for worker in status["workers"]}
    for event in recent:
        if event["kind"] == "worker replaced":
            why, minutes = event["text"] or "ended", (status["at"] - event["at"]) / 60
            times = restarts[event["worker"]]
            yield (
                "warning",
                f"Worker {event['worker']} was {why} and replaced, {minutes:.0f} min ago; restarts so far: {times}.",
                "Killed: out of memory? A crash of native code, or a signal that somebody sent? Nothing is lost",
            )
    letters = [one for one in status["dead_letters"] if status["at"] - one["at"] <= _RECENT_S]
    if letters:
        last = letters[0]
        place = f"{last['topic']}[{last['partition']}] offset {last['offset']} ({last['error']})"
        yield (
            "warning",
            f"Records could not be processed in the last 5 minutes; the latest is {place}.",
            _SKIPPED if last["skipped"] else _DEAD_LETTERED,
        )


def _named(partitions: Iterable[Mapping[str, Any]]) -> str:
    return listed((f"{p['topic']}[{p['partition']}]" for p in partitions), _MAX_NAMED)
