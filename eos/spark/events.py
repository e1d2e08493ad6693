"""Events of jobs on Spark, beside those of `eos.events`; a listener gets both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eos.events import Event
from eos.offsets import OffsetVector, Partition


@dataclass(frozen=True, slots=True)
class InputPlanned(Event):
    """A batch run will read [positions, ends) of these partitions. ``shard``: how its transactional.ids begin."""

    positions: OffsetVector
    ends: OffsetVector
    partitions: Sequence[Partition]  # all of the input topics, also those without anything new


@dataclass(frozen=True, slots=True)
class BatchResumed(Event):
    """A streaming batch goes on of which shards are written already. ``shard``: how the transactional.ids begin."""

    batch: int
    written: Sequence[int]
    shards: int


@dataclass(frozen=True, slots=True)
class LedgerSharded(Event):
    """A streaming query's commit log begins with a batch, or goes on from it with other shards. ``in_place``: input partitions."""

    batch: int
    query: str
    shards: int
    was: int
    adopted: bool = False
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class LedgerRefreshed(Event):
    """The entries of a commit log were committed again as they are, so that Kafka does not forget them."""

    batch: int
    failed: str = ""
