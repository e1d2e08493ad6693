"""Expiry: Kafka forgets committed offsets, and in a group without members each by itself.

It does so ``offsets.retention.minutes`` (7 days by default) after the commit, whether or not its neighbours live on
(KIP-211; measured with Kafka 4.3: of three partitions the one that was committed again stayed). A partition whose offset
is gone must not be taken for a new one: from its beginning it would be processed a second time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from eos import retry
from eos.errors import AbortableError, ConfigError, UnavailableError
from eos.kafka.admin import Admin
from eos.kafka.consumer import Committed, ConsumerClient
from eos.offsets import Partition
from eos.readers import committed_offsets, fresh_reader, log_span, partitions_of
from eos.settings import Settings
from eos.stamps import OwnershipMode, Stamp

# Owners look at all offsets of a topic, and commit their own again, at least daily (input.recommit_idle_after_s). So while
# the newest commit in a topic is younger than this, its owner looked after the last commit of any offset that is forgotten
# by now (7 days ago), before Kafka forgot it, and `PartitionsHad` says so.
_NONE_UNSEEN_S = 5 * 86_400
_CLOCKS_DIFFER_S = 3_600
_LOOK_S = 5.0


def partitions_had(stored: Mapping[Partition, Committed], also: Iterable[Partition] = ()) -> dict[str, int]:
    """Per topic, how many of its first partitions have or once had an offset: what a stamp says under this name.

    The offsets that are stored tell, and so do their stamps, about those that are not stored any more. An offset without a
    stamp was set by somebody who set those below it too, as far as one knows.

    Args:
        stored: all offsets that the group has stored for the topics.
        also: partitions that get an offset now.
    """
    present = {*stored, *also}
    had = dict.fromkeys((partition.topic for partition in present), 0)
    for (topic, number), committed in stored.items():
        stamp = Stamp.parse(committed.metadata)
        had[topic] = max(had[topic], number + 1 if stamp is None else stamp.had)
    for topic in had:
        while Partition(topic, had[topic]) in present:
            had[topic] += 1
    return had


class PartitionsHad:
    """`partitions_had` as an owner's stamps say it: asked at its first commit, and then as often as offsets are renewed.

    Args:
        settings: how to reach the cluster, and how often.
        group: whose offsets.
        had: what is known already, by topic.
    """

    def __init__(self, settings: Settings, group: str, had: Mapping[str, int] | None = None) -> None:
        self._settings = settings
        self._group = group
        self._had = dict(had or {})
        self._asked_at = time.monotonic()

    def with_offsets_of(self, partitions: Collection[Partition]) -> Mapping[str, int]:
        """By topic, for these partitions, which get an offset now.

        Raises:
            AbortableError: the cluster did not tell.
        """
        now = time.monotonic()
        is_old = now - self._asked_at >= self._settings.input.recommit_idle_after_s
        topics = {partition.topic for partition in partitions}
        if is_old or not topics <= self._had.keys():
            try:
                found = self._ask(sorted(topics | self._had.keys()), partitions)
            except ConfigError:
                # A topic was deleted, or a broker is behind with its metadata: its reader finds out which. Asked again at
                # the next commit.
                return dict.fromkeys(topics, 0) | self._had
            for topic, had in found.items():
                self._had[topic] = max(had, self._had.get(topic, 0))
            self._asked_at = now
        return self._had

    def _ask(self, topics: list[str], partitions: Collection[Partition]) -> dict[str, int]:
        # Not stable: which offsets are there is asked, not where they stand.
        with fresh_reader(self._settings, self._group, stable=False) as reader:
            try:
                listed = partitions_of(reader, topics, timeout_s=_LOOK_S)
                stored = committed_offsets(reader, listed, timeout_s=_LOOK_S)
                unseen = {partition.topic for partition in stored} - _seen(stored)
                if unseen and _forgets_all_at_once(self._settings, self._group):
                    unseen = set()
            except UnavailableError as error:
                raise AbortableError(f"the offsets of {self._group!r} could not be read: {error}") from error
        had = partitions_had(stored, partitions)
        # Whoever should read the last ones is refused, also once a commit of ours has made the topic's newest a young one.
        return had | Counter(partition.topic for partition in listed if partition.topic in unseen)


def due_for_renewal(
    stored: Mapping[Partition, Committed | None], mine: OwnershipMode, *, after_s: float
) -> set[Partition]:
    """The partitions whose offsets their owner commits again where they stand, soon after it came by them.

    Those that have none: they are new, and should not look forgotten once their neighbours have one. Those of another mode
    of ownership, which are adopted: else the next start would be refused again. And those that are old, or of unknown age.
    """
    due = set()
    for partition, committed in stored.items():
        stamp = Stamp.parse(committed.metadata) if committed is not None else None
        if (
            stamp is None
            or not stamp.fits(mine)
            or not -_CLOCKS_DIFFER_S <= time.time() - stamp.at_s < after_s
        ):
            due.add(partition)
    return due


def refuse_forgotten(
    settings: Settings,
    partitions: Iterable[Partition],
    stored: Mapping[Partition, Committed],
    reader: ConsumerClient,
) -> None:
    """Refuse partitions whose offset Kafka has forgotten; those that are new to their topic pass.

    A topic's first partitions that had an offset are known, as long as the group was not at rest for so long that nobody
    was there to see the last of them. What was never written to has no offset to forget.

    Args:
        settings: how to reach the cluster.
        partitions: those in question.
        stored: all offsets that the group has stored for their topics. Of a topic without any, nothing is refused.
        reader: a client of the group.

    Raises:
        ConfigError: naming them.
        UnavailableError: the cluster did not answer in time.
    """
    had = partitions_had(stored)
    missing = [p for p in partitions if p not in stored and p.topic in had]
    doubtful = {p.topic for p in missing if p.number >= had[p.topic]} - _seen(stored)
    if doubtful and _forgets_all_at_once(settings, reader.group_id):
        doubtful = set()
    forgotten = [
        p
        for p in missing
        if (p.number < had[p.topic] or p.topic in doubtful)
        and log_span(reader, p, timeout_s=settings.open_deadline_s) != (0, 0)
    ]
    if forgotten:
        one = forgotten[0]
        raise ConfigError(
            f"{', '.join(map(str, forgotten))}: the group {reader.group_id!r} has no committed offset there, though it has "
            f"for other partitions of {one.topic}: Kafka has forgotten it (offsets.retention.minutes). How far the "
            "partition was processed is not known, and from its beginning its output could come twice. Fix: look up its "
            "last processed record in the output, or know that there is none, and set the offset while no instance "
            f"runs: kafka-consumer-groups.sh --reset-offsets --execute --group {reader.group_id} "
            f"--topic {one.topic}:{one.number} --to-offset N (or --to-earliest)"
        )


def _seen(stored: Mapping[Partition, Committed]) -> set[str]:
    """The topics whose newest commit is so young that no offset can have been forgotten unseen."""
    seen = set()
    for partition, committed in stored.items():
        stamp = Stamp.parse(committed.metadata)
        if stamp is not None and -_CLOCKS_DIFFER_S <= time.time() - stamp.at_s < _NONE_UNSEEN_S:
            seen.add(partition.topic)
    return seen


def _forgets_all_at_once(settings: Settings, group: str) -> bool:
    """Whether it is a classic group with members, or that had some, and its owners are members: see `eos.admission`."""
    if settings.ownership.mode != "group":
        return False
    admin = Admin(settings.client_config())
    return retry.ask(
        lambda timeout_s: admin.group_shape(group, timeout_s), within_s=settings.open_deadline_s
    ).is_classic
