"""Contender b-record: the tuned raw loop through a function of one record, which returns a list of output records.

It holds no guarantee beyond that of the raw loop and does nothing else: what is slower here is the price of such a function
in Python, whatever calls it.
"""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import KafkaException, Message, Producer

from bench.contenders.raw_loop import copy
from bench.contenders.raw_tuned import TUNED
from eos import OutputRecord


def write(producer: Producer, topic: str, messages: Sequence[Message]) -> None:
    """Write what the function returns for each message."""

    def function(message: Message) -> list[OutputRecord]:
        return [OutputRecord(topic, message.value(), message.key())]

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


if __name__ == "__main__":
    copy(consumer_settings=TUNED, write=write)
