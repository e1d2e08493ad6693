"""RelayEntry: what Kafka stores for a shard of a relay: how many rows are relayed, as an offset, and which, as its metadata; pure.

The offset stands on partition 0 of one of the job's outputs, in a group of the shard's own: Kafka takes any offset of a partition
that exists. So the position is committed by the transaction that has the rows' records.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from eos.errors import ConfigError
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.kafka.group_offsets import Committed
from eos.offsets import Partition
from eos.sql.outbox import Outbox
from eos.sql.outbox_position import OutboxPosition

_FORM = re.compile(r"(?P<owner>eos1 .*) relays=(?P<shards>[1-9]\d{0,6}) (?P<position>db=.*)", re.ASCII)


class Relayed(NamedTuple):
    """What a job relays.

    Attributes:
        outbox: the table.
        outputs: the topics that rows may name.
        shards: how many there are.
    """

    outbox: Outbox
    outputs: Sequence[str]
    shards: int

    @property
    def places(self) -> list[Partition]:
        """Where the entry of a shard may stand."""
        return [Partition(topic, 0) for topic in self.outputs]


@dataclass(frozen=True, slots=True)
class RelayEntry:
    """See above.

    Attributes:
        relayed: the number of rows.
        position: which.
        shards: how many the relay has.
        app: the job's name.
        in_a_row: how many rows in a row were left out before it.
        at_s: when it was committed, in seconds since 1970 by the owner's clock.
        host: and process of the owner.
    """

    relayed: int
    position: OutboxPosition
    shards: int
    app: str = ""
    in_a_row: int = 0
    at_s: int = field(default=0, compare=False)
    host: str = field(default="", compare=False)

    @classmethod
    def parse(cls, stored: Committed) -> RelayEntry | None:
        """The entry in a committed offset; None if no relay has written it."""
        match = _FORM.fullmatch(stored.metadata)
        if match is None:
            return None
        of_owner, position = OffsetMetadata.parse(match["owner"]), OutboxPosition.parse(match["position"])
        if of_owner is None or position is None or of_owner.mode is not OwnershipMode.SINK:
            return None
        return cls(
            stored.offset,
            position,
            int(match["shards"]),
            of_owner.app,
            of_owner.in_a_row,
            of_owner.at_s,
            of_owner.host,
        )


@dataclass(slots=True)
class Reached:
    """The position that the next commit stores."""

    position: OutboxPosition | None = None


@dataclass(frozen=True, slots=True)
class RelayMetadata(OffsetMetadata):
    """Offset metadata with what an entry says beyond its offset."""

    shards: int = 1
    reached: Reached = field(default_factory=Reached)

    def __str__(self) -> str:
        return f"{OffsetMetadata.__str__(self)} relays={self.shards} {self.reached.position}"


def _entries(stored: Mapping[Partition, Committed]) -> dict[Partition, RelayEntry]:
    return {p: entry for p, one in sorted(stored.items()) if (entry := RelayEntry.parse(one)) is not None}


def _entries_of(stored: Mapping[Partition, Committed]) -> str:
    found = [f"{p} has {e.relayed} rows of {e.app!r}" for p, e in _entries(stored).items()]
    return f"A relay has written: {', '.join(found)}" if found else "None of them is a relay's"


def _is_unused(stored: Committed, app: str) -> bool:
    entry = RelayEntry.parse(stored)
    return entry is not None and entry.app == app and not entry.relayed


def entry_in(
    stored: Mapping[Partition, Committed],
    elsewhere: Mapping[Partition, Committed],
    *,
    group: str,
    app: str,
    shards: int,
) -> tuple[Partition, RelayEntry] | None:
    """Where a shard's entry stands, and what it says; None: there is none yet.

    Args:
        stored: what the shard's group has stored for partition 0 of each output.
        elsewhere: what it has stored of other partitions: the entry stays where it was begun when the outputs change.
        group: the shard's, for messages.
        app: the job's name.
        shards: how many the job has.

    Raises:
        ConfigError: it is another program's, another job's, or that of a relay with another number of shards; or there are several,
            or it stands on a topic that is none of the outputs.
    """
    relayed = max((entry.relayed for entry in _entries(stored).values()), default=0)
    for place, further in _entries(elsewhere).items():
        if further.relayed and further.relayed >= relayed:
            raise ConfigError(
                f"the group {group!r} says on {place} that {further.relayed} rows are relayed, and outputs= does not name {place.topic!r}. "
                "Without that entry they would be relayed again. Fix: name the topic in outputs= again; no row needs to go there"
            )
    if not stored:
        return None
    # A run without a row has left one too, where the outputs were others.
    used = {p: one for p, one in stored.items() if not _is_unused(one, app)}
    stored = used or {min(stored): stored[min(stored)]}
    if len(stored) > 1:
        raise ConfigError(
            f"the group {group!r} has offsets on {', '.join(map(str, sorted(stored)))}, and a relay has one. Fix, where rows were relayed "
            f"under this group: keep the one with the most rows, and delete the others (kafka-consumer-groups --delete-offsets). {_entries_of(stored)}. In another group all rows would be relayed again"
        )
    ((partition, committed),) = stored.items()
    entry = RelayEntry.parse(committed)
    if entry is None or entry.app != app:
        whose = "another program" if entry is None else f"the job {entry.app!r}"
        raise ConfigError(
            f"the group {group!r} has an offset of {whose} on {partition}. Fix: a group of its own (the setting group). Where rows were "
            "relayed under this one (the offset was set by a tool, or the job was renamed), all would be relayed again: find out which of "
            "them the topics hold already, and delete those first"
        )
    if entry.shards != shards:
        raise ConfigError(
            f"the outbox was relayed with shards = {entry.shards}, and the job says {shards}: each of them has its own position, and a "
            f"key would come to another one. Fix: shards={entry.shards}"
        )
    return partition, entry
