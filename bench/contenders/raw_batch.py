"""Contender b-batch: the tuned raw loop through a batch function, with columns as eos makes and checks them, and nothing else.

What eos may cost beyond it is what keeps the guarantee.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import repeat

from confluent_kafka import KafkaException, Message, Producer

from bench.contenders.raw_loop import copy
from bench.contenders.raw_tuned import TUNED
from eos.records import InputBatch, OutputBatch

MOST_QUEUED = 90_000  # of the 100,000 that librdkafka's queue takes, with room for what is consumed at once


def write(producer: Producer, topic: str, messages: Sequence[Message]) -> None:
    """Write what the function returns; the queue has room for what is consumed at once."""
    for message in messages:
        if message.error() is not None:
            raise KafkaException(message.error())
    batch = InputBatch(messages)  # type: ignore[arg-type] # consumed
    output = OutputBatch(topic, batch.values, batch.keys).copied()
    while len(producer) > MOST_QUEUED:
        producer.poll(0.01)
    deque(map(producer.produce, repeat(topic), output.values, output.keys or ()), maxlen=0)


if __name__ == "__main__":
    copy(consumer_settings=TUNED, write=write)
