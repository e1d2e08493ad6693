"""The outside observer: reads topics and committed offsets with plain clients that know nothing of eos.

Every wait has a deadline in seconds and says on which partition it failed.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # documented, the package only lacks __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)
from confluent_kafka.cimpl import NewTopic

from eos.base.deadline import Deadline
from eos.testing import GuaranteeViolated
from tests.support.exactly_once import Comparison, SeenRecord, TopicPartitionKey, Transform, compare
from tests.support.patience import PATIENCE_S

__all__ = [
    "Comparison",
    "PlainRecord",
    "SeenRecord",
    "assert_copied",
    "assert_exactly_once",
    "broker_config",
    "committed_offsets",
    "create_topics",
    "load",
    "lso",
    "produce_plain",
    "read_committed",
    "read_uncommitted",
    "unique",
    "watermarks",
]

_POLL_S = 0.2
_CONSUME_S = 0.01  # consume(n) waits this long for its n-th message, however many are there
_ASK_S = 5.0  # one question to the cluster
_SETTLE_STEP_S = 0.02
_ASK_OFFSETS_AGAIN = {
    KafkaError._TIMED_OUT,  # what unstable offsets come back as
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,  # also while the first group ever makes the broker create __consumer_offsets
}
_LEADER_MOVES = {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE}
_ANY_PARTITION = -1
_READ_COMMITTED = "read_committed"
_READ_UNCOMMITTED = "read_uncommitted"


class PlainRecord(NamedTuple):
    """A record for ``produce_plain``; without a partition the key decides as in Java clients (murmur2)."""

    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def unique(name: str) -> str:
    """A topic, group or transactional id that no other test uses."""
    return f"{name}-{uuid.uuid4().hex[:8]}"


def create_topics(
    bootstrap: str,
    topics: Mapping[str, int],
    rf: int = 1,
    config: Mapping[str, str] | None = None,
    *,
    timeout_s: float = PATIENCE_S,
) -> None:
    """Create topics (name: number of partitions) and wait until every partition has a leader."""
    deadline = Deadline(timeout_s)
    admin = AdminClient(_client(bootstrap))
    new = [NewTopic(name, count, rf, config=dict(config or {})) for name, count in topics.items()]
    for created in admin.create_topics(new, operation_timeout=timeout_s).values():
        created.result(deadline.left_s)
    for name, count in topics.items():
        while not _has_leaders(admin, name, count):
            _step(deadline, f"{name}: not every one of its {count} partitions has a leader")


def delete_topic(bootstrap: str, topic: str, *, timeout_s: float = PATIENCE_S) -> None:
    """Delete a topic and wait until it is gone."""
    deadline = Deadline(timeout_s)
    admin = AdminClient(_client(bootstrap))
    admin.delete_topics([topic])[topic].result(timeout_s)
    while topic in admin.list_topics(timeout=timeout_s).topics:
        _step(deadline, f"{topic}: it was deleted, and is still there")


def recreate_topic(bootstrap: str, topic: str, partitions: int = 1, *, gap_s: float = 0.0) -> None:
    """Delete a topic and create it anew; ``gap_s``: the accident itself, for how long the topic is not there."""
    delete_topic(bootstrap, topic)
    time.sleep(gap_s)
    create_topics(bootstrap, {topic: partitions})


def delete_groups(bootstrap: str, *groups: str, timeout_s: float = PATIENCE_S) -> None:
    """Delete groups without members, with their offsets."""
    admin = AdminClient(_client(bootstrap))  # a client that is dropped meanwhile answers nothing
    for deleted in admin.delete_consumer_groups(list(groups)).values():
        deleted.result(timeout_s)


def alter_offsets(
    bootstrap: str, group: str, offsets: Mapping[TopicPartitionKey, int], *, timeout_s: float = PATIENCE_S
) -> None:
    """Set offsets of a group without members, as kafka-consumer-groups.sh --reset-offsets does."""
    wanted = [TopicPartition(*place, offset) for place, offset in offsets.items()]
    admin = AdminClient(_client(bootstrap))
    admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)])[group].result(timeout_s)


@contextlib.contextmanager
def broker_config(bootstrap: str, name: str, value: str, *, timeout_s: float = PATIENCE_S) -> Iterator[None]:
    """A dynamic setting of the only broker (id 1) is this, and its default again afterwards."""
    admin = AdminClient(_client(bootstrap))
    broker = (ConfigResource.Type.BROKER, "1")

    def set_to(value: str | None) -> None:
        operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        entry = ConfigEntry(name, value, incremental_operation=operation)
        wanted = ConfigResource(*broker, incremental_configs=[entry])
        (altered,) = admin.incremental_alter_configs([wanted]).values()
        altered.result(timeout_s)

    def read() -> str:
        (described,) = admin.describe_configs([ConfigResource(*broker)]).values()
        return str(described.result(timeout_s)[name].value)

    def wait_for(value: str) -> None:
        deadline = Deadline(timeout_s)
        while read() != value:
            _step(deadline, f"{name} is not {value}")

    before = read()
    try:
        set_to(value)
        wait_for(value)
        yield
    finally:
        set_to(None)
        wait_for(before)


def produce_plain(
    bootstrap: str, topic: str, records: Iterable[PlainRecord | bytes], *, timeout_s: float = PATIENCE_S
) -> list[SeenRecord]:
    """Produce without a transaction, in order; returns the records with their partitions and offsets."""
    producer = Producer(_client(bootstrap) | {"enable.idempotence": True, "partitioner": "murmur2_random"})
    # Idempotence asks for a producer id at once, and again only after 500 ms if no broker is connected yet.
    producer.list_topics(topic, timeout=timeout_s)
    deadline = Deadline(timeout_s)
    delivered: dict[int, SeenRecord] = {}
    failures: list[KafkaError] = []

    def on_delivery(index: int, record: PlainRecord, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failures.append(error)
        else:  # a delivery report does not have the headers
            delivered[index] = _seen(message)._replace(headers=record.headers)

    for index, one in enumerate(records):
        record = PlainRecord(one) if isinstance(one, bytes) else one
        partition = _ANY_PARTITION if record.partition is None else record.partition
        report = partial(on_delivery, index, record)
        headers: list[tuple[str, str | bytes | None]] = list(record.headers)
        while True:
            try:
                producer.produce(topic, record.value, record.key, partition, report, headers=headers)
                break
            except BufferError:
                producer.poll(_POLL_S)
                _check(deadline, f"{topic}: the local queue stays full")
        producer.poll(0)
    undelivered = producer.flush(deadline.left_s)
    if failures:
        raise KafkaException(failures[0])
    if undelivered:
        msg = f"{topic}: {undelivered} records were not delivered in time"
        raise TimeoutError(msg)
    return [delivered[index] for index in sorted(delivered)]


def load(bootstrap: str, topic: str, count: int, prefix: str = "", partitions: Sequence[int] = (0,)) -> None:
    """Produce so many numbered values, in turn to these partitions."""
    values = [
        PlainRecord(f"{prefix}{n}".encode(), partition=partitions[n % len(partitions)]) for n in range(count)
    ]
    produce_plain(bootstrap, topic, values, timeout_s=60)


def read_committed(
    bootstrap: str, *topics: str, timeout_s: float = PATIENCE_S, settled: bool = True
) -> list[SeenRecord]:
    """All records of committed transactions (and plain ones), each partition in offset order.

    Reads to a *settled* end: first waits until no transaction is open (LSO = high watermark) in any
    partition. With ``settled=False`` reads to the LSO of this moment.

    Raises:
        TimeoutError: a partition did not settle or could not be read to its end; the message names it.
    """
    return list(
        _read(bootstrap, topics, isolation=_READ_COMMITTED, settled=settled, deadline=Deadline(timeout_s))
    )


def read_uncommitted(bootstrap: str, *topics: str, timeout_s: float = PATIENCE_S) -> list[SeenRecord]:
    """All records up to the high watermark of this moment, of open and aborted transactions too."""
    return list(
        _read(bootstrap, topics, isolation=_READ_UNCOMMITTED, settled=False, deadline=Deadline(timeout_s))
    )


def watermarks(bootstrap: str, topic: str, *, timeout_s: float = PATIENCE_S) -> dict[int, tuple[int, int]]:
    """Per partition, the log's start offset and its high watermark."""
    with _consumer(bootstrap, isolation=_READ_UNCOMMITTED) as consumer:
        return _bounds(consumer, topic, Deadline(timeout_s))


def lso(bootstrap: str, topic: str, *, timeout_s: float = PATIENCE_S) -> dict[int, int]:
    """Per partition, the last stable offset: what read_committed readers read up to."""
    with _consumer(bootstrap, isolation=_READ_COMMITTED) as consumer:
        return {p: end for p, (_, end) in _bounds(consumer, topic, Deadline(timeout_s)).items()}


def committed_offsets(
    bootstrap: str, group: str, partitions: Iterable[TopicPartitionKey], *, timeout_s: float = PATIENCE_S
) -> dict[TopicPartitionKey, tuple[int | None, str]]:
    """Per (topic, partition), the group's next offset (None = no offset) and the commit's metadata.

    Waits while a transaction on these offsets is pending (require-stable, KIP-447).
    """
    wanted = sorted(partitions)
    deadline = Deadline(timeout_s)
    with _consumer(bootstrap, isolation=_READ_COMMITTED, group=group) as consumer:
        answer: list[TopicPartition] = []
        while wanted and not answer:
            try:
                answer = consumer.committed(
                    [TopicPartition(t, p) for t, p in wanted], timeout=min(_ASK_S, deadline.left_s)
                )
            except KafkaException as error:
                if error.args[0].code() not in _ASK_OFFSETS_AGAIN:
                    raise
                _step(
                    deadline,
                    f"{group}: the offsets of {wanted} are not stable, or their coordinator: {error}",
                )
    found: dict[TopicPartitionKey, tuple[int | None, str]] = {}
    for one in answer:
        if one.error is not None:
            raise KafkaException(one.error)
        found[one.topic, one.partition] = (one.offset if one.offset >= 0 else None, one.metadata or "")
    return found


def assert_exactly_once(
    bootstrap: str,
    group: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    transform: Transform,
    *,
    timeout_s: float = PATIENCE_S,
) -> Comparison:
    """Assert: the committed offset of p is c ⇔ the read_committed output is exactly f(input[p][0:c]).

    For a job that has ended or rests: output and offsets are read one after the other. Where the offsets have moved
    meanwhile, all is read again.
    Returns what was compared; look at ``processed``, an idle job passes too.

    Raises:
        GuaranteeViolated: the output is another one.
        TimeoutError: the job did not rest, or as ``read_committed``.
    """
    deadline = Deadline(timeout_s)
    partitions = [(name, p) for name in inputs for p in lso(bootstrap, name, timeout_s=deadline.left_s)]
    committed = _committed(bootstrap, group, partitions, deadline)
    while True:
        before = committed
        seen_outputs = read_committed(bootstrap, *outputs, timeout_s=deadline.left_s)
        seen_inputs = read_committed(bootstrap, *inputs, timeout_s=deadline.left_s)
        committed = _committed(bootstrap, group, partitions, deadline)
        if committed == before:
            break
        _check(deadline, f"{group} does not rest: {before} was committed, then {committed}")
    counts = {name: len(lso(bootstrap, name, timeout_s=deadline.left_s)) for name in outputs}
    comparison = compare(seen_inputs, committed, seen_outputs, transform, partitions=counts)
    if not comparison.exact:
        raise GuaranteeViolated(str(comparison))
    return comparison


def _committed(
    bootstrap: str, group: str, partitions: Iterable[TopicPartitionKey], deadline: Deadline
) -> dict[TopicPartitionKey, int | None]:
    offsets = committed_offsets(bootstrap, group, partitions, timeout_s=deadline.left_s)
    return {partition: offset for partition, (offset, _) in offsets.items()}


def assert_copied(
    bootstrap: str, group: str, source: str, out: str, records: int | None = None
) -> Comparison:
    """Assert that what was processed of a topic, so many records if given, is copied exactly once."""
    seen = assert_exactly_once(bootstrap, group, [source], [out], lambda one: [(out, one.key, one.value)])
    assert records in (None, seen.processed)
    return seen


def _check(deadline: Deadline, waiting_for: str) -> None:
    if not deadline.left_s:
        raise TimeoutError(f"after {deadline.seconds:g} s: {waiting_for}")


def _step(deadline: Deadline, waiting_for: str) -> None:
    _check(deadline, waiting_for)
    time.sleep(_SETTLE_STEP_S)


def _client(bootstrap: str) -> dict[str, str | int | float | bool]:
    return {
        "bootstrap.servers": bootstrap,
        "log_level": 0,
        "topic.metadata.propagation.max.ms": 1000,
        "reconnect.backoff.ms": 20,  # a client waits half of it before its first question
    }


@contextlib.contextmanager
def _consumer(bootstrap: str, *, isolation: str, group: str | None = None) -> Iterator[Consumer]:
    """A consumer that never joins its group and never commits."""
    consumer = Consumer(
        _client(bootstrap)
        | {
            "group.id": group or unique("observer"),
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
            "fetch.queue.backoff.ms": 2,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def _has_leaders(admin: AdminClient, topic: str, partitions: int) -> bool:
    known = admin.list_topics(topic, timeout=_ASK_S).topics[topic].partitions
    return len(known) == partitions and all(one.leader >= 0 for one in known.values())


def _bounds(consumer: Consumer, topic: str, deadline: Deadline) -> dict[int, tuple[int, int]]:
    """Per partition, start and end of what the consumer's isolation level lets it read."""
    metadata = consumer.list_topics(topic, timeout=_ASK_S).topics[topic]
    if metadata.error is not None:
        raise KafkaException(metadata.error)
    return {
        partition: _bounds_of(consumer, TopicPartition(topic, partition), deadline)
        for partition in sorted(metadata.partitions)
    }


def _bounds_of(consumer: Consumer, partition: TopicPartition, deadline: Deadline) -> tuple[int, int]:
    while True:
        try:
            return consumer.get_watermark_offsets(partition, timeout=_ASK_S)
        except KafkaException as error:
            waiting_for = f"asking {partition.topic}[{partition.partition}] for its offsets"
            if error.args[0].code() not in _LEADER_MOVES:
                error.add_note(waiting_for)
                raise
            _step(deadline, waiting_for)


def _wait_until_settled(bootstrap: str, topic: str, deadline: Deadline) -> None:
    with (
        _consumer(bootstrap, isolation=_READ_UNCOMMITTED) as everything,
        _consumer(bootstrap, isolation=_READ_COMMITTED) as stable,
    ):
        while True:
            # High watermark first: an LSO read afterwards that equals it proves that nothing below was open.
            high = {p: end for p, (_, end) in _bounds(everything, topic, deadline).items()}
            last_stable = {p: end for p, (_, end) in _bounds(stable, topic, deadline).items()}
            held_back = [p for p, end in high.items() if last_stable[p] < end]
            if not held_back:
                return
            p = held_back[0]
            _step(deadline, f"{topic}[{p}] is not settled: LSO {last_stable[p]}, high watermark {high[p]}")


def _read(
    bootstrap: str, topics: Sequence[str], *, isolation: str, settled: bool, deadline: Deadline
) -> Iterator[SeenRecord]:
    for topic in topics:
        if settled:
            _wait_until_settled(bootstrap, topic, deadline)
        with _consumer(bootstrap, isolation=isolation) as consumer:
            yield from _read_topic(consumer, topic, deadline)


def _read_topic(consumer: Consumer, topic: str, deadline: Deadline) -> list[SeenRecord]:
    bounds = _bounds(consumer, topic, deadline)
    unread = {partition: end for partition, (start, end) in bounds.items() if start < end}
    records: dict[int, list[SeenRecord]] = {partition: [] for partition in unread}
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in unread])
    while unread:
        partition, end = next(iter(unread.items()))
        _check(deadline, f"{topic}[{partition}] was not read to offset {end}")
        for message in consumer.consume(10_000, _CONSUME_S):
            partition, offset = _partition_and_offset(message)
            error = message.error()
            if error is None:
                if offset < bounds[partition][1]:
                    records[partition].append(_seen(message))
                reached = offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                reached = offset  # the end may lie behind control records, which only this event passes
            else:
                raise KafkaException(error)
            if partition in unread and reached >= unread[partition]:
                del unread[partition]
    return [record for partition in sorted(records) for record in records[partition]]


def _partition_and_offset(message: Message) -> tuple[int, int]:
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return partition, offset


def _seen(message: Message) -> SeenRecord:
    partition, offset = _partition_and_offset(message)
    headers = cast("list[tuple[str, bytes | None]] | None", message.headers())  # consumed ones are bytes
    kind, timestamp_ms = message.timestamp()
    return SeenRecord(
        topic=message.topic() or "",
        partition=partition,
        offset=offset,
        key=message.key(),
        value=message.value(),
        headers=tuple(headers or ()),
        timestamp_ms=timestamp_ms if kind else None,
    )
