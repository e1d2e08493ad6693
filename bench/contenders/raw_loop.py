"""The raw loop: consume, produce() per record, commit when the interval has passed, and no error handling.

The shape of confluent-kafka-python's ``examples/eos_transactions.py`` (assign(), one transaction after
another, position() as the offsets), with consume(1000) instead of poll() per record, and a transaction
per interval instead of one per 100 records.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from bench.contender import Arguments, Meter
from bench.topics import PARTITIONER

CONSUMED_AT_ONCE = 1000
CALL_TIMEOUT_SECONDS = 30.0

Value = bytes | None
Write = Callable[[Producer, str, Sequence[Message]], None]


def copied(change: Callable[[Value], Value] | None = None) -> Write:
    """Write each value through ``change``, with its key."""

    def write(producer: Producer, topic: str, messages: Sequence[Message]) -> None:
        for message in messages:
            if message.error() is not None:
                raise KafkaException(message.error())
            value = message.value() if change is None else change(message.value())
            while True:
                try:
                    producer.produce(topic, value, message.key())
                    break
                except BufferError:
                    producer.poll(0.01)

    return write


def copy(
    *,
    consumer_settings: Mapping[str, str | int] | None = None,
    write: Write | None = None,
    transactional: bool = True,
    looks: bool = False,
) -> None:
    """Run as a contender: copy the input as ``write`` does it, unchanged by default, and print the report.

    ``looks``: before each commit it asks whether the topics are still the same, once all records are written.
    """
    write = write or copied()
    meter = Meter()
    arguments = Arguments.from_command_line()
    stop = _StopOnSignal()
    consumer = Consumer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "group.id": arguments.group,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            **(consumer_settings or {}),
        }
    )
    partitions = (
        consumer.list_topics(arguments.input, CALL_TIMEOUT_SECONDS).topics[arguments.input].partitions
    )
    # Asked before anything is fetched: behind a fetch that waits for records, each answer takes half a second.
    remaining = _records_in(consumer, arguments.input, partitions) if arguments.until_caught_up else None
    # The group is fresh, so the beginning is where it stands. Asking for its offsets would fail now and then
    # on a fresh broker (NOT_COORDINATOR while the group's log loads), and the consumer would never start.
    consumer.assign(
        [TopicPartition(arguments.input, partition, OFFSET_BEGINNING) for partition in partitions]
    )
    commit: _Transactions | _PlainCommits
    commit = (
        _Transactions(arguments, consumer, looks=looks)
        if transactional
        else _PlainCommits(arguments, consumer)
    )
    producer = commit.producer

    interval = arguments.transaction_ms / 1000
    began = time.monotonic()
    pending = 0
    while not stop.asked and (remaining is None or remaining > 0):
        messages = consumer.consume(CONSUMED_AT_ONCE, interval)
        write(producer, arguments.output, messages)
        producer.poll(0)
        pending += len(messages)
        if remaining is not None:
            remaining -= len(messages)
        if time.monotonic() - began >= interval:
            if pending:
                commit()
            pending = 0
            began = time.monotonic()
    if pending:
        commit()
    commit.end()
    consumer.close()
    commit.report(meter)


class _Transactions:
    def __init__(self, arguments: Arguments, consumer: Consumer, *, looks: bool) -> None:
        self._consumer = consumer
        self._look = _Look(arguments) if looks else None
        self.producer = Producer(
            {
                "bootstrap.servers": arguments.bootstrap,
                "transactional.id": arguments.group,
                "partitioner": PARTITIONER,
            }
        )
        self.producer.init_transactions(CALL_TIMEOUT_SECONDS)
        self.producer.begin_transaction()
        self._took: list[float] = []

    def __call__(self) -> None:
        began = time.monotonic()
        consumer = self._consumer
        self.producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), CALL_TIMEOUT_SECONDS
        )
        if self._look is not None:
            self.producer.flush(CALL_TIMEOUT_SECONDS)
            self._look()
        self.producer.commit_transaction(CALL_TIMEOUT_SECONDS)
        self._took.append(time.monotonic() - began)
        self.producer.begin_transaction()

    def end(self) -> None:
        self.producer.abort_transaction(CALL_TIMEOUT_SECONDS)  # the empty one begun after the last commit

    def report(self, meter: Meter) -> None:
        meter.report_each(self._took)


class _Look:
    """Whether the topics have the ids that they had at the beginning."""

    def __init__(self, arguments: Arguments) -> None:
        self._admin = AdminClient({"bootstrap.servers": arguments.bootstrap})
        self._topics = TopicCollection([arguments.input, arguments.output])
        self._ids = self._now()

    def __call__(self) -> None:
        if self._now() != self._ids:
            msg = "a topic was deleted and created anew"
            raise RuntimeError(msg)

    def _now(self) -> dict[str, str]:
        asked = self._admin.describe_topics(self._topics, request_timeout=CALL_TIMEOUT_SECONDS)
        return {name: str(answer.result().topic_id) for name, answer in asked.items()}


class _PlainCommits:
    def __init__(self, arguments: Arguments, consumer: Consumer) -> None:
        self._consumer = consumer
        self.producer = Producer(
            {"bootstrap.servers": arguments.bootstrap, "acks": "all", "partitioner": PARTITIONER}
        )
        self._count = 0

    def __call__(self) -> None:
        # Without a flush before it this may commit offsets of records that were never written: it is here
        # as the upper limit of what a loop without a guarantee reaches, not as an example.
        self._consumer.commit(offsets=self._next_offsets(), asynchronous=True)
        self._count += 1

    def end(self) -> None:
        self.producer.flush(CALL_TIMEOUT_SECONDS)
        if offsets := self._next_offsets():
            self._consumer.commit(offsets=offsets, asynchronous=False)

    def report(self, meter: Meter) -> None:
        meter.report(commits=self._count, commit_seconds=None)  # nobody waits for an asynchronous commit

    def _next_offsets(self) -> list[TopicPartition]:
        positions = self._consumer.position(self._consumer.assignment())
        return [position for position in positions if position.offset >= 0]  # negative: never read


class _StopOnSignal:
    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)
        signal.signal(signal.SIGINT, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True


def _records_in(consumer: Consumer, topic: str, partitions: Iterable[int]) -> int:
    """The records of an input without control records or compaction: its offsets have no gaps."""
    total = 0
    for partition in partitions:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), CALL_TIMEOUT_SECONDS)
        total += high - low
    return total
