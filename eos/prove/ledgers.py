"""Ledgers: how far the shards of a streaming query's last batch are."""

from __future__ import annotations

from eos.group.committed import committed_offsets, fresh_reader
from eos.identity import Identity, Kind
from eos.offsets import Partition
from eos.settings import Settings
from eos.spark.stream.log_entry import LogEntry

_CALL_S = 3.0


def shards_behind(job: Identity, settings: Settings) -> int:
    """How many shards of a query's last batch are still to be written; 0 of any other job.

    Raises:
        EosError: the cluster did not answer in time.
    """
    if job.kind is not Kind.STREAM:
        return 0
    places = [Partition(topic, 0) for topic in job.outputs]

    def entry(group: str) -> LogEntry | None:
        with fresh_reader(settings, group, stable=True) as reader:
            stored = committed_offsets(reader, places, timeout_s=_CALL_S)
        found = {place.topic: LogEntry.parse(one.offset, one.metadata) for place, one in stored.items()}
        counts = [
            one for topic, one in found.items() if one is not None and one.stands_on(topic, if_unsaid=True)
        ]
        return max(counts, key=lambda one: one.next_batch, default=None)

    entries = dict(enumerate(map(entry, job.commits)))
    last = max(filter(None, entries.values()), key=lambda one: one.next_batch, default=None)
    if last is None:
        return 0
    # Only the shards that the batch has: there were more before it was divided otherwise, and in place it has one for each partition.
    at = [one.next_batch if (one := entries.get(shard)) is not None else None for shard in range(last.shards)]
    return sum(next_batch != last.next_batch for next_batch in at)
