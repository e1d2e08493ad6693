"""WorkerState: what a worker does now, as the job's page shows it; kept from its events, without a word per record."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from eos import events
from eos.events import Event
from eos.observe.notes import NOTED, Letter, Note, letter_of, note_of, shortened
from eos.offsets import Partition

_MAX_FRESH = 40  # events between two reports; of more the latest are shown


_OF_OTHERS = re.compile(r"/(site|dist)-packages/|/lib/python3|^<frozen ")


class Position(NamedTuple):
    """How far a partition is committed.

    Attributes:
        age_s: how long ago this process did so; None: it has not yet.
        measured_s: how long ago its lag was measured, which a loop that stands still does not do; None: not yet.
    """

    topic: str
    partition: int
    committed: int
    age_s: float | None
    measured_s: float | None


class AtWork(NamedTuple):
    """A transform that takes long: on which record, and where its code stands."""

    records: str
    seconds: float
    place: str


class State(NamedTuple):
    """What a worker's report says of this, beside its figures. Picklable. Ages are of the moment it was made."""

    pid: int
    positions: tuple[Position, ...]
    open_s: tuple[float, ...]  # of each transaction that is open
    committed_s: float | None  # since the last commit
    outside_s: float  # since the coordinator of its group was reached
    at_work: tuple[AtWork, ...]
    notes: tuple[Note, ...]
    letters: tuple[Letter, ...]


class WorkerState:
    """A listener; a few microseconds per transaction. ``state`` is called from another thread.

    Args:
        clock: seconds, monotonic.
        wall_clock: seconds since the epoch.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        # Per shard, each from a thread of its own: the offset, and when this process committed it.
        self._positions: dict[str, dict[Partition, tuple[int, float | None]]] = {}
        self._measured_at: dict[str, float] = {}
        self._outside_since: dict[str, float] = {}
        self._open_since: dict[str, float] = {}
        self._at_work: dict[str, tuple[events.TransformAtWork, float]] = {}
        self._committed_at: float | None = None
        # Put into words by the thread that reports, not by the loop's.
        self._fresh: deque[tuple[float, Event]] = deque(maxlen=_MAX_FRESH)
        self._letters: deque[tuple[float, events.RecordDeadLettered]] = deque(maxlen=_MAX_FRESH)
        self._takers: Mapping[type[Event], Callable[[Any], None]] = {
            events.LoopTurned: self._turned,
            events.LagMeasured: self._measured,
            events.TransactionCommitted: self._committed,
            events.TransactionAborted: self._ended,
            events.TransactionExpired: self._ended,
            events.TransactionUnresolved: self._ended,
            events.PartitionsAssigned: self._positioned,
            events.Rewound: self._positioned,
            events.PartitionsRevoked: self._revoked,
            events.SessionClosed: self._closed,
            events.TransformAtWork: self._worked,
            events.RecordDeadLettered: lambda event: self._letters.append((self._wall_clock(), event)),
        }

    def __call__(self, event: Event) -> None:
        take = self._takers.get(type(event))
        if take is not None:
            take(event)
        if type(event) in NOTED:
            self._fresh.append((self._wall_clock(), event))

    def state(self) -> State:
        """What is so now, and the events since the last call."""
        now = self._clock()
        notes = (note_of(*self._fresh.popleft()) for _ in range(len(self._fresh)))
        # Copied in one step each: the loop goes on beside this thread.
        positions = [(shard, each.copy()) for shard, each in self._positions.copy().items()]
        measured_s = {shard: now - at for shard, at in self._measured_at.copy().items()}
        return State(
            pid=os.getpid(),
            positions=tuple(
                Position(*partition, offset, None if at is None else now - at, measured_s.get(shard))
                for shard, of_shard in positions
                for partition, (offset, at) in of_shard.items()
            ),
            open_s=tuple(now - since for since in self._open_since.copy().values()),
            committed_s=None if self._committed_at is None else now - self._committed_at,
            outside_s=max((now - since for since in self._outside_since.copy().values()), default=0.0),
            at_work=tuple(
                AtWork(event.records, now - since, shortened(_own_place(event.stack)))
                for event, since in self._at_work.copy().values()
            ),
            notes=tuple(note for note in notes if note is not None),
            letters=tuple(letter_of(*self._letters.popleft()) for _ in range(len(self._letters))),
        )

    def _turned(self, event: events.LoopTurned) -> None:
        if event.open_s:
            self._open_since[event.shard] = self._clock() - event.open_s
        else:
            self._open_since.pop(event.shard, None)

    def _measured(self, event: events.LagMeasured) -> None:
        self._measured_at[event.shard] = now = self._clock()
        if event.outside_s:
            self._outside_since[event.shard] = now - event.outside_s
        else:
            self._outside_since.pop(event.shard, None)

    def _ended(self, event: Event) -> None:
        self._open_since.pop(event.shard, None)

    def _committed(self, event: events.TransactionCommitted) -> None:
        self._ended(event)
        self._committed_at = now = self._clock()
        known = self._positions.setdefault(event.shard, {})
        for partition, offset in event.offsets.items():
            known[partition] = (offset, now)

    def _positioned(self, event: Any) -> None:
        known = self._positions.setdefault(event.shard, {})
        for partition, offset in event.positions.items():
            if known.get(partition, (None,))[0] != offset:
                known[partition] = (offset, None)

    def _revoked(self, event: events.PartitionsRevoked) -> None:
        known = self._positions.get(event.shard, {})
        for partition in event.partitions:
            known.pop(partition, None)

    def _closed(self, event: events.SessionClosed) -> None:
        self._ended(event)
        self._positions.pop(event.shard, None)
        self._measured_at.pop(event.shard, None)
        self._outside_since.pop(event.shard, None)

    def _worked(self, event: events.TransformAtWork) -> None:  # no sign of life: another thread has looked
        if event.seconds:
            self._at_work[event.shard] = (event, self._clock() - event.seconds)
        else:
            self._at_work.pop(event.shard, None)


def _own_place(stack: Sequence[str]) -> str:
    """The innermost place that is no library's: the one that its reader can look into."""
    return next(
        (place for place in reversed(stack) if not _OF_OTHERS.search(place)), stack[-1] if stack else ""
    )
