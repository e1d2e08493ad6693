"""Event texts: what is said of each event, as a line of the log and as a note on the job's page, in words that hold no record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from eos import events
from eos.base.commands import COMMAND_LINE
from eos.base.listing import listed
from eos.errors import AbortTransaction
from eos.events import Event
from eos.offsets import OffsetVector
from eos.ops.observe.quoting import NOT_SHOWN, Texts, class_only, of_error, without_values
from eos.settings.secrets import hidden

MAX_PARTITIONS_SHOWN = 32  # in a line
_MAX_PARTITIONS = 8  # on the page
_MAX_MEMBERS = 8
_MAX_TEXT = 300
_DEAD_LETTERS_PER_PERIOD = 20  # an input that is all poison must not make the loop write a line per record

# Events without a note, each with the reason.
UNNOTED: Mapping[type[Event], str] = {
    events.ShardsOwned: "sent often; the workers' sessions are shown",
    events.Sampled: "many per second; a silent worker is shown, and the partitions show the lag",
    events.InputTaken: "many per second; offsets and rates are shown",
    events.TransactionCommitted: "many per second; offsets and rates are shown",
    events.Rewound: "follows every abort, which is noted",
}
# Many per second, and their lines cost to write out: at level debug only.
DEBUG_ONLY = frozenset({events.Sampled, events.TransactionCommitted})


class Said(NamedTuple):
    """What is said of an event.

    Attributes:
        level: "debug", "info", "warning" or "error".
        line: what the log says, beside its fields.
        kind: what the page says, beside its text; "": it says nothing.
        kind_level: the note's level, where that is another one.
        at_most: lines of this kind in ten seconds for each shard (and call); 0: any number.
    """

    level: str
    line: str
    fields: Mapping[str, object] = {}
    kind: str = ""
    text: str = ""
    kind_level: str = ""
    at_most: int = 0


class Note(NamedTuple):
    """What happened; ``at`` in seconds since the epoch."""

    at: float
    level: str  # as of a log line: "info", "warning" or "error"
    kind: str
    shard: str
    text: str


class DeadLetter(NamedTuple):
    """An input record that could not be processed, by its coordinates."""

    at: float
    topic: str
    partition: int
    offset: int
    error: str  # its class
    skipped: bool


def note_of(at: float, event: Event) -> Note | None:
    """None where the event says nothing new to a reader of the page."""
    said = TEXTS[type(event)](event)
    if said is None or not said.kind:
        return None
    return Note(at, said.kind_level or said.level, said.kind, event.shard, shortened(said.text))


def dead_letter_of(at: float, event: events.RecordDeadLettered) -> DeadLetter:
    """Of a record that was dead-lettered or skipped."""
    return DeadLetter(at, *event.partition, event.offset, shortened(class_only(event.error)), event.skipped)


def shortened(text: str) -> str:
    """Without what may be a secret, and not longer than a row of the page."""
    text = str(hidden("text", text))
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"


def _at(positions: OffsetVector) -> str:
    return listed(
        (f"{partition} at {offset}" for partition, offset in positions.items()), MAX_PARTITIONS_SHOWN
    )


def _session_closed(event: events.SessionClosed) -> Said:
    # Its error goes to the caller, and comes with its whole text from there.
    fields = {"reason": event.reason and class_only(event.reason)}
    text = event.reason and of_error(event.reason)
    return Said("warning" if event.reason else "info", "session closed", fields, "session closed", text)


def _producer_opened(event: events.ProducerOpened) -> Said:
    fields = {"because": without_values(event.rebuilt_because), "seconds": event.seconds}
    if not event.rebuilt_because:
        return Said("info", "producer opened", fields)
    # A reason that is no error's was noted when the producer became suspect.
    because = of_error(event.rebuilt_because)
    text = "" if because == NOT_SHOWN else because
    return Said("info", "producer rebuilt", fields, "producer rebuilt", text, "warning")


def _committed(event: events.TransactionCommitted) -> Said:
    fields = {
        "records_in": event.records_in,
        "records_out": event.records_out,
        "ranges": "",  # by the listener, which knows where they begin
        "seconds": event.seconds,
        "commit_seconds": event.commit_seconds,
    }
    return Said("debug", "transaction committed", fields)


def _ended(event: events.TransactionEnded) -> Said:
    level = "info" if event.reason.startswith(AbortTransaction.__name__) else "warning"  # on purpose
    fields = {"reason": without_values(event.reason), "seconds": event.seconds}
    text = of_error(event.reason)
    return Said(level, f"transaction {event.outcome}", fields, event.outcome, text, "warning")


def _retried(event: events.CallRetried) -> Said:
    fields = {"call": str(event.call), "attempt": event.attempt, "error": event.error}
    return Said("warning", "call retried", fields, f"{event.call} retried", event.error, at_most=1)


def _waiting(event: events.Waiting) -> Said:
    fields = {"call": str(event.call), "reason": event.reason}
    return Said("warning", "waiting", fields, f"{event.call} waits", event.reason, at_most=1)


def _assigned(event: events.PartitionsAssigned) -> Said:
    kind = "assigned" if event.positions else ""
    fields = {"positions": _at(event.positions)}
    return Said("info", "partitions assigned", fields, kind, listed(event.positions, _MAX_PARTITIONS))


def _revoked(event: events.PartitionsRevoked) -> Said:
    level, kind = ("warning", "lost") if event.lost else ("info", "revoked")
    fields = {"partitions": listed(event.partitions, MAX_PARTITIONS_SHOWN)}
    return Said(level, f"partitions {kind}", fields, kind, listed(event.partitions, _MAX_PARTITIONS))


def _started(event: events.StartPolicyApplied) -> Said:
    fields = {"policy": event.policy, "positions": _at(event.positions)}
    text = f"{event.policy}: {listed(event.positions, _MAX_PARTITIONS)}"
    # What a command line says is asked for once. A setting that stays also begins a group anew whose offsets are gone.
    level = "info" if event.set_by == COMMAND_LINE else "warning"
    return Said(level, "start policy applied", fields, "started", text, "info")


def _adopted(event: events.OffsetsAdopted) -> Said:
    text = listed(event.positions, _MAX_PARTITIONS)
    return Said(
        "warning", "another program's offsets adopted", {"positions": _at(event.positions)}, "adopted", text
    )


def _dead_lettered(event: events.RecordDeadLettered) -> Said:
    """Skipped records leave no other trace, so each of them is written."""
    kind = "skipped" if event.skipped else "dead-lettered"
    error = class_only(event.error)
    fields = {
        "partition": str(event.partition),
        "offset": event.offset,
        "error": event.error if Texts.shown else error,
    }
    text = f"a record of {event.partition}: {error}"
    at_most = 0 if event.skipped else _DEAD_LETTERS_PER_PERIOD
    return Said("warning", f"record {kind}", fields, kind, text, at_most=at_most)


def _lag(event: events.Sampled) -> Said | None:
    if event.lag is None:  # many per second, and nothing was decided
        return None
    lags = {"to_lso": event.lag.to_lso, "lso_to_high_watermark": event.lag.lso_to_high_watermark}
    return Said("debug", "lag measured", {name: sum(each.values()) for name, each in lags.items()})


def _stalled(event: events.PartitionStalled) -> Said:
    fields: dict[str, object] = {"partition": str(event.partition)}
    if not event.seconds:
        text = f"{event.partition} brings records again"
        return Said("info", "partition brings records again", fields, "moves again", text)
    fields |= {
        "position": event.position,
        "last_stable_offset": event.lso,
        "seconds": event.seconds,
        "error": event.error,
    }
    text = f"{event.partition} brings no records, its fetches fail: {event.error}"
    return Said("warning", "partition brings no records, its fetches fail", fields, "stalled", text)


def _strangers(event: events.StrangersInGroup) -> Said:
    if not event.members:
        return Said(
            "info", "no stranger in the group any more", {"group": event.group}, "strangers have gone"
        )
    shown = listed(event.members, _MAX_MEMBERS)
    fields = {"group": event.group, "members": shown}
    text = f"members of the group {event.group} that are no instances of this job: {shown}"
    return Said("warning", "strangers in the group", fields, "strangers", text)


def _at_work(event: events.TransformAtWork) -> Said:
    if not event.seconds:
        return Said("info", "transform has returned", kind="transform returned")
    fields = {"records": event.records, "seconds": round(event.seconds), "stack": " > ".join(event.stack)}
    text = f"for long on {event.records}"
    return Said("warning", "transform still at work", fields, "transform at work", text)


TEXTS: Mapping[type[Event], Callable[[Any], Said | None]] = {
    events.SessionOpened: lambda event: Said(
        "info", "session opened", {"seconds": event.seconds}, "session opened"
    ),
    events.SessionClosed: _session_closed,
    events.ProducerOpened: _producer_opened,
    events.ProducerSuspect: lambda event: Said(
        "warning",
        "producer suspect, rebuilt before the next begin",
        {"reason": event.reason},
        "producer suspect",
        event.reason,
    ),
    events.TransactionCommitted: _committed,
    events.TransactionEnded: _ended,
    events.Fenced: lambda event: Said("error", "fenced", {"reason": event.reason}, "fenced", event.reason),
    events.CallRetried: _retried,
    events.Waiting: _waiting,
    events.PartitionsAssigned: _assigned,
    events.PartitionsRevoked: _revoked,
    events.Rewound: lambda event: Said("info", "rewound", {"positions": _at(event.positions)}),
    events.StartPolicyApplied: _started,
    events.OffsetsAdopted: _adopted,
    events.RecordDeadLettered: _dead_lettered,
    events.Sampled: _lag,
    events.PartitionStalled: _stalled,
    events.TransformAtWork: _at_work,
    events.StrangersInGroup: _strangers,
    events.InputTaken: lambda _: None,  # many per second; the end of its transaction is written
    events.ShardsOwned: lambda _: None,  # sent often; each shard's session has lines of its own
}
