"""What a group stores for a partition, and the member that a commit of it is checked against."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import NamedTuple

from confluent_kafka import libversion

from eos.errors import ConfigError
from eos.offsets import OffsetVector, Partition

# rd_kafka_consumer_group_metadata_write: the generation as this machine writes an int, the group, the member, its instance.
_MEMBER = re.compile(rb"CGMDv2:(?P<generation>.{4})[^\0]*\0(?P<member>[^\0]*)\0", re.DOTALL)


class GroupMetadata(NamedTuple):
    """What a transaction's offsets are checked against: the group and, inside ``opaque``, the member's generation.

    Read it right before each commit, in the thread that polls the consumer: an old one is refused (KIP-447).
    """

    group_id: str
    opaque: object

    @property
    def names_a_member(self) -> bool:
        """Whether it names a generation and a member: else the coordinator accepts it from any client.

        librdkafka sets the generation to -1 when it hears that it is an old one, and the member to "" when the member has not
        polled in time, and says so in the next poll only. A classic group does not check offsets that name neither, nor, as
        long as it is empty, those of generation -1 (tests/faults/test_offsets_of_no_member.py).

        Raises:
            ConfigError: librdkafka has written it in a form that is unknown here.
        """
        match = _MEMBER.match(self.opaque) if isinstance(self.opaque, bytes) else None
        if match is None:
            raise ConfigError(
                f"librdkafka {libversion()[0]} writes a member of a group in an unknown form, so whether a commit is that of "
                f"a member cannot be seen. Fix: a version of confluent-kafka that eos was tested with"
            )
        (generation,) = struct.unpack("=i", match["generation"])
        return generation >= 0 and match["member"] != b""


class Committed(NamedTuple):
    """What the group has stored for a partition: the next offset to read, and what was written with it.

    ``leader_epoch`` is that of the record before the offset; None if it was committed without.
    """

    offset: int
    metadata: str
    leader_epoch: int | None = None


def same_commit(one: Committed | None, other: Committed | None) -> bool:
    """Whether both are the same commit. Compares offset and metadata; a broker need not keep the epoch."""
    return (one and one[:2]) == (other and other[:2])


def stored_positions(stored: Mapping[Partition, Committed]) -> OffsetVector:
    """What a group has stored as positions, with their leader epochs: to read on from, or to commit again."""
    epochs = {p: one.leader_epoch for p, one in stored.items() if one.leader_epoch is not None}
    return OffsetVector({p: one.offset for p, one in stored.items()}, epochs)
