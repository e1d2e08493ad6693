"""Expired offsets: which partitions had a committed offset that Kafka has deleted since.

In a group without members Kafka deletes each offset ``offsets.retention.minutes`` (7 days by default) after its commit, even
if other partitions are still committed (KIP-211; measured with Kafka 4.3: of three partitions the one that was committed
again stayed). A partition whose offset has expired must not pass for a new one: its input would be processed a second time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import count

from eos import retry
from eos.errors import AbortableError, ConfigError, UnavailableError
from eos.group.committed import committed_offsets, fresh_reader, partitions_of
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.kafka.admin import Admin
from eos.kafka.group_offsets import Committed
from eos.offsets import Partition
from eos.settings import Settings

# Owners read all offsets of a topic, and commit their own again, at least daily (input.recommit_idle_after_s). So while the
# newest commit of a topic is younger than this, its owner has seen every offset that has expired by now (7 days after its
# commit) before it expired, and the offset metadata counts it (`StartedPartitions`).
_ALL_COUNTED_S = 5 * 86_400
_CLOCKS_DIFFER_S = 3_600
_READ_S = 5.0
# Of a partition that was added, only its own offset counts until another owner has seen it. For an offset that expires, a day would do; a
# tool may delete it, or the group, at any time.
_ASK_AGAIN_S = 600.0


def count_started(stored: Mapping[Partition, Committed]) -> dict[str, int]:
    """Per topic, how many of its first partitions have a committed offset or once had one (``had=`` in the metadata).

    The count comes from the stored offsets, and from their metadata for offsets that have expired. An offset without eos
    metadata was set by another program, which is assumed to have set those of the lower partitions too.

    Args:
        stored: all offsets that the group has stored for the topics.
    """
    started = dict.fromkeys((partition.topic for partition in stored), 0)
    for (topic, number), committed in stored.items():
        metadata = OffsetMetadata.parse(committed.metadata)
        started[topic] = max(started[topic], number + 1 if metadata is None else metadata.started_partitions)
    return grown(started, stored)


def grown(started: Mapping[str, int], present: Collection[Partition]) -> dict[str, int]:
    """The counts once these partitions have an offset."""
    return {
        topic: next(n for n in count(first) if Partition(topic, n) not in present)
        for topic, first in started.items()
    }


class StartedPartitions:
    """`count_started` for one owner's commits: read at its first commit, and again every ten minutes.

    Args:
        settings: how to reach the cluster.
        group: the consumer group.
        started: what is known already, by topic.
    """

    def __init__(self, settings: Settings, group: str, started: Mapping[str, int] | None = None) -> None:
        self._settings = settings
        self._group = group
        self._started = dict(started or {})
        self._present: set[Partition] | None = None  # None: nothing was asked, and what was given counts
        self._asked_at = time.monotonic()

    def with_offsets_of(
        self, partitions: Collection[Partition], *, stored: Iterable[Partition] = ()
    ) -> Mapping[str, int]:
        """By topic, for these partitions, which get an offset now: in this commit alone, for it may fail.

        Args:
            partitions: those of the commit.
            stored: partitions that have an offset, as the owner knows by now.

        Raises:
            AbortableError: the cluster did not answer in time.
        """
        now = time.monotonic()
        is_old = now - self._asked_at >= _ASK_AGAIN_S
        topics = {partition.topic for partition in partitions}
        if is_old or not topics <= self._started.keys():
            try:
                found, counted = self._ask(sorted(topics | self._started.keys()))
            except ConfigError:
                # A topic was deleted, or a broker's metadata is behind. The consumer finds out which. The next commit asks
                # again.
                return dict.fromkeys(topics, 0) | self._started
            self._present = {*(self._present or ()), *found}
            for topic in topics | counted.keys():
                self._started[topic] = max(counted.get(topic, 0), self._started.get(topic, 0))
            self._asked_at = now
        if self._present is None:
            return self._started
        self._present.update(stored)
        return grown(self._started, self._present.union(partitions))

    def _ask(self, topics: list[str]) -> tuple[Collection[Partition], Mapping[str, int]]:
        # Not stable: what matters is which partitions have an offset, not its value.
        with fresh_reader(self._settings, self._group, stable=False) as reader:
            try:
                listed = partitions_of(reader, topics, timeout_s=_READ_S)
                stored = committed_offsets(reader, listed, timeout_s=_READ_S)
                doubtful = uncounted(self._settings, self._group, set(topics), stored)
            except UnavailableError as error:
                raise AbortableError(f"the offsets of {self._group!r} could not be read: {error}") from error
        # These partitions stay refused, also after our own commit has become the newest of the topic.
        refused = Counter(partition.topic for partition in listed if partition.topic in doubtful)
        return stored.keys(), count_started(stored) | refused


def due_for_renewal(
    stored: Mapping[Partition, Committed | None], mine: OwnershipMode, app: str, *, after_s: float
) -> set[Partition]:
    """The partitions whose offsets their new owner commits again, unchanged, soon after it has taken them over.

    These are: partitions without an offset (they are new, and must not look expired once the topic's other partitions have
    one); offsets of another mode or app that were adopted (else the next start would be refused again); offsets without a
    topic id; and offsets that are old or of unknown age.
    """
    due = set()
    for partition, committed in stored.items():
        metadata = OffsetMetadata.parse(committed.metadata) if committed is not None else None
        fits = metadata is not None and metadata.topic and metadata.fits(mine) and metadata.app == app
        if metadata is None or not fits or not _is_younger(metadata, after_s):
            due.add(partition)
    return due


def _is_younger(metadata: OffsetMetadata, than_s: float) -> bool:
    return -_CLOCKS_DIFFER_S <= time.time() - metadata.at_s < than_s


def uncounted(
    settings: Settings, group: str, topics: set[str], stored: Mapping[Partition, Committed]
) -> set[str]:
    """The topics of which an offset may be gone without an owner that has counted it.

    eos has committed nothing that is left there: who deletes, alters or expires offsets takes the counts with them. Or its newest
    commit is so old that an offset may have expired since.
    """
    counted = [
        (partition.topic, metadata)
        for partition, committed in stored.items()
        if (metadata := OffsetMetadata.parse(committed.metadata)) is not None
    ]
    found = topics - {topic for topic, metadata in counted if _is_younger(metadata, _ALL_COUNTED_S)}
    at_rest = found & {topic for topic, _ in counted}
    return found - at_rest if at_rest and _expires_all_at_once(settings, group) else found


def _expires_all_at_once(settings: Settings, group: str) -> bool:
    """Whether the owners are members and the group is classic: Kafka then deletes all its offsets together (`eos.guards.owners`)."""
    if settings.ownership.mode != "group":
        return False
    admin = Admin.of(settings)
    return retry.ask(
        lambda slice_s: admin.groups.shape(group, slice_s), timeout_s=settings.open_timeout_s
    ).is_classic
