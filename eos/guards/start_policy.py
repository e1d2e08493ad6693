"""The start policy: where a group that has no offsets yet begins, applied once and committed before any read."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from eos import retry
from eos.base.calls import Call
from eos.base.commands import suggested
from eos.base.deadline import Deadline
from eos.core.producer import ShardProducer
from eos.core.surroundings import Entered
from eos.errors import (
    AbortableError,
    ConfigError,
    FencedError,
    RebalancedError,
    ReopenError,
    RetriableError,
)
from eos.group.committed import OffsetStore, committed_offsets, offsets_at, partitions_of
from eos.group.expiry import count_started
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.group.topics import TopicIds, stored_topic_ids
from eos.guards.adoption import Adoption
from eos.guards.expired import refuse_expired
from eos.guards.seen import SeenOffsets
from eos.kafka.admin import Mark
from eos.kafka.consumer import ConsumerClient
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition
from eos.settings import Settings
from eos.shards import StartShard

OnFirstOffsets = Callable[[OffsetVector], object]

RefuseMissing = Callable[[Settings, Iterable[Partition], Mapping[Partition, Committed], str], None]


class CommitFirst(Protocol):
    """Commits the first offsets of partitions whose topics have none, unless another instance has done so meanwhile."""

    def __call__(
        self,
        partitions: Sequence[Partition],
        settings: Settings,
        reader: ConsumerClient,
        *,
        app: str,
        mode: OwnershipMode,
        on_first_offsets: OnFirstOffsets,
    ) -> None: ...


_MAX_DOUBLINGS = 4  # of the pause between two tries
_draw = random.SystemRandom()  # a job may seed Python's own, and all its instances would wait alike


def apply_start_policy(
    settings: Settings,
    topics: Sequence[str],
    reader: ConsumerClient,
    *,
    app: str,
    mode: OwnershipMode,
    on_first_offsets: OnFirstOffsets,
    own: Collection[Partition] | None = None,
    store: OffsetStore | None = None,
    commit_first: CommitFirst | None = None,
    refuse_missing: RefuseMissing = refuse_expired,
    on_adopted: OnFirstOffsets = lambda _: None,
) -> Entered:
    """Give every input topic without any committed offset its first ones, and return all committed offsets.

    All partitions of a topic get their offset in one transaction, under a transactional.id that only this
    step uses: two instances that start at once cannot both apply it, and a crash cannot apply it again. That
    is why it is not the consumer's auto.offset.reset, which would be applied anew after every crash before
    the first commit, and again when the group's offsets have expired.

    The offset metadata has the app and the mode of ownership. Of two instances that start a group at once in two modes, which
    would not fence each other later, one is refused: this id is the same in every mode.

    Args:
        settings: how to reach the cluster, and the policy.
        topics: the input topics.
        reader: a client of the group.
        app: the first part of the transactional.id.
        mode: how the caller owns its input.
        on_first_offsets: called with the first offsets, if this call commits them.
        own: the partitions that the caller will read; all of them if not given.
        store: where the committed offsets are; by default the reader's group.
        commit_first: how they are committed there.
        refuse_missing: refuses partitions whose committed offset was there, and is gone.
        on_adopted: called with another program's offsets, if settings adopt them and this call commits them again.

    Returns:
        The topics' partitions, and what the group has stored for them; those without an offset are left out there
        (they are new to a topic that was started before, and begin at their beginning).

    Raises:
        ConfigError: the policy is ``fail`` and a topic has no offsets, the offset of an own partition has expired, or
            a topic does not exist.
        OffsetGapError: a topic was deleted and created anew since its offsets were committed.
        UnavailableError: the cluster did not answer in time, or other instances came in between until then.
    """
    deadline = Deadline(settings.open_timeout_s)
    tries = 0
    seen = SeenOffsets(settings, reader.group_id)
    adoption = Adoption(settings, reader, own, app=app, mode=mode, on_adopted=on_adopted)
    commit = commit_first or commit_to_the_group

    def look() -> Entered:
        partitions, stored = _stored(settings, topics, reader, reader if store is None else store)
        seen.compare(partitions, stored)
        return Entered(partitions, stored)

    def once(_timeout_s: float) -> Entered:
        nonlocal tries
        partitions, stored = adoption.settled(look)
        refuse_missing(settings, partitions if own is None else own, stored, reader.group_id)
        missing, others = _not_started(partitions, stored), adoption.left_in(stored)
        if not missing and not others:
            return Entered(partitions, stored)
        if missing and settings.input.start == "fail":
            raise ConfigError(_where_to_start(reader.group_id, _topics_of(missing)))
        began = time.monotonic()
        try:
            if others:
                adoption.adopt(others)
            if missing:
                commit(missing, settings, reader, app=app, mode=mode, on_first_offsets=on_first_offsets)
            partitions, stored = look()
        except (FencedError, AbortableError, ReopenError) as error:
            # The next try reads what is stored. If another instance came in between: instances that start at once fence
            # each other in turn, until one is undisturbed for as long as a try takes.
            tries += 1
            if not retry.is_given_up():
                time.sleep(_pause_s(tries, time.monotonic() - began, deadline))
            raise RetriableError(
                f"group {reader.group_id!r}: the start policy could not be applied ({error})", code=error.code
            ) from error
        if _not_started(partitions, stored) or adoption.left_in(stored):
            raise RetriableError(f"group {reader.group_id!r}: the first offsets are not visible yet")
        return Entered(partitions, stored)

    return retry.resume(Call.COMMITTED, once, deadline=deadline)


def _pause_s(tries: int, took_s: float, deadline: Deadline) -> float:
    """Seconds to wait for other instances: the duration of a try, and a growing random part that spreads them.

    The waits of the retry policy, a second at most, are short against a try on a busy machine: six instances whose tries
    took 1.5 s did not come to an end in 75 s.
    """
    pause_s = took_s * (1 + _draw.uniform(0, 2 ** min(tries, _MAX_DOUBLINGS)))
    return min(pause_s, deadline.left_s)


def preview_start_policy(settings: Settings, topics: Sequence[str], reader: ConsumerClient) -> Entered:
    """What `apply_start_policy` would return now; nothing is committed.

    Raises:
        ConfigError: the policy is ``fail`` and a topic has no offsets, or a topic does not exist.
        UnavailableError: the cluster did not answer in time.
    """
    partitions, stored = _stored(settings, topics, reader, reader)
    refuse_expired(settings, partitions, stored, reader.group_id)
    missing = _not_started(partitions, stored)
    if missing and settings.input.start == "fail":
        raise ConfigError(_where_to_start(reader.group_id, _topics_of(missing)))
    would_be = str(OffsetMetadata(OwnershipMode.START, "start"))
    first = {p: Committed(offset, would_be) for p, offset in first_offsets(missing, settings).items()}
    return Entered(partitions, stored | first)


def commit_to_the_group(
    partitions: Sequence[Partition],
    settings: Settings,
    reader: ConsumerClient,
    *,
    app: str,
    mode: OwnershipMode,
    on_first_offsets: OnFirstOffsets,
) -> None:
    """In a transaction of Kafka, under an id that only this step uses."""
    shard = StartShard(app, reader.group_id)
    metadata = OffsetMetadata(mode, str(shard))
    started = Counter(partition.topic for partition in partitions)  # once this is committed
    with ShardProducer(settings, shard, metadata=metadata, started_partitions=started) as producer:
        producer.give_up(retry.is_given_up)
        # The init above ended what an earlier instance left pending, so this read is final.
        _, stored = _stored(settings, _topics_of(partitions), reader, reader)
        missing = _not_started(partitions, stored)
        if not missing:
            return
        producer.ledger_of(reader.group_id).taken_over(dict.fromkeys(missing))  # nothing is stored for these
        positions = first_offsets(missing, settings)
        try:
            with producer.transaction() as txn:
                txn.add_offsets(positions, reader.group_metadata())  # of no member
        except RebalancedError as error:  # KIP-848 groups refuse offsets from outside while they have members
            raise ConfigError(
                f"group {reader.group_id!r} has live members, and they read no {_topics_of(missing)} yet. "
                "Fix: stop them all before the first start with a new input topic",
            ) from error
    on_first_offsets(positions)


def first_offsets(partitions: Sequence[Partition], settings: Settings) -> OffsetVector:
    """Where the policy lets these partitions begin, with the ids that their topics had before that was asked."""
    topic_ids = TopicIds(settings).of(set(_topics_of(partitions)), timeout_s=settings.open_timeout_s)
    mark = Mark.START if settings.input.start == "earliest" else Mark.LAST_STABLE
    # Without the leaders' epochs: no record was read.
    return OffsetVector(dict(offsets_at(settings, mark, partitions)), topic_ids=topic_ids)


def _stored(settings: Settings, topics: Sequence[str], reader: ConsumerClient, store: OffsetStore) -> Entered:
    partitions = partitions_of(reader, topics, timeout_s=settings.open_timeout_s)
    stored = committed_offsets(store, partitions, timeout_s=settings.open_timeout_s)
    if stored and (
        missing := [p for p in partitions if p not in stored]
    ):  # one answer may lack what the next has
        stored |= committed_offsets(store, missing, timeout_s=settings.open_timeout_s)
    if expected := stored_topic_ids(stored):
        ids, timeout_s = TopicIds(settings), settings.open_timeout_s
        ids.refuse_recreated(expected, ids.of(set(topics), timeout_s=timeout_s), timeout_s=timeout_s)
    listed = Counter(partition.topic for partition in partitions)
    for topic, started in count_started(stored).items():
        if listed[topic] < started:  # a broker whose metadata are behind; the rest would never be read
            raise RetriableError(
                f"topic {topic!r}: the broker that was asked knows {listed[topic]} partitions, and the group "
                f"{reader.group_id!r} has had offsets of {started}"
            )
    return Entered(partitions, stored)


def _not_started(partitions: Iterable[Partition], stored: Iterable[Partition]) -> list[Partition]:
    """The partitions of topics of which no partition has an offset."""
    started = {partition.topic for partition in stored}
    return [partition for partition in partitions if partition.topic not in started]


def _topics_of(partitions: Iterable[Partition]) -> list[str]:
    return sorted({partition.topic for partition in partitions})


def _where_to_start(group_id: str, topics: Sequence[str]) -> str:
    return (
        f"group {group_id!r} has no committed offsets for {', '.join(topics)}, and nothing says where to start. Fix, once, for a new job "
        "or a topic that was created anew: input.start = 'earliest' (all input; --start earliest) or 'latest' (only new input; --start "
        "latest). Where the group was deleted, or its offsets have expired (7 days without members), that would process input a second "
        f"time, or skip some: set them to what the output shows, with {suggested('offsets set', '--to', 'WHERE', job=True)}. Do not keep "
        "input.start: when the offsets expire, it would be applied again"
    )
