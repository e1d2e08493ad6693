"""The log listener of jobs on Spark: that of observe, with lines for this package's events too."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from eos.base.listing import listed
from eos.events import Event
from eos.ops.observe.event_texts import MAX_PARTITIONS_SHOWN, TEXTS, Said
from eos.ops.observe.log_listener import LogListener
from eos.ops.observe.quoting import without_values
from eos.spark.events import BatchResumed, InputPlanned, LedgerRefreshed, LedgerSharded


def _batch_resumed(event: BatchResumed) -> Said:
    written = ", ".join(map(str, event.written))
    return Said(
        "warning", "batch resumed", {"batch": event.batch, "written": written, "shards": event.shards}
    )


def _ledger_sharded(event: LedgerSharded) -> Said:
    fields = {
        "batch": event.batch,
        "query": event.query,
        "shards": event.shards,
        "in_place": event.in_place or None,
        "was": event.was or None,
        "adopted": event.adopted or None,
    }
    return Said("warning" if event.was or event.adopted else "info", "ledger sharded", fields)


def _ledger_refreshed(event: LedgerRefreshed) -> Said:
    if event.failed:
        return Said("warning", "ledger not refreshed", {"reason": without_values(event.failed)})
    return Said("info", "ledger refreshed", {"batch": event.batch})


def _planned(event: InputPlanned) -> Said:
    ranges = (f"{p} [{start}, {event.ends[p]})" for p, start in event.positions.items())
    fields = {
        "partitions": len(event.partitions),
        "offsets": sum(event.ends.values()) - sum(event.positions.values()),
        "ranges": listed(ranges, MAX_PARTITIONS_SHOWN) or "nothing new",
    }
    return Said("info", "input planned", fields)


class SparkLogListener(LogListener):
    """Writes the events of `eos.spark.events` beside those of `eos.events`."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        own: Mapping[type[Event], Callable[[Any], Said | None]] = {
            InputPlanned: _planned,
            BatchResumed: _batch_resumed,
            LedgerSharded: _ledger_sharded,
            LedgerRefreshed: _ledger_refreshed,
        }
        super().__init__({**TEXTS, **own}, clock=clock)
