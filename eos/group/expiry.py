"""Expired offsets: which partitions had a committed offset that Kafka has deleted since.

In a group without members Kafka deletes each offset ``offsets.retention.minutes`` (7 days by default) after its commit, even
if other partitions are still committed (KIP-211; measured with Kafka 4.3: of three partitions the one that was committed
again stayed). A partition whose offset has expired must not pass for a new one: its input would be processed a second time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from eos import retry
from eos.commands import suggested
from eos.errors import AbortableError, ConfigError, UnavailableError
from eos.group.committed import committed_offsets, fresh_reader, offsets_at, partitions_of
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.kafka.admin import Admin, Mark
from eos.kafka.consumer import ConsumerClient
from eos.kafka.group_offsets import Committed
from eos.offsets import Partition
from eos.settings import Settings

# Owners read all offsets of a topic, and commit their own again, at least daily (input.recommit_idle_after_s). So while the
# newest commit of a topic is younger than this, its owner has seen every offset that has expired by now (7 days after its
# commit) before it expired, and the offset metadata counts it (`StartedPartitions`).
_ALL_COUNTED_S = 5 * 86_400
_CLOCKS_DIFFER_S = 3_600
_READ_S = 5.0


def count_started(stored: Mapping[Partition, Committed], also: Iterable[Partition] = ()) -> dict[str, int]:
    """Per topic, how many of its first partitions have a committed offset or once had one (``had=`` in the metadata).

    The count comes from the stored offsets, and from their metadata for offsets that have expired. An offset without eos
    metadata was set by another program, which is assumed to have set those of the lower partitions too.

    Args:
        stored: all offsets that the group has stored for the topics.
        also: partitions that get an offset now.
    """
    present = {*stored, *also}
    started = dict.fromkeys((partition.topic for partition in present), 0)
    for (topic, number), committed in stored.items():
        metadata = OffsetMetadata.parse(committed.metadata)
        started[topic] = max(started[topic], number + 1 if metadata is None else metadata.started_partitions)
    for topic in started:
        while Partition(topic, started[topic]) in present:
            started[topic] += 1
    return started


class StartedPartitions:
    """`count_started` for one owner's commits: read at its first commit, and again as often as offsets are renewed.

    Args:
        settings: how to reach the cluster, and how often to read.
        group: the consumer group.
        started: what is known already, by topic.
    """

    def __init__(self, settings: Settings, group: str, started: Mapping[str, int] | None = None) -> None:
        self._settings = settings
        self._group = group
        self._started = dict(started or {})
        self._asked_at = time.monotonic()

    def with_offsets_of(self, partitions: Collection[Partition]) -> Mapping[str, int]:
        """By topic, for these partitions, which get an offset now.

        Raises:
            AbortableError: the cluster did not answer in time.
        """
        now = time.monotonic()
        is_old = now - self._asked_at >= self._settings.input.recommit_idle_after_s
        topics = {partition.topic for partition in partitions}
        if is_old or not topics <= self._started.keys():
            try:
                stored = self._ask(sorted(topics | self._started.keys()), partitions)
            except ConfigError:
                # A topic was deleted, or a broker's metadata is behind. The consumer finds out which. The next commit asks
                # again.
                return dict.fromkeys(topics, 0) | self._started
            for topic, number in stored.items():
                self._started[topic] = max(number, self._started.get(topic, 0))
            self._asked_at = now
        return self._started

    def _ask(self, topics: list[str], partitions: Collection[Partition]) -> dict[str, int]:
        # Not stable: what matters is which partitions have an offset, not its value.
        with fresh_reader(self._settings, self._group, stable=False) as reader:
            try:
                listed = partitions_of(reader, topics, timeout_s=_READ_S)
                stored = committed_offsets(reader, listed, timeout_s=_READ_S)
                present = {partition.topic for partition in stored}
                uncounted = _may_have_expired_uncounted(self._settings, self._group, present, stored)
            except UnavailableError as error:
                raise AbortableError(f"the offsets of {self._group!r} could not be read: {error}") from error
        started = count_started(stored, partitions)
        # These partitions stay refused, also after our own commit has become the newest of the topic.
        return started | Counter(partition.topic for partition in listed if partition.topic in uncounted)


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


def refuse_expired(
    settings: Settings,
    partitions: Iterable[Partition],
    stored: Mapping[Partition, Committed],
    reader: ConsumerClient,
) -> None:
    """Refuse partitions whose committed offset has expired. Partitions that are new to their topic pass.

    The offset metadata counts a topic's partitions that had an offset, unless the group was stopped for so long that offsets
    may have expired without an owner that counted them. A partition that was never written to is not refused.

    Args:
        settings: how to reach the cluster.
        partitions: the partitions to check.
        stored: all offsets that the group has stored for their topics. A topic without any is not checked.
        reader: a client of the group.

    Raises:
        ConfigError: names the partitions.
        UnavailableError: the cluster did not answer in time.
    """
    started = count_started(stored)
    missing = [p for p in partitions if p not in stored and p.topic in started]
    above = {p.topic for p in missing if p.number >= started[p.topic]}
    doubtful = _may_have_expired_uncounted(settings, reader.group_id, above, stored)
    suspects = [p for p in missing if p.number < started[p.topic] or p.topic in doubtful]
    starts, ends = (offsets_at(settings, mark, suspects) for mark in (Mark.START, Mark.LAST_STABLE))
    expired = [p for p in suspects if (starts[p], ends[p]) != (0, 0)]
    if expired:
        one = expired[0]
        raise ConfigError(
            f"{', '.join(map(str, expired))}: the group {reader.group_id!r} has no committed offset there, though it has "
            f"for other partitions of {one.topic}: the offset has expired (offsets.retention.minutes). How far the "
            "partition was processed is not known; reading it from its beginning could write its output twice. Fix: find its "
            "last processed record in the output, or make sure that there is none, and set the offset while no instance "
            f"runs: {suggested('offsets set', '--to', f'{one.topic}:{one.number}@N', job=True)}"
        )


def _is_younger(metadata: OffsetMetadata, than_s: float) -> bool:
    return -_CLOCKS_DIFFER_S <= time.time() - metadata.at_s < than_s


def _may_have_expired_uncounted(
    settings: Settings, group: str, topics: set[str], stored: Mapping[Partition, Committed]
) -> set[str]:
    """The topics whose newest commit is so old that an offset may have expired before an owner counted it."""
    newest = [
        (partition.topic, OffsetMetadata.parse(committed.metadata)) for partition, committed in stored.items()
    ]
    recent = {
        topic for topic, metadata in newest if metadata is not None and _is_younger(metadata, _ALL_COUNTED_S)
    }
    uncounted = topics - recent
    return set() if uncounted and _expires_all_at_once(settings, group) else uncounted


def _expires_all_at_once(settings: Settings, group: str) -> bool:
    """Whether the owners are members and the group is classic: Kafka then deletes all its offsets together (`eos.group.guards`)."""
    if settings.ownership.mode != "group":
        return False
    admin = Admin.of(settings)
    return retry.ask(
        lambda slice_s: admin.groups.shape(group, slice_s), timeout_s=settings.open_timeout_s
    ).is_classic
