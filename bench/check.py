"""What a contender left behind, read by a read_committed consumer of our own."""

from __future__ import annotations

import time
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from bench.topics import PARTITIONS

READ_AT_ONCE = 20_000
CALL_TIMEOUT_SECONDS = 30.0
DEADLINE_SECONDS = 300.0


@dataclass(frozen=True)
class Output:
    """A topic's committed records.

    Attributes:
        shares: per partition, how many and their keys as unsigned integers, added up.
        first_append_ms: the broker's time of the first append, milliseconds since the epoch.
        last_append_ms: the same of the last.
    """

    shares: tuple[tuple[int, int], ...]
    first_append_ms: int
    last_append_ms: int

    @property
    def records(self) -> int:
        """How many, in all partitions."""
        return sum(records for records, _ in self.shares)

    @property
    def records_per_second(self) -> float:
        """The rate between the first and the last append."""
        return self.records / max(self.last_append_ms - self.first_append_ms, 1) * 1000


def read_output(bootstrap: str, topic: str) -> Output:
    """Read every committed record of a topic that nobody writes to any more.

    Raises:
        TimeoutError: the end was not reached in time, as when a transaction was left open.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic}-check",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.queue.backoff.ms": 2,
        }
    )
    # From the beginning, without asking for the group's offsets: a fresh broker may answer NOT_COORDINATOR.
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    records, key_sums = [0] * PARTITIONS, [0] * PARTITIONS
    first, last = 1 << 62, 0
    ended: set[int | None] = set()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while len(ended) < PARTITIONS:
        if time.monotonic() > deadline:
            msg = f"{topic}: the check saw {sum(records)} records and no end within {DEADLINE_SECONDS} s"
            raise TimeoutError(msg)
        for message in consumer.consume(READ_AT_ONCE, 0.1):
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error  # noqa: SLF001 - its public name
                ended.add(message.partition())
                continue
            append_ms = message.timestamp()[1]
            first = min(first, append_ms)
            last = max(last, append_ms)
            partition = message.partition() or 0
            records[partition] += 1
            key_sums[partition] += int.from_bytes(message.key() or b"")
    for partition in range(PARTITIONS):
        _assert_settled(bootstrap, topic, partition, consumer)
    consumer.close()
    return Output(tuple(zip(records, key_sums, strict=True)), first, last)


def read_loaded(bootstrap: str, topic: str, records: int) -> Output:
    """What the loader wrote: what every contender's output must be, partition by partition."""
    loaded = read_output(bootstrap, topic)
    assert loaded.records == records, f"{loaded.records} of {records} records were loaded"
    return loaded


def committed_records(bootstrap: str, group: str, topic: str) -> int:
    """How many input records the group's committed offsets stand for (the input's offsets have no gaps)."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    partitions = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    offsets = [found.offset for found in consumer.committed(partitions, CALL_TIMEOUT_SECONDS)]
    consumer.close()
    return sum(max(offset, 0) for offset in offsets)


def _assert_settled(bootstrap: str, topic: str, partition: int, read_committed: Consumer) -> None:
    # The end that a read_committed consumer meets is the last stable offset: with a transaction left
    # open it is not the end of the log, and the count above would be of a part.
    where = TopicPartition(topic, partition)
    last_stable = read_committed.get_watermark_offsets(where, CALL_TIMEOUT_SECONDS)[1]
    settings = {"bootstrap.servers": bootstrap, "group.id": "any", "isolation.level": "read_uncommitted"}
    uncommitted = Consumer(settings)
    high_watermark = uncommitted.get_watermark_offsets(where, CALL_TIMEOUT_SECONDS)[1]
    uncommitted.close()
    if last_stable != high_watermark:
        msg = f"{topic}[{partition}]: a transaction was left open ({last_stable} < {high_watermark})"
        raise TimeoutError(msg)
