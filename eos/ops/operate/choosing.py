"""Choosing offsets: from a place that an operator names, or from another group; and shown to be in the logs of now."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from eos.errors import ConfigError, RetriableError, UnavailableError
from eos.group.committed import committed_offsets, fresh_reader, offsets_at, partitions_of
from eos.group.topics import TopicIds, stored_topic_ids
from eos.guards.truncated import epochs_before, refuse_truncated
from eos.identity import Identity
from eos.kafka.admin import Mark
from eos.kafka.group_offsets import Committed, stored_positions
from eos.offsets import OffsetVector, Partition
from eos.ops.operate.places import Place, narrowed, offsets_of
from eos.ops.operate.positions import Positions
from eos.settings import Settings

_EPOCHS_S = 5.0


def chosen(settings: Settings, target: Identity, place: Place, only: Sequence[str] = ()) -> OffsetVector:
    """The offsets that a place is, in the partitions that it names, or in all of the job's.

    Args:
        settings: how to reach the cluster.
        target: the job.
        place: where to.
        only: topics, or partitions (``topic:number``), if not all.

    Raises:
        ConfigError: an input does not exist, or a partition is named that is no input of the job.
        OffsetGapError: the place is of a topic that was deleted since, or of a log that was truncated.
    """
    partitions = narrowed(all_partitions(settings, target.group, target.inputs), only)
    ids = TopicIds(settings).of(target.inputs, timeout_s=settings.open_timeout_s)  # before the offsets
    if isinstance(place, OffsetVector):
        refuse_unknown(settings, target, place)
    return _in_these_logs(settings, target, offsets_of(settings, place, partitions), ids)


def copied(
    settings: Settings, target: Identity, positions: Positions, source: str, only: Sequence[str] = ()
) -> OffsetVector:
    """The offsets that another group has stored in the job's input.

    Raises:
        ConfigError: it has none, or access was refused.
        OffsetGapError: it has committed them in a topic that was deleted since, or in a log that was truncated.
    """
    every = all_partitions(settings, target.group, target.inputs)
    ids = TopicIds(settings).of(target.inputs, timeout_s=settings.open_timeout_s)
    stored = positions.of_group(source, narrowed(every, only))
    if not stored:
        raise ConfigError(f"the group {source!r} has no committed offsets of {', '.join(target.inputs)}")
    refuse_recreated(settings, stored_topic_ids(stored), ids)
    return _in_these_logs(settings, target, stored_positions(stored), ids)


def all_partitions(settings: Settings, group: str, topics: Sequence[str]) -> list[Partition]:
    """Every partition of these topics; a missing one is a ConfigError."""
    with fresh_reader(settings, group, stable=False) as reader:
        return partitions_of(reader, topics, timeout_s=settings.open_timeout_s)


def stored_of(
    settings: Settings, group: str, partitions: Collection[Partition]
) -> dict[Partition, Committed]:
    """What a group has stored, whoever has; once no transaction is pending on it."""
    with fresh_reader(settings, group, stable=True) as reader:
        return committed_offsets(reader, partitions, timeout_s=settings.open_timeout_s)


def refuse_unknown(settings: Settings, target: Identity, named: Iterable[Partition]) -> None:
    """Refuse a partition that is no input of the job: a ConfigError."""
    known = all_partitions(settings, target.group, target.inputs)
    if unknown := sorted(set(named) - set(known)):
        raise ConfigError(
            f"{unknown[0]} is no input partition of {target.app!r}. Its inputs: "
            + ", ".join(
                f"{topic} ({sum(p.topic == topic for p in known)} partitions)" for topic in target.inputs
            )
        )


def refuse_recreated(
    settings: Settings, expected: Collection[tuple[str, str]], ids: Mapping[str, str]
) -> None:
    """Refuse offsets of a topic that was deleted and created anew.

    Args:
        settings: how to reach the cluster.
        expected: (topic, id) when the offsets were committed or read.
        ids: that were asked for just now.

    Raises:
        OffsetGapError: names the topic.
        UnavailableError: brokers tell different ids of it.
    """
    try:
        TopicIds(settings).refuse_recreated(expected, ids, timeout_s=settings.open_timeout_s)
    except RetriableError as error:
        raise UnavailableError(str(error)) from error


# --- inside ----------------------------------------------------------------------------------------------


def _in_these_logs(
    settings: Settings, target: Identity, offsets: OffsetVector, ids: Mapping[str, str]
) -> OffsetVector:
    """The offsets with all that names their logs, once the logs are shown to hold them."""
    if not offsets:
        raise ConfigError(
            "no partition is left to set. Fix: name partitions of the job's input that have an offset"
        )
    refuse_recreated(settings, offsets.topic_ids.items(), ids)
    starts, ends, highs = (
        offsets_at(settings, mark, offsets) for mark in (Mark.START, Mark.LAST_STABLE, Mark.HIGH_WATERMARK)
    )
    for partition, offset in sorted(offsets.items()):
        if not starts[partition] <= offset <= ends[partition]:
            held = ""
            if ends[partition] < offset <= highs[partition]:
                held = f". What is behind {ends[partition]} is held back by an open transaction"
            raise ConfigError(
                f"{partition}: {offset} is not in the log, which a reader can take up at {starts[partition]} to "
                f"{ends[partition]}{held}"
            )
    refuse_truncated(settings, target.group, offsets, timeout_s=settings.open_timeout_s)
    epochs = {p: epoch for p in offsets if (epoch := offsets.epoch_of(p)) is not None}
    rest = {p: offset for p, offset in offsets.items() if p not in epochs}
    epochs |= epochs_before(settings, target.group, rest, timeout_s=_EPOCHS_S) if rest else {}
    return OffsetVector(dict(offsets), epochs, ids)
