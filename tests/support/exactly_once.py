"""The invariant, as a pure comparison: the read_committed output is exactly f(input[p][0:c]) for each p.

c is the committed offset of input partition p. Outputs are compared as multisets of (topic, key, value),
and in the order of each input partition within each output partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

_SHOWN = 5  # of each kind of violation


class SeenRecord(NamedTuple):
    """A record as an outside reader sees it. ``timestamp_ms`` is milliseconds since the epoch."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None


TopicPartitionKey = tuple[str, int]
Output = tuple[str, bytes | None, bytes | None]  # topic, key, value
Transform = Callable[[SeenRecord], Iterable[Output]]


@dataclass(frozen=True)
class Comparison:
    """What was compared, and how it differs.

    ``processed`` counts input records before the committed offsets, ``produced`` the outputs found;
    a test should look at them, for nothing compared with nothing is equal.
    """

    processed: int
    produced: int
    lost: tuple[Output, ...]  # expected, not found
    surplus: tuple[Output, ...]  # found, but never or less often expected
    disordered: tuple[SeenRecord, ...]  # found behind an output of a later input record of its partition
    torn: tuple[SeenRecord, ...]  # input records of which some outputs were found and some not

    @property
    def exact(self) -> bool:
        """Whether the invariant holds."""
        return not (self.lost or self.surplus or self.disordered or self.torn)

    def __str__(self) -> str:
        lines = [f"{self.processed} input records processed, {self.produced} output records found"]
        for kind in ("lost", "surplus", "disordered", "torn"):
            found = getattr(self, kind)
            if found:
                shown = "".join(f"\n    {one}" for one in found[:_SHOWN])
                lines.append(f"  {kind}: {len(found)}{shown}")
        return "\n".join(lines)


def compare(
    inputs: Iterable[SeenRecord],
    committed: Mapping[TopicPartitionKey, int | None],
    outputs: Iterable[SeenRecord],
    transform: Transform,
) -> Comparison:
    """Compare the outputs with what the transform makes of the inputs before the committed offsets.

    Args:
        inputs: read_committed records of the input topics, each partition in offset order.
        committed: the group's next offset per partition; None or no entry = nothing processed.
        outputs: read_committed records of the output topics, each partition in offset order.
        transform: a pure function of one input record.
    """
    processed = [record for record in inputs if record.offset < (committed.get(record[:2]) or 0)]
    expected = [(record, tuple(transform(record))) for record in processed]
    wanted = Counter(output for _, made in expected for output in made)
    found_records = list(outputs)
    found = Counter((record.topic, record.key, record.value) for record in found_records)
    return Comparison(
        processed=len(processed),
        produced=len(found_records),
        lost=tuple((wanted - found).elements()),
        surplus=tuple((found - wanted).elements()),
        disordered=tuple(_disordered(expected, wanted, found_records)),
        torn=tuple(record for record, made in expected if _torn(made, found)),
    )


def _torn(made: tuple[Output, ...], found: Counter[Output]) -> bool:
    seen = [output in found for output in made]
    return any(seen) and not all(seen)


def _disordered(
    expected: list[tuple[SeenRecord, tuple[Output, ...]]],
    wanted: Counter[Output],
    found: list[SeenRecord],
) -> Iterable[SeenRecord]:
    # Only an output that is expected once tells which input record it came from.
    origin: dict[Output, tuple[TopicPartitionKey, int]] = {}
    rank = 0
    for record, made in expected:
        for output in made:
            rank += 1
            if wanted[output] == 1:
                origin[output] = (record[:2], rank)
    latest: dict[tuple[TopicPartitionKey, TopicPartitionKey], int] = {}
    for record in found:
        known = origin.get((record.topic, record.key, record.value))
        if known is None:
            continue
        came_from, rank = known
        path = (came_from, record[:2])
        if rank < latest.get(path, 0):
            yield record
        else:
            latest[path] = rank
