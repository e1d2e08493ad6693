"""Topics of a benchmark: made fresh, loaded with the records that every contender reads, removed."""

from __future__ import annotations

import struct

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

PARTITIONS = 4
VALUE_BYTES = 100
CALL_TIMEOUT_SECONDS = 60.0
LOADED_AT_ONCE = 10_000
LOADED_BYTES = 10 << 20  # at once, whatever the records' size
QUEUED_BYTES = 256 << 20

# Of everybody who writes by librdkafka: the loader, the generator and the raw loops. eos and Spark's own sink place by
# it anyway. Who writes keys as the input was loaded gets long runs of records for one partition, and cheaper batches;
# librdkafka's default, CRC32, scatters what murmur2 has gathered.
PARTITIONER = "murmur2_random"

_KEY = struct.Struct(">Q")
_HEAD = '{"id":%010d,"amount":%d,"pad":"'
_TAIL = '"}'
_FIRST_ID = 1_000_000_000  # ten digits from the first to the last: JSON knows no leading zeros


def create_topic(bootstrap: str, topic: str, partitions: int = PARTITIONS) -> None:
    """Make a topic whose record timestamps are the broker's append times."""
    config = {
        "message.timestamp.type": "LogAppendTime",
        # Removed topics must leave the disk and the page cache while the next contender warms up,
        # not in its middle.
        "file.delete.delay.ms": "100",
    }
    new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=config)
    admin = _admin(bootstrap)  # must outlive the call
    admin.create_topics([new])[topic].result(CALL_TIMEOUT_SECONDS)


def delete_topic(bootstrap: str, topic: str) -> None:
    """Remove a topic."""
    admin = _admin(bootstrap)
    admin.delete_topics([topic])[topic].result(CALL_TIMEOUT_SECONDS)


def load(bootstrap: str, topic: str, records: int, value_bytes: int = VALUE_BYTES) -> None:
    """Write ``records`` records: 8-byte keys 0, 1, 2 …, values of JSON, keys choosing partitions."""
    most = max(2, min(500_000, QUEUED_BYTES // value_bytes))
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "partitioner": PARTITIONER,
            "linger.ms": 20,
            "queue.buffering.max.messages": most,
        }
    )
    at_once = max(1, min(LOADED_AT_ONCE, LOADED_BYTES // value_bytes))
    for start in range(0, records, at_once):
        numbers = range(start, min(start + at_once, records))
        batch = [{"key": key(n), "value": value(n, 10_000 + n % 90_000, value_bytes)} for n in numbers]
        while len(producer) > most - at_once:
            producer.poll(0.05)
        queued = producer.produce_batch(topic, batch)
        assert queued == len(batch), f"the client took {queued} of {len(batch)} records"
    left = producer.flush(CALL_TIMEOUT_SECONDS)
    assert left == 0, f"{left} records were not written within {CALL_TIMEOUT_SECONDS} s"


def key(number: int) -> bytes:
    """A record's key: 8 bytes, unsigned, big-endian."""
    return _KEY.pack(number)


def value(number: int, amount: int, size: int = VALUE_BYTES) -> bytes:
    """A record's value: exactly ``size`` bytes of JSON."""
    head = _HEAD % (_FIRST_ID + number, amount)
    return (head + "x" * (size - len(head) - len(_TAIL)) + _TAIL).encode()


def _admin(bootstrap: str) -> AdminClient:
    # Level 4 leaves out what the client says about its own background queue when it is closed.
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 4})
