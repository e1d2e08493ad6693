"""Expiry: Kafka forgets committed offsets, and in a group without members each by itself.

It does so ``offsets.retention.minutes`` (7 days by default) after the commit, whether or not its neighbours live on
(KIP-211; measured with Kafka 4.3: of three partitions the one that was committed again stayed). A partition whose offset
is gone must not be taken for a new one: from its beginning it would be processed a second time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from eos.errors import ConfigError
from eos.kafka.consumer import Committed, ConsumerClient
from eos.offsets import Partition
from eos.readers import log_span
from eos.settings import Settings
from eos.stamps import OwnershipMode, Stamp

# Owners commit every offset again at least once in input.recommit_idle_after_s, a day. So five days after a group's last
# commit none of its offsets is older than six, and Kafka's default keeps it for seven.
_NONE_FORGOTTEN_S = 5 * 86_400


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
        if stamp is None or not stamp.fits(mine) or time.time() - stamp.at_s >= after_s:
            due.add(partition)
    return due


def refuse_forgotten(
    settings: Settings,
    partitions: Iterable[Partition],
    stored: Mapping[Partition, Committed],
    reader: ConsumerClient,
) -> None:
    """Refuse partitions whose offset Kafka has forgotten; those that are new to their topic pass.

    Partitions are only ever appended, so one below another that has an offset is not new. One above all others may be; but
    not if the group has done nothing for so long that offsets of its last days may be gone. What was never written to has
    no offset to forget.

    Raises:
        ConfigError: naming them.
        UnavailableError: the cluster did not answer in time.
    """
    highest: dict[str, int] = {}
    last_at_s: dict[str, int] = {}
    for (topic, number), committed in stored.items():
        highest[topic] = max(highest.get(topic, -1), number)
        stamp = Stamp.parse(committed.metadata)
        if stamp is not None:
            last_at_s[topic] = max(last_at_s.get(topic, 0), stamp.at_s)
    now_s = time.time()
    doubtful = [
        p
        for p in partitions
        if p not in stored
        and p.topic in highest
        and (p.number < highest[p.topic] or now_s - last_at_s.get(p.topic, now_s) > _NONE_FORGOTTEN_S)
    ]
    forgotten = [p for p in doubtful if log_span(reader, p, timeout_s=settings.open_deadline_s) != (0, 0)]
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
