"""Produces records outside of any transaction: the input of tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from eos.calls import Call
from eos.errors import DeliveryError, UnavailableError
from eos.kafka.classify import classify_consumer, classify_delivery
from eos.records import OutputRecord

DeliveryReport = Callable[[KafkaError | None, Message], None]

_OPTIONS: Mapping[str, Any] = {
    "log_level": 0,  # what goes wrong is raised
    "enable.idempotence": True,  # neither lost nor doubled nor turned around by a retry
    "partitioner": "murmur2_random",  # keys go where Java clients put them
    "sticky.partitioning.linger.ms": 0,  # records without a key are spread, not heaped on the partition of the moment
}
_FULL_QUEUE_WAIT_S = 0.1


def produce_plain(
    config: Mapping[str, Any], records: Iterable[OutputRecord], *, timeout_s: float = 30.0
) -> int:
    """Produce records in order, and wait until the brokers have all of them.

    Args:
        config: librdkafka's options.
        records: what to produce. Keys decide as in Java clients; records without one are spread over the partitions.
        timeout_s: for all of it.

    Returns:
        How many there were.

    Raises:
        DeliveryError: a record was refused.
        UnavailableError: not all were delivered in time.
    """
    deadline = time.monotonic() + timeout_s
    failures: list[tuple[str, KafkaError]] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failures.append((str(message.topic()), error))

    producer = Producer({**_OPTIONS, **config})
    try:
        # Idempotence asks for a producer id at once, and again only after 500 ms if no broker is connected yet.
        producer.list_topics(timeout=timeout_s)
    except KafkaException as error:
        raise classify_consumer(Call.METADATA, error.args[0]) from error
    count = 0
    for record in records:
        _produce(producer, record, delivered, deadline)
        count += 1
        producer.poll(0)
    undelivered = producer.flush(max(0.0, deadline - time.monotonic()))
    if failures:
        topic, cause = failures[0]
        raise classify_delivery(cause, topic=topic) or DeliveryError(f"{topic}: {cause.str()}")
    if undelivered:
        raise UnavailableError(f"{undelivered} of {count} records were not delivered in {timeout_s:g} s")
    return count


def _produce(producer: Producer, record: OutputRecord, delivered: DeliveryReport, deadline: float) -> None:
    topic, value, key, headers, timestamp_ms, partition = record
    given: dict[str, Any] = {} if timestamp_ms is None else {"timestamp": timestamp_ms}
    if partition is not None:
        given["partition"] = partition
    while True:
        try:
            producer.produce(topic, value, key, headers=list(headers), on_delivery=delivered, **given)
        except BufferError:
            if time.monotonic() >= deadline:
                raise UnavailableError(f"{topic}: the queue of records to send stays full") from None
            producer.poll(_FULL_QUEUE_WAIT_S)
        except KafkaException as error:
            cause = error.args[0]
            raise classify_delivery(cause, topic=topic) or DeliveryError(f"{topic}: {cause.str()}") from error
        else:
            return
