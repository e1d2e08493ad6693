"""Contender b-batch: the tuned raw loop through a batch function, with columns as eos makes and checks them, and nothing else.

What eos may cost beyond it is what keeps the guarantee.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat

from confluent_kafka import KafkaException, Message, Producer

from bench.contenders.raw_loop import Value, Write, copy
from bench.contenders.raw_tuned import TUNED
from eos.records import InputBatch, OutputBatch

QUEUE = 100_000  # records that librdkafka's takes


def by_columns(change: Callable[[Value], Value] | None = None) -> Write:
    """Write what a batch function returns, with each value through ``change``."""

    def function(topic: str, batch: InputBatch) -> OutputBatch:
        values = batch.values if change is None else [change(value) for value in batch.values]
        return OutputBatch(topic, values, batch.keys)

    def write(producer: Producer, topic: str, messages: Sequence[Message]) -> None:
        for message in messages:
            if message.error() is not None:
                raise KafkaException(message.error())
        output = function(topic, InputBatch(messages)).copied()  # type: ignore[arg-type] # consumed
        produce_columns(producer, topic, output.values, output.keys or ())

    return write


def produce_columns(
    producer: Producer, topic: str, values: Sequence[Value], keys: Sequence[bytes | None]
) -> None:
    """Queue records by column, once there is room for all of them."""
    while len(producer) > QUEUE - len(values):
        producer.poll(0.01)
    deque(map(producer.produce, repeat(topic), values, keys), maxlen=0)


if __name__ == "__main__":
    copy(consumer_settings=TUNED, write=by_columns())
