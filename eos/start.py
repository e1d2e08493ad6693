"""The start policy: where a group that has no offsets yet begins, applied once and committed before any read."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from eos import retry
from eos.calls import Call
from eos.errors import (
    AbortableError,
    ConfigError,
    FencedError,
    RebalancedError,
    ReopenError,
    RetriableError,
)
from eos.expiry import refuse_forgotten
from eos.kafka.consumer import Committed, ConsumerClient
from eos.offsets import OffsetVector, Partition
from eos.producer import TransactionalProducer
from eos.readers import committed_offsets, log_span, partitions_of
from eos.settings import Settings
from eos.shards import StartShard
from eos.stamps import OwnershipMode, Stamp

Tell = Callable[[OffsetVector], object]


def apply_start_policy(
    settings: Settings,
    topics: Sequence[str],
    reader: ConsumerClient,
    *,
    app: str,
    tell: Tell,
    own: Collection[Partition] | None = None,
) -> tuple[list[Partition], dict[Partition, Committed]]:
    """Give every input topic without any committed offset its first ones, and return all committed offsets.

    All partitions of a topic get their offset in one transaction, under a transactional.id that only this
    step uses: two instances that start at once cannot both apply it, and a crash cannot apply it again. That
    is why it is not the consumer's auto.offset.reset, which would be applied anew after every crash before
    the first commit, and again when the group's offsets have expired.

    Args:
        settings: how to reach the cluster, and the policy.
        topics: the input topics.
        reader: a client of the group.
        app: the first part of the transactional.id.
        tell: told the first offsets, if this call commits them.
        own: the partitions that the caller will read; all of them if not given.

    Returns:
        The topics' partitions, and what the group has stored for them; those without an offset are left out there
        (they are new to a topic that was started before, and begin at their beginning).

    Raises:
        ConfigError: the policy is ``fail`` and a topic has no offsets, the offset of an own partition has been forgotten, or
            a topic does not exist.
        UnavailableError: the cluster did not answer in time, or other instances came in between until then.
    """

    def once(_timeout_s: float) -> tuple[list[Partition], dict[Partition, Committed]]:
        partitions, stored = _stored(settings, topics, reader)
        refuse_forgotten(settings, partitions if own is None else own, stored, reader)
        missing = _not_started(partitions, stored)
        if not missing:
            return partitions, stored
        if settings.input.start == "fail":
            raise ConfigError(_where_to_start(reader.group_id, _topics_of(missing)))
        try:
            _commit_first(missing, settings, reader, app, tell)
            partitions, stored = _stored(settings, topics, reader)
        except (FencedError, AbortableError, ReopenError) as error:
            # What is stored tells. If it was another instance that came in between: those that start at once fence
            # each other in turn, and the waits of the retry policy, which are random, bring them apart.
            raise RetriableError(
                f"group {reader.group_id!r}: the start policy could not be applied ({error})", code=error.code
            ) from error
        if _not_started(partitions, stored):
            raise RetriableError(f"group {reader.group_id!r}: the first offsets are not to be seen yet")
        return partitions, stored

    return retry.resume(Call.COMMITTED, once, deadline=time.monotonic() + settings.open_deadline_s)


def preview_start_policy(
    settings: Settings, topics: Sequence[str], reader: ConsumerClient
) -> tuple[list[Partition], dict[Partition, Committed]]:
    """What `apply_start_policy` would return now; nothing is committed.

    Raises:
        ConfigError: the policy is ``fail`` and a topic has no offsets, or a topic does not exist.
        UnavailableError: the cluster did not answer in time.
    """
    partitions, stored = _stored(settings, topics, reader)
    refuse_forgotten(settings, partitions, stored, reader)
    missing = _not_started(partitions, stored)
    if missing and settings.input.start == "fail":
        raise ConfigError(_where_to_start(reader.group_id, _topics_of(missing)))
    return partitions, stored | {p: Committed(_first_offset(p, settings, reader), "") for p in missing}


def _commit_first(
    partitions: Sequence[Partition], settings: Settings, reader: ConsumerClient, app: str, tell: Tell
) -> None:
    shard = StartShard(app, reader.group_id)
    stamp = Stamp(OwnershipMode.START, str(shard))
    had = Counter(partition.topic for partition in partitions)  # once this is committed
    with TransactionalProducer(settings, shard, stamp=stamp, had=had) as producer:
        # The init above ended what an earlier instance left pending, so now the truth can be read.
        _, stored = _stored(settings, _topics_of(partitions), reader)
        missing = _not_started(partitions, stored)
        if not missing:
            return
        positions = OffsetVector({p: _first_offset(p, settings, reader) for p in missing})
        # Of no member: the reader's own metadata would name its group.instance.id, whose last holder may be known still.
        nobody = ConsumerClient(settings.consumer_config(reader.group_id, None))
        try:
            with producer.transaction() as txn:
                txn.add_offsets(positions, nobody.group_metadata())
        except RebalancedError as error:  # KIP-848 groups refuse offsets from outside while they have members
            raise ConfigError(
                f"group {reader.group_id!r} has live members, and they read no {_topics_of(missing)} yet. "
                "Fix: stop them all before the first start with a new input topic",
            ) from error
        finally:
            nobody.close()
    tell(positions)


def _first_offset(partition: Partition, settings: Settings, reader: ConsumerClient) -> int:
    low, lso = log_span(reader, partition, timeout_s=settings.open_deadline_s)
    return low if settings.input.start == "earliest" else lso


def _stored(
    settings: Settings, topics: Sequence[str], reader: ConsumerClient
) -> tuple[list[Partition], dict[Partition, Committed]]:
    partitions = partitions_of(reader, topics, timeout_s=settings.open_deadline_s)
    return partitions, committed_offsets(reader, partitions, timeout_s=settings.open_deadline_s)


def _not_started(partitions: Iterable[Partition], stored: Iterable[Partition]) -> list[Partition]:
    """The partitions of topics of which no partition has an offset."""
    started = {partition.topic for partition in stored}
    return [partition for partition in partitions if partition.topic not in started]


def _topics_of(partitions: Iterable[Partition]) -> list[str]:
    return sorted({partition.topic for partition in partitions})


def _where_to_start(group_id: str, topics: Sequence[str]) -> str:
    return (
        f"group {group_id!r} has no committed offsets for {', '.join(topics)}, and nothing says where to start. "
        "Fix, once: --start earliest (all input) or --start latest (only new input). It is not a setting to keep: if "
        "the group's offsets expire (7 days without members), it would be applied again, and 'earliest' would then "
        "process all input a second time"
    )
