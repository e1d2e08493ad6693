"""Log listener: writes one line for each decision, with the shard, its id and the ranges."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from eos import events
from eos.base.listing import listed
from eos.errors import ConfigError
from eos.events import Event
from eos.offsets import Partition
from eos.ops.observe.event_texts import DEBUG_ONLY, MAX_PARTITIONS_SHOWN, TEXTS, Said
from eos.ops.observe.log_lines import is_written, write
from eos.shards import OrdinalShard, parse_transactional_id

_LIMIT_PERIOD_S = 10.0


@dataclass(slots=True)
class _Window:
    began: float
    written: int = 0
    unwritten: int = 0


class LogListener:
    """Writes what happened to a shard, as the decisions they are.

    Where a kind of line is bounded (`Said.at_most`), the next line that is written says how many were not.

    Args:
        texts: what is said of each type of events.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        texts: Mapping[type[Event], Callable[[Any], Said | None]] = TEXTS,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.texts = texts
        self._clock = clock
        self._windows: dict[tuple[object, ...], _Window] = {}
        self._positions: dict[str, dict[Partition, int]] = {}  # per shard, each from a thread of its own

    def __call__(self, event: Event) -> None:
        kind = type(event)
        if kind not in DEBUG_ONLY or is_written("debug"):
            text = self.texts.get(kind)
            said = Said("info", kind.__name__) if text is None else text(event)
            if said is not None:
                self._write(said, event)
        self._follow(event)

    def _write(self, said: Said, event: Event) -> None:
        fields = dict(said.fields)
        if isinstance(event, events.TransactionCommitted):
            known = self._positions.get(event.shard, {})
            ranges = (f"{p} [{known.get(p, '?')}, {end})" for p, end in event.offsets.items())
            fields["ranges"] = listed(ranges, MAX_PARTITIONS_SHOWN)
        if said.at_most:
            unwritten = self._unwritten((said.line, event.shard, fields.get("call")), said.at_most)
            if unwritten is None:
                return
            fields["unwritten"] = unwritten or None
        shown = {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in fields.items()
            if value not in ("", None)
        }
        write(said.level, said.line, shard=_shard_name(event.shard), id=event.shard, **shown)

    def _follow(self, event: Event) -> None:
        """Remember where the shard's partitions are: its next commit's ranges begin there."""
        if isinstance(event, events.SessionClosed):
            self._positions.pop(event.shard, None)
        elif isinstance(event, events.PartitionsRevoked):
            known = self._positions.get(event.shard, {})
            for partition in event.partitions:
                known.pop(partition, None)
        elif isinstance(event, events.TransactionCommitted):
            self._positions.setdefault(event.shard, {}).update(event.offsets)
        elif isinstance(event, events.PartitionsAssigned | events.Rewound | events.StartPolicyApplied):
            self._positions.setdefault(event.shard, {}).update(event.positions)

    def _unwritten(self, kind: tuple[object, ...], per_period: int) -> int | None:
        """None if this line is not to be written; else how many of its kind were not since the last one that was."""
        now = self._clock()
        window = self._windows.setdefault(kind, _Window(now))
        if now - window.began >= _LIMIT_PERIOD_S:
            window.began, window.written = now, 0
        if window.written >= per_period:
            window.unwritten += 1
            return None
        window.written += 1
        unwritten, window.unwritten = window.unwritten, 0
        return unwritten


@lru_cache(maxsize=4096)
def _shard_name(transactional_id: str) -> str:
    try:
        shard = parse_transactional_id(transactional_id)
    except ConfigError:
        return transactional_id
    return f"worker {shard.ordinal}" if isinstance(shard, OrdinalShard) else str(shard)
