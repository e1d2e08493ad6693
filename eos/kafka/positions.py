"""Partitions, offsets and leader epochs as librdkafka has them (TopicPartition), and as eos has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import TopicPartition

from eos.offsets import OffsetVector, Partition


def metadata_of(found: TopicPartition) -> str:
    """What was stored with an offset; "" where that cannot be read.

    librdkafka hands metadata on without its length's end, and confluent-kafka reads on behind it, up to the next zero (read in
    the sources of 2.16: rd_kafka_topic_partition_list_update, TopicPartition_setup). What this client commits ends in one; what
    another one has committed may come with bytes behind it that are no text.
    """
    try:
        return found.metadata or ""
    except UnicodeDecodeError:
        return ""


def as_partitions(found: Iterable[TopicPartition]) -> list[Partition]:
    """Without their offsets."""
    return [Partition(one.topic, one.partition) for one in found]


def bare(partitions: Iterable[Partition]) -> list[TopicPartition]:
    """For librdkafka, without offsets."""
    return [TopicPartition(p.topic, p.number) for p in partitions]


def with_offsets(positions: OffsetVector) -> list[TopicPartition]:
    """For librdkafka, with offsets and their epochs."""
    return [
        TopicPartition(p.topic, p.number, offset, leader_epoch=epoch_or_none(positions.epoch_of(p)))
        for p, offset in positions.items()
    ]


def epoch_or_none(epoch: int | None) -> int:
    """A leader epoch for librdkafka, where -1 stands for none."""
    return -1 if epoch is None else epoch


def epoch_of(found: Any) -> int | None:
    """The leader epoch of an answer."""
    epoch: int | None = found.leader_epoch
    return None if epoch is None or epoch < 0 else epoch


def positions_of(
    answers: Mapping[Partition, Any], topic_ids: Mapping[str, str] | None = None
) -> OffsetVector:
    """Offsets and epochs of answers; those without an offset are left out."""
    known = {p: one for p, one in answers.items() if one.offset >= 0}
    epochs = {p: epoch for p, one in known.items() if (epoch := epoch_of(one)) is not None}
    return OffsetVector({p: one.offset for p, one in known.items()}, epochs, topic_ids)


def as_java_writes(topic_id: object) -> str:
    """A topic's id in Java's form, or "" where it has none. librdkafka writes plain base64, Java its URL-safe form; zeros are no id."""
    text = "" if topic_id is None else str(topic_id).rstrip("=").replace("+", "-").replace("/", "_")
    return text if text.strip("A") else ""
