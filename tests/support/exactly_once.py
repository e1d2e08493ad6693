"""The invariant, as a pure comparison: the read_committed output is exactly f(input[p][0:c]) for each p.

c is the committed offset of input partition p. Outputs are compared as multisets of (topic, key, value), in the order
of each input partition within each output partition, and by the partition that their key's hash chooses.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from eos.ops.verifier.placement import partition_of

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
    misplaced: tuple[SeenRecord, ...]  # found in another partition than that of their key
    torn: tuple[SeenRecord, ...]  # input records of which some outputs were found and some not

    @property
    def exact(self) -> bool:
        """Whether the invariant holds."""
        return not (self.lost or self.surplus or self.disordered or self.misplaced or self.torn)

    def __str__(self) -> str:
        lines = [f"{self.processed} input records processed, {self.produced} output records found"]
        for kind in ("lost", "surplus", "disordered", "misplaced", "torn"):
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
    *,
    partitions: Mapping[str, int] | None = None,
) -> Comparison:
    """Compare the outputs with what the transform makes of the inputs before the committed offsets.

    Args:
        inputs: read_committed records of the input topics, each partition in offset order.
        committed: the group's next offset per partition; None or no entry = nothing processed.
        outputs: read_committed records of the output topics, each partition in offset order.
        transform: a pure function of one input record.
        partitions: of each output topic whose outputs name no partition, how many it has.
    """
    processed = [record for record in inputs if record.offset < (committed.get(record[:2]) or 0)]
    expected = [(record, tuple(transform(record))) for record in processed]
    wanted = Counter(output for _, made in expected for output in made)
    found_records = list(outputs)
    found = Counter(map(_output, found_records))
    return Comparison(
        processed=len(processed),
        produced=len(found_records),
        lost=tuple((wanted - found).elements()),
        surplus=tuple((found - wanted).elements()),
        disordered=tuple(_disordered(expected, found_records)),
        misplaced=tuple(
            record
            for record in found_records
            if _output(record) in wanted and _misplaced(record, partitions or {})
        ),
        torn=tuple(record for record, made in expected if _torn(made, found)),
    )


def _torn(made: tuple[Output, ...], found: Counter[Output]) -> bool:
    seen = [output in found for output in made]
    return any(seen) and not all(seen)


def _misplaced(record: SeenRecord, partitions: Mapping[str, int]) -> bool:
    if record.key is None or record.topic not in partitions:
        return False
    return record.partition != partition_of(record.key, partitions[record.topic])


def _disordered(
    expected: list[tuple[SeenRecord, tuple[Output, ...]]], found: list[SeenRecord]
) -> Iterable[SeenRecord]:
    origins: dict[Output, list[tuple[TopicPartitionKey, int]]] = defaultdict(list)
    rank = 0
    for record, made in expected:
        for output in made:
            rank += 1
            origins[output].append((record[:2], rank))
    places: dict[Output, list[TopicPartitionKey]] = defaultdict(list)
    for record in found:
        places[_output(record)].append(record[:2])
    latest: dict[tuple[TopicPartitionKey, TopicPartitionKey], int] = {}
    seen: Counter[Output] = Counter()
    for record in found:
        output = _output(record)
        made_by, found_in = origins[output], places[output]
        # Alike outputs tell where they came from if all are of one input partition and in one output partition: the
        # first is then the first.
        if len(made_by) != len(found_in) or len({one for one, _ in made_by} | set(found_in)) > 2:
            continue
        came_from, rank = made_by[seen[output]]
        seen[output] += 1
        path = (came_from, record[:2])
        if rank < latest.get(path, 0):
            yield record
        else:
            latest[path] = rank


def _output(record: SeenRecord) -> Output:
    return (record.topic, record.key, record.value)
