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

MOST_QUEUED = 90_000  # of the 100,000 that librdkafka's queue takes, with room for what is consumed at once


def by_columns(change: Callable[[Value], Value] | None = None) -> Write:
    """Write what a batch function returns, with each value through ``change``; the queue has room for what is consumed at once."""

    def function(topic: str, batch: InputBatch) -> OutputBatch:
        values = batch.values if change is None else [change(value) for value in batch.values]
        return OutputBatch(topic, values, batch.keys)

    def write(producer: Producer, topic: str, messages: Sequence[Message]) -> None:
        for message in messages:
            if message.error() is not None:
                raise KafkaException(message.error())
        output = function(topic, InputBatch(messages)).copied()  # type: ignore[arg-type] # consumed
        while len(producer) > MOST_QUEUED:
            producer.poll(0.01)
        deque(map(producer.produce, repeat(topic), output.values, output.keys or ()), maxlen=0)

    return write


if __name__ == "__main__":
    copy(consumer_settings=TUNED, write=by_columns())
