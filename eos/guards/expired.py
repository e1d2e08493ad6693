"""Expired offsets: a partition whose committed offset Kafka has deleted must not pass for a new one; see `eos.group.expiry`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from eos.base.commands import suggested
from eos.core.surroundings import TakeOver
from eos.errors import ConfigError
from eos.group.committed import offsets_at
from eos.group.expiry import count_started, uncounted
from eos.kafka.admin import Mark
from eos.kafka.group_offsets import Committed
from eos.offsets import Partition, as_places
from eos.settings import Settings


def expired(settings: Settings, found: TakeOver) -> None:
    """The guard of a takeover: :func:`refuse_expired`."""
    refuse_expired(settings, found.partitions, found.stored, found.group)


def refuse_expired(
    settings: Settings,
    partitions: Iterable[Partition],
    stored: Mapping[Partition, Committed],
    group: str,
) -> None:
    """Refuse partitions whose committed offset has expired. Partitions that are new to their topic pass.

    The offset metadata counts a topic's partitions that had an offset, unless the group was stopped for so long that offsets
    may have expired without an owner that counted them. A partition that was never written to is not refused.

    Args:
        settings: how to reach the cluster.
        partitions: the partitions to check.
        stored: all offsets that the group has stored for their topics. A topic without any is not checked.
        group: the group.

    Raises:
        ConfigError: names the partitions.
        UnavailableError: the cluster did not answer in time.
    """
    started = count_started(stored)
    missing = [p for p in partitions if p not in stored and p.topic in started]
    above = {p.topic for p in missing if p.number >= started[p.topic]}
    doubtful = uncounted(settings, group, above, stored)
    suspects = [p for p in missing if p.number < started[p.topic] or p.topic in doubtful]
    expired = ever_written(settings, suspects)
    if expired:
        one = expired[0]
        raise ConfigError(
            f"{', '.join(map(str, expired))}: the group {group!r} has no committed offset there, though it has "
            f"for other partitions of {one.topic}: the offset has expired (offsets.retention.minutes), was deleted, or there never was one. How far the "
            "partition was processed is not known; reading it from its beginning could write its output twice. Fix: find its "
            "last processed record in the output, or make sure that there is none, and set the offset while no instance "
            f"runs: {suggested('offsets set', '--to', as_places(dict.fromkeys(expired, 'N')), job=True)}"
        )


def ever_written(settings: Settings, partitions: Sequence[Partition]) -> list[Partition]:
    """Those of the partitions that have had a record.

    Raises:
        UnavailableError: the cluster did not answer in time.
    """
    starts, ends = (offsets_at(settings, mark, partitions) for mark in (Mark.START, Mark.LAST_STABLE))
    return [p for p in partitions if (starts[p], ends[p]) != (0, 0)]
