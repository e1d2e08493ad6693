"""Mirrors: offsets of a group that repeat positions of a database, for tools that show a group's lag. No owner begins at them."""

from __future__ import annotations

from collections.abc import Mapping

from eos.errors import ConfigError
from eos.kafka.group_offsets import Committed
from eos.offsets import Partition

# As no offset of eos: a job that writes to Kafka takes none of them for its own.
MIRROR = "mirror of eos_progress"


def refuse_mirror(group: str, stored: Mapping[Partition, Committed]) -> None:
    """Refuse offsets that only repeat positions, which may be further on.

    Raises:
        ConfigError: names the first one.
    """
    for partition, one in sorted(stored.items()):
        if one.metadata == MIRROR:
            raise ConfigError(
                f"{partition}: the offset of group {group!r} in Kafka only repeats a position of a database (eos_progress), which may be "
                "further on. Fix: stop that job, read its positions there (eos offsets show of that job), and name them "
                "(eos offsets set --to)"
            )
