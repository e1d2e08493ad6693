"""Creates, fills and empties topics, on clusters that are ours to shape: the local one and those of tests. Jobs never do."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import ElectionType, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # documented, the package only lacks __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)
from confluent_kafka.cimpl import NewPartitions, NewTopic

from eos.base.calls import Call
from eos.base.deadline import Deadline
from eos.base.threads import made_beside
from eos.errors import AbortableError, UnavailableError
from eos.kafka.classify import classify_consumer, classify_delivery
from eos.kafka.config import MAX_MESSAGE_BYTES, QUICKLY
from eos.offsets import Partition
from eos.records import OutputRecord

_POLL_S = 0.05
_ASK_S = 10.0
_GRACE_S = 1.0  # that an answer may take beyond its question's own timeout, which it then reports itself
_NO_ANSWER = {KafkaError._TRANSPORT, KafkaError._TIMED_OUT}
_NOT_IN_SYNC = {KafkaError.PREFERRED_LEADER_NOT_AVAILABLE, KafkaError.ELIGIBLE_LEADERS_NOT_AVAILABLE}
_DeliveryReport = Callable[[KafkaError | None, Message], None]

_PRODUCER_OPTIONS: Mapping[str, Any] = {
    "log_level": 0,  # what goes wrong is raised
    "enable.idempotence": True,  # neither lost nor doubled nor turned around by a retry …
    "max.in.flight.requests.per.connection": 1,  # … which it takes too: see eos.kafka.implicit_acks
    "message.max.bytes": MAX_MESSAGE_BYTES,
    "partitioner": "murmur2_random",  # keys go where Java clients put them
    "sticky.partitioning.linger.ms": 0,  # records without a key are spread, not heaped on the partition of the moment
}
_FULL_QUEUE_WAIT_S = 0.1


def create_topics(
    config: Mapping[str, Any], topics: Mapping[str, int], *, replicas: int = 1, timeout_s: float = 30.0
) -> list[str]:
    """Create those of these topics (name to partitions) that are missing, and wait until every partition has a leader.

    Returns:
        The names of the topics that were created.

    Raises:
        UnavailableError: no leader, or no answer, in ``timeout_s``.
        EosError: what the cluster answered.
    """
    deadline = Deadline(timeout_s)
    wanted = [NewTopic(name, count, replicas) for name, count in topics.items()]
    answers = _answers(
        config, lambda client, slice_s: client.create_topics(wanted, request_timeout=slice_s), deadline
    )
    _raise_other_than({KafkaError.TOPIC_ALREADY_EXISTS}, answers)
    created = [name for name, error in answers.items() if error is None]
    client = _client(config)
    while not _all_led(client, {name: topics[name] if name in created else 1 for name in topics}, deadline):
        if deadline.passed:
            raise UnavailableError(
                f"{', '.join(topics)}: some partitions have no leader after {timeout_s:.0f} s"
            )
        time.sleep(_POLL_S)
    return created


def delete_topics(config: Mapping[str, Any], topics: Iterable[str], *, timeout_s: float = 30.0) -> None:
    """Delete topics with their records, and wait until the cluster knows them no more.

    Raises:
        UnavailableError: they are still there after ``timeout_s``.
        EosError: what the cluster answered.
    """
    deadline = Deadline(timeout_s)
    names = set(topics)
    answers = _answers(
        config, lambda client, slice_s: client.delete_topics(sorted(names), request_timeout=slice_s), deadline
    )
    _raise_other_than({KafkaError.UNKNOWN_TOPIC_OR_PART}, answers)
    client = _client(config)
    while names & _known(client, deadline).keys():
        if deadline.passed:
            raise UnavailableError(f"{', '.join(sorted(names))}: still there after {timeout_s:.0f} s")
        time.sleep(_POLL_S)


def add_partitions(
    config: Mapping[str, Any], topic: str, partitions: int, *, timeout_s: float = 30.0
) -> None:
    """Let a topic have so many partitions, and wait until each has a leader.

    Raises:
        UnavailableError: no leader, or no answer, in ``timeout_s``.
        EosError: what the cluster answered.
    """
    deadline = Deadline(timeout_s)
    client = _client(config)
    (future,) = client.create_partitions(
        [NewPartitions(topic, partitions)], request_timeout=timeout_s
    ).values()
    try:
        future.result(timeout_s)
    except KafkaException as error:
        raise classify_consumer(Call.METADATA, error.args[0]) from error
    while not _all_led(client, {topic: partitions}, deadline):
        if deadline.passed:
            raise UnavailableError(f"{topic}: a new partition has no leader after {timeout_s:.0f} s")
        time.sleep(_POLL_S)


def delete_records(
    config: Mapping[str, Any], until: Mapping[Partition, int], *, timeout_s: float = 30.0
) -> None:
    """Delete the records in front of these offsets.

    Raises:
        EosError: what the cluster answered.
    """
    wanted = [TopicPartition(*partition, offset) for partition, offset in until.items()]
    client = _client(config)  # which has to live as long as the question
    for future in client.delete_records(wanted, request_timeout=timeout_s).values():
        try:
            future.result(timeout_s)
        except KafkaException as error:
            raise classify_consumer(Call.METADATA, error.args[0]) from error


def configure_topic(
    config: Mapping[str, Any], topic: str, entries: Mapping[str, str | None], *, timeout_s: float = 30.0
) -> None:
    """Give configuration entries of a topic other values; None: the default again.

    Raises:
        UnavailableError: no answer in ``timeout_s``.
        EosError: what the cluster answered.
    """
    changes = [
        ConfigEntry(
            name,
            value,
            incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
        )
        for name, value in entries.items()
    ]
    wanted = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=changes)
    client = _client(config)
    (future,) = client.incremental_alter_configs([wanted], request_timeout=timeout_s).values()
    try:
        future.result(timeout_s)
    except KafkaException as error:
        raise classify_consumer(Call.METADATA, error.args[0]) from error
    except TimeoutError as error:
        raise UnavailableError(f"{topic} was not configured in {timeout_s:g} s") from error


def elect_preferred_leaders(config: Mapping[str, Any], *, timeout_s: float = 30.0) -> int:
    """Let each partition, Kafka's own too, be led by the first of its replicas; returns how many leaders have moved.

    Raises:
        UnavailableError: no answer in ``timeout_s``.
        EosError: what the cluster answered.
    """
    deadline, moved = Deadline(timeout_s), 0
    client = _client(config)
    while True:
        try:
            # Without its own timeout: confluent-kafka takes none by keyword (a comma is missing in its list; tests/canaries).
            elected = client.elect_leaders(ElectionType.PREFERRED).result(timeout_s)
        except KafkaException as error:
            raise classify_consumer(Call.METADATA, error.args[0]) from error
        except TimeoutError as error:
            raise UnavailableError(f"leaders were not elected in {timeout_s:g} s") from error
        moved += sum(1 for failed in elected.values() if failed is None)
        # A replica that is still catching up cannot lead yet.
        waiting = [one for one in elected.values() if one and one.code() in _NOT_IN_SYNC]
        if not waiting or deadline.passed:
            return moved
        time.sleep(_POLL_S)


def existing_topics(config: Mapping[str, Any], *, timeout_s: float = 30.0) -> list[str]:
    """The names of all topics but Kafka's own.

    Raises:
        EosError: what the cluster answered.
    """
    known = _known(_client(config), Deadline(timeout_s))
    return sorted(name for name in known if not name.startswith("__"))


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
        AbortableError: a record was not delivered.
        UnavailableError: not all were delivered in time.
    """
    deadline = Deadline(timeout_s)
    failures: list[tuple[str, KafkaError]] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failures.append((str(message.topic()), error))

    producer = made_beside(lambda: Producer({**_PRODUCER_OPTIONS, **config}))
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
    undelivered = producer.flush(deadline.left_s)
    if failures:
        topic, cause = failures[0]
        raise classify_delivery(cause, topic=topic) or AbortableError(f"{topic}: {cause.str()}")
    if undelivered:
        raise UnavailableError(f"{undelivered} of {count} records were not delivered in {timeout_s:g} s")
    return count


def _answers(
    config: Mapping[str, Any],
    ask: Callable[[AdminClient, float], Mapping[str, Future[Any]]],
    deadline: Deadline,
) -> dict[str, KafkaError | None]:
    """Per name what the cluster answered. Without an answer another client asks: one that has found no controller may never look again."""
    answers: dict[str, KafkaError | None] = {}
    while True:
        client, slice_s = _client(config), max(0.1, min(_ASK_S, deadline.left_s))
        for name, future in ask(client, slice_s).items():
            if name in answers and answers[name] is None:
                continue
            try:
                future.result(slice_s + _GRACE_S)
                answers[name] = None
            except KafkaException as error:
                answers[name] = error.args[0]
            except TimeoutError:
                answers[name] = KafkaError(KafkaError._TIMED_OUT)
        if deadline.passed or not any(error and error.code() in _NO_ANSWER for error in answers.values()):
            return answers


def _raise_other_than(expected: Collection[int], answers: Mapping[str, KafkaError | None]) -> None:
    for error in answers.values():
        if error is not None and error.code() not in expected:
            raise classify_consumer(Call.METADATA, error)


def _client(config: Mapping[str, Any]) -> AdminClient:
    return made_beside(lambda: AdminClient({"log_level": 0, **QUICKLY, **config}))


def _all_led(client: AdminClient, topics: Mapping[str, int], deadline: Deadline) -> bool:
    found = _known(client, deadline)
    return all(
        name in found
        and len(found[name].partitions) >= count
        and all(partition.leader >= 0 for partition in found[name].partitions.values())
        for name, count in topics.items()
    )


def _known(client: AdminClient, deadline: Deadline) -> Mapping[str, Any]:
    try:
        return client.list_topics(timeout=max(0.1, deadline.left_s)).topics or {}
    except KafkaException as error:
        raise classify_consumer(Call.METADATA, error.args[0]) from error


def _produce(
    producer: Producer, record: OutputRecord, delivered: _DeliveryReport, deadline: Deadline
) -> None:
    topic = record.topic
    given: dict[str, Any] = {} if record.timestamp_ms is None else {"timestamp": record.timestamp_ms}
    if record.partition is not None:
        given["partition"] = record.partition
    while True:
        try:
            producer.produce(
                topic, record.value, record.key, headers=list(record.headers), on_delivery=delivered, **given
            )
        except BufferError:
            if deadline.passed:
                raise UnavailableError(f"{topic}: the queue of records to send stays full") from None
            producer.poll(_FULL_QUEUE_WAIT_S)
        except KafkaException as error:
            cause = error.args[0]
            raise classify_delivery(cause, topic=topic) or AbortableError(
                f"{topic}: {cause.str()}"
            ) from error
        else:
            return
