"""History: what the workers were told of their transactions, and whether that fits together.

A worker writes each answer to its log before it goes on. The log outlives it, so that a commit which was confirmed to a
process that is dead is known all the same; a commit whose answer did not come is unknown, and the offsets show what became of it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from eos.offsets import Partition

ENDS = {
    "transaction committed": "committed",
    "transaction aborted": "aborted",
    "transaction expired": "expired",
    "transaction unresolved": "unresolved",
    "fenced": "fenced",
}
_RANGE = re.compile(r"(\S+)\[(\d+)\] \[(\d+), (\d+)\)")


class Ended(NamedTuple):
    """The end of a transaction, as its worker was told. Times in seconds since the epoch."""

    at: float
    shard: str
    outcome: str
    records_in: int
    records_out: int
    seconds: float


@dataclass(frozen=True)
class History:
    """What all workers wrote."""

    ended: list[Ended] = field(default_factory=list)
    ranges: Mapping[Partition, list[tuple[int, int]]] = field(default_factory=dict)  # of confirmed commits

    def counts(self) -> Counter[str]:
        """Transactions by outcome."""
        return Counter(one.outcome for one in self.ended)

    def of(self, topics: Collection[str]) -> History:
        """The same, with the ranges of these topics only."""
        return replace(self, ranges={p: ranges for p, ranges in self.ranges.items() if p.topic in topics})

    def contradictions(self, committed: Mapping[Partition, int]) -> Iterator[str]:
        """What was confirmed to a worker and cannot be true, given the offsets in the end, in words."""
        for partition, ranges in sorted(self.ranges.items()):
            in_order = sorted(ranges)
            for (start, end), (next_start, next_end) in pairwise(in_order):
                if next_start < end:
                    yield (
                        f"{partition}: two confirmed commits share input: [{start}, {end}) and [{next_start}, {next_end})"
                    )
            if in_order and in_order[-1][1] > committed.get(partition, 0):
                yield (
                    f"{partition}: a commit up to {in_order[-1][1]} was confirmed, and the committed offset is "
                    f"{committed.get(partition, 0)}"
                )

    def settled_unknown(self, committed: Mapping[Partition, int]) -> int:
        """Input offsets that were committed without a confirmation to any worker: of a process killed meanwhile, say."""
        return sum(
            offset - sum(end - start for start, end in self.ranges.get(partition, []))
            for partition, offset in committed.items()
        )

    def untold(self, commits: Iterable[Mapping[Partition, int]]) -> int:
        """How many of these commits, each to these offsets, no worker was told of."""
        told = {(partition, end) for partition, ranges in self.ranges.items() for _, end in ranges}
        return sum(told.isdisjoint(commit.items()) for commit in commits)


def read_history(logs: Iterable[Path]) -> History:
    """The history in these logs."""
    import json

    ended: list[Ended] = []
    ranges: defaultdict[Partition, list[tuple[int, int]]] = defaultdict(list)
    for log in logs:
        for line in log.read_text(errors="replace").splitlines():
            try:
                entry: dict[str, Any] = json.loads(line)
            except ValueError:
                continue
            if not isinstance(entry, dict) or (outcome := ENDS.get(str(entry.get("event")))) is None:
                continue
            ended.append(
                Ended(
                    datetime.fromisoformat(entry["timestamp"]).timestamp(),
                    str(entry.get("shard", "")),
                    outcome,
                    int(entry.get("records_in", 0)),
                    int(entry.get("records_out", 0)),
                    float(entry.get("seconds", 0.0)),
                )
            )
            for topic, number, start, end in _RANGE.findall(str(entry.get("ranges", ""))):
                ranges[Partition(topic, int(number))].append((int(start), int(end)))
    return History(sorted(ended), dict(ranges))
