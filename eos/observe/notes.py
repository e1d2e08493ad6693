"""Notes: what of a job's events its page shows, in a few words that hold no record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from eos import events
from eos.events import Event
from eos.listing import listed
from eos.observe.quoting import NOT_SHOWN, class_only, of_error
from eos.settings.secrets import hidden

_MAX_TEXT = 300
_MAX_PARTITIONS = 8

# Events without a note, each with the reason.
UNNOTED: Mapping[type[Event], str] = {
    events.ShardsOwned: "sent often; the workers' sessions are shown",
    events.LoopTurned: "many per second; a silent worker is shown",
    events.InputTaken: "many per second; offsets and rates are shown",
    events.TransactionCommitted: "many per second; offsets and rates are shown",
    events.LagMeasured: "the partitions show it",
    events.Rewound: "follows every abort, which is noted",
    events.InputPlanned: "of a batch on Spark, which has no page",
    events.BatchResumed: "of a stream on Spark",
    events.LedgerSharded: "of a stream on Spark",
    events.LedgerRefreshed: "of a stream on Spark",
}


class Note(NamedTuple):
    """What happened; ``at`` in seconds since the epoch."""

    at: float
    level: str  # as of a log line: "info", "warning" or "error"
    kind: str
    shard: str
    text: str


class Letter(NamedTuple):
    """An input record that could not be processed, by its coordinates."""

    at: float
    topic: str
    partition: int
    offset: int
    error: str  # its class
    skipped: bool


def note_of(at: float, event: Event) -> Note | None:
    """None where the event says nothing new to a reader of the page."""
    made = NOTED[type(event)](event)
    if made is None:
        return None
    level, kind, text = made
    return Note(at, level, kind, event.shard, shortened(text))


def letter_of(at: float, event: events.RecordDeadLettered) -> Letter:
    """Of a record that was dead-lettered or skipped."""
    return Letter(at, *event.partition, event.offset, shortened(class_only(event.error)), event.skipped)


def shortened(text: str) -> str:
    """Without what may be a secret, and not longer than a row of the page."""
    text = str(hidden("text", text))
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"


def _closed(event: events.SessionClosed) -> tuple[str, str, str]:
    return ("warning" if event.reason else "info"), "session closed", event.reason and of_error(event.reason)


def _opened(event: events.ProducerOpened) -> tuple[str, str, str] | None:
    """A reason that is no error's was noted when the producer became suspect."""
    because = of_error(event.rebuilt_because)
    text = "" if because == NOT_SHOWN else because
    return ("warning", "producer rebuilt", text) if event.rebuilt_because else None


def _dead_lettered(event: events.RecordDeadLettered) -> tuple[str, str, str]:
    kind = "skipped" if event.skipped else "dead-lettered"
    return "warning", kind, f"a record of {event.partition}: {class_only(event.error)}"


def _stalled(event: events.PartitionStalled) -> tuple[str, str, str]:
    if not event.seconds:
        return "info", "moves again", f"{event.partition} brings records again"
    return "warning", "stalled", f"{event.partition} brings no records, its fetches fail: {event.error}"


def _at_work(event: events.TransformAtWork) -> tuple[str, str, str]:
    if not event.seconds:
        return "info", "transform returned", ""
    return "warning", "transform at work", f"for long on {event.records}"


NOTED: Mapping[type[Event], Callable[[Any], tuple[str, str, str] | None]] = {
    events.SessionOpened: lambda _: ("info", "session opened", ""),
    events.SessionClosed: _closed,
    events.ProducerOpened: _opened,
    events.ProducerSuspect: lambda event: ("warning", "producer suspect", event.reason),
    events.TransactionAborted: lambda event: ("warning", "aborted", of_error(event.reason)),
    events.TransactionExpired: lambda _: ("warning", "expired", "it outlived transaction.timeout_ms"),
    events.TransactionUnresolved: lambda event: ("warning", "unresolved", of_error(event.reason)),
    events.Fenced: lambda event: ("error", "fenced", event.reason),
    events.CallRetried: lambda event: ("warning", f"{event.call} retried", event.error),
    events.PartitionsAssigned: lambda event: (
        ("info", "assigned", listed(event.positions, _MAX_PARTITIONS)) if event.positions else None
    ),
    events.PartitionsRevoked: lambda event: (
        "warning" if event.lost else "info",
        "lost" if event.lost else "revoked",
        listed(event.partitions, _MAX_PARTITIONS),
    ),
    events.StartPolicyApplied: lambda event: (
        "info",
        "started",
        f"{event.policy}: {listed(event.positions, _MAX_PARTITIONS)}",
    ),
    events.RecordDeadLettered: _dead_lettered,
    events.PartitionStalled: _stalled,
    events.TransformAtWork: _at_work,
}
