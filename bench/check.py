"""What a contender left behind, read by a read_committed consumer of our own."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it is documented, the package only lacks __all__
    AdminClient,
    OffsetSpec,
)

READ_AT_ONCE = 20_000
CALL_TIMEOUT_SECONDS = 30.0
DEADLINE_SECONDS = 300.0
SETTLING_SECONDS = 30.0
SETTLING_PAUSE_SECONDS = 0.1
_LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Output:
    """A topic's committed records.

    Attributes:
        shares: per partition, how many and their keys as unsigned integers, added up.
        appended: how many at each of the broker's times of appending, milliseconds since the epoch.
        markers: offsets without a committed record, of the partition that has most: the ends of transactions, if none
            was aborted.
    """

    shares: tuple[tuple[int, int], ...]
    appended: Mapping[int, int] = field(repr=False)
    markers: int

    @property
    def records(self) -> int:
        """How many, in all partitions."""
        return sum(records for records, _ in self.shares)

    @property
    def first_append_ms(self) -> int:
        """The broker's time of the first append."""
        return min(self.appended, default=0)

    @property
    def last_append_ms(self) -> int:
        """The broker's time of the last append."""
        return max(self.appended, default=0)

    @property
    def records_per_second(self) -> float:
        """The rate between the first and the last append."""
        return self.rate_behind(0)

    def rate_behind(self, share: float) -> float:
        """The rate from the moment when that share of the records was there: without the slow beginning, if there is one."""
        before = 0
        for moment in sorted(self.appended):
            before += self.appended[moment]
            if before >= share * self.records:
                begin, left = moment, self.records - (before if share else 0)
                return left / max(self.last_append_ms - begin, 1) * 1000
        return 0.0


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
    partitions = range(_partitions(consumer, topic))
    ends = _settled_ends(bootstrap, topic, partitions)
    # From the beginning, without asking for the group's offsets: a fresh broker may answer NOT_COORDINATOR.
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
    records, key_sums = [0] * len(partitions), [0] * len(partitions)
    appended: Counter[int] = Counter()
    ended: set[int | None] = set()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while len(ended) < len(partitions):
        if time.monotonic() > deadline:
            msg = f"{topic}: the check saw {sum(records)} records and no end within {DEADLINE_SECONDS} s"
            raise TimeoutError(msg)
        for message in consumer.consume(READ_AT_ONCE, 0.1):
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error  # noqa: SLF001 - its public name
                ended.add(message.partition())
                continue
            appended[message.timestamp()[1]] += 1
            partition = message.partition() or 0
            records[partition] += 1
            key_sums[partition] += int.from_bytes(message.key() or b"")
    consumer.close()
    markers = max(end - records[partition] for partition, end in enumerate(ends))
    return Output(tuple(zip(records, key_sums, strict=True)), appended, markers)


def read_loaded(bootstrap: str, topic: str, records: int) -> Output:
    """What the loader wrote: what every contender's output must be, partition by partition."""
    loaded = read_output(bootstrap, topic)
    assert loaded.records == records, f"{loaded.records} of {records} records were loaded"
    return loaded


def committed_records(bootstrap: str, group: str, topic: str) -> int:
    """How many input records the group's committed offsets stand for (the input's offsets have no gaps)."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    partitions = [TopicPartition(topic, partition) for partition in range(_partitions(consumer, topic))]
    offsets = [found.offset for found in consumer.committed(partitions, CALL_TIMEOUT_SECONDS)]
    consumer.close()
    return sum(max(offset, 0) for offset in offsets)


def _partitions(consumer: Consumer, topic: str) -> int:
    return len(consumer.list_topics(topic, CALL_TIMEOUT_SECONDS).topics[topic].partitions)


def _settled_ends(bootstrap: str, topic: str, partitions: range) -> list[int]:
    # The end that a read_committed consumer meets is the last stable offset: with a transaction left
    # open it is not the end of the log, and the count above would be of a part.
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 4})
    asked = {TopicPartition(topic, partition): _LATEST for partition in partitions}

    def ends(level: IsolationLevel) -> list[int]:
        found = admin.list_offsets(asked, isolation_level=level, request_timeout=CALL_TIMEOUT_SECONDS)
        return [found[where].result(CALL_TIMEOUT_SECONDS).offset for where in asked]

    deadline = time.monotonic() + SETTLING_SECONDS
    while (last_stable := ends(IsolationLevel.READ_COMMITTED)) != (
        high := ends(IsolationLevel.READ_UNCOMMITTED)
    ):
        # A commit is answered before its markers are written: those of 500 partitions take a while.
        if time.monotonic() > deadline:
            behind = [
                n for n, (stable, end) in enumerate(zip(last_stable, high, strict=True)) if stable != end
            ]
            msg = f"{topic}: a transaction was left open in {len(behind)} partitions, such as {behind[0]}"
            raise TimeoutError(msg)
        time.sleep(SETTLING_PAUSE_SECONDS)
    if min(high) < 0:  # so a question that timed out is answered, without an error
        msg = f"{topic}: the ends of its partitions were not told in time"
        raise TimeoutError(msg)
    return high
