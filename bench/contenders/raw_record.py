"""Contender b-record: the tuned raw loop through a function of one record, which returns a list of output records.

It holds no guarantee beyond that of the raw loop and does nothing else: what is slower here is the price of such a function
in Python, whatever calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from confluent_kafka import KafkaException, Message, Producer

from bench.contenders.raw_loop import Value, Write, copy
from bench.contenders.raw_tuned import TUNED
from eos import OutputRecord


def one_by_one(change: Callable[[Value], Value] | None = None) -> Write:
    """Write what such a function returns for each message, with its value through ``change``."""

    def write(producer: Producer, topic: str, messages: Sequence[Message]) -> None:
        def function(message: Message) -> list[OutputRecord]:
            value = message.value() if change is None else change(message.value())
            return [OutputRecord(topic, value, message.key())]

        for message in messages:
            if message.error() is not None:
                raise KafkaException(message.error())
            for record in function(message):
                while True:
                    try:
                        producer.produce(record.topic, record.value, record.key)
                        break
                    except BufferError:
                        producer.poll(0.01)

    return write


if __name__ == "__main__":
    copy(consumer_settings=TUNED, write=one_by_one())
