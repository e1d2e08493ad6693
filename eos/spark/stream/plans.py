"""Plans: how far Spark has planned each batch of a query to read. A file ``offsets/N`` of the checkpoint says so before batch N begins."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable

from eos.offsets import Partition
from eos.spark.analysis.source_offsets import Places, places_of
from eos.spark.session.checkpoint import Checkpoint, UnreadableError

_HEAD_LINES = 2  # of a file: the format's version, and what is not about a source


def planned_offsets(checkpoint: Checkpoint, batch: int) -> dict[Partition, int]:
    """Per input partition where a batch ends. Raises UnreadableError."""
    return merged(planned_sources(checkpoint, batch))


def planned_sources(checkpoint: Checkpoint, batch: int) -> list[Places]:
    """As `planned_offsets`, per source of the query; none of one that has no partitions. Raises UnreadableError."""
    name = f"offsets/{batch}"
    # In format 2 the name of the source stands before its offsets; "-" is a source without any.
    lines = [line.partition("{") for line in (checkpoint.text(name) or "").splitlines()[_HEAD_LINES:]]
    return [
        places_of(checkpoint.parsed(brace + offsets, name)) if brace else {} for _, brace, offsets in lines
    ]


def read_before(
    checkpoint: Checkpoint, batch: int, partitions: Collection[Partition]
) -> dict[Partition, int]:
    """How far a query has read these partitions in batches before ``batch - 1``; those of which it has read nothing are left out.

    Spark keeps the files of the last batches, 100 if ``spark.sql.streaming.minBatchesToRetain`` is not set. It does not read these any
    more, so one that is not whole is passed over.
    """
    found: dict[Partition, int] = {}
    for older in reversed(checkpoint.batches("offsets") if partitions else []):
        planned: dict[Partition, int] = {}
        if older < batch - 1:
            with contextlib.suppress(UnreadableError):
                planned = planned_offsets(checkpoint, older)
        found = {p: at for p, at in planned.items() if p in partitions} | found
        if len(found) == len(partitions):
            break
    return {p: at for p, at in found.items() if at}


def merged(sources: Iterable[Places]) -> dict[Partition, int]:
    """Of several sources; of a partition that two of them read, the further place."""
    found: dict[Partition, int] = {}
    for source in sources:
        for partition, offset in source.items():
            found[partition] = max(offset, found.get(partition, 0))
    return found
