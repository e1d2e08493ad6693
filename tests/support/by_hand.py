"""Transactions of a plain producer, which places keys as eos does: for outputs that are right, or damaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, Producer, TopicPartition

from eos.offsets import Partition
from eos.records import OutputRecord
from tests.support.observer import unique
from tests.support.patience import PATIENCE_S

_WAIT_S = PATIENCE_S


def producer(bootstrap: str) -> Producer:
    """A transactional producer, initialised."""
    made = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": unique("by-hand"),
            "partitioner": "murmur2_random",
            "log_level": 0,
        }
    )
    made.init_transactions(_WAIT_S)
    return made


def write(to: Producer, outputs: Sequence[OutputRecord]) -> None:
    """Outputs where they say, or where their keys belong."""
    for out in outputs:
        to.produce(
            out.topic,
            out.value,
            out.key,
            -1 if out.partition is None else out.partition,
            timestamp=out.timestamp_ms or 0,
            headers=list(out.headers),
        )
    to.flush(_WAIT_S)


def send_offsets(
    to: Producer, bootstrap: str, group: str, offsets: Mapping[Partition, int], metadata: str = ""
) -> None:
    """Offsets of a group, in the open transaction."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    positions = [TopicPartition(*partition, offset, metadata) for partition, offset in offsets.items()]
    to.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), _WAIT_S)
    consumer.close()
