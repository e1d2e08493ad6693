"""The requests of a transactional producer as bare frames, each sent at the moment that a test says, as often as it says.

librdkafka decides by itself when it sends what; here a test does. The versions are those that are not flexible, and of
Apache Kafka's first transactions protocol, which librdkafka speaks too: two transactions of one init share an epoch.
"""

from __future__ import annotations

import socket
import struct
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from confluent_kafka import Producer

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of importlib.resources, which it uses the old way
    from kafka.record.default_records import DefaultRecordBatchBuilder

_CALL_S = 20.0
_CORRELATION_ID = 7


class Identity(NamedTuple):
    """What the coordinator has called a producer."""

    producer_id: int = -1
    epoch: int = -1


class Names(NamedTuple):
    """What a transaction is about: one output partition, and one offset of a group."""

    transactional_id: str
    out: str
    group: str
    source: str


def init(names: Names, timeout_ms: int) -> bytes:
    """InitProducerId."""
    return _request(22, 1, _text(names.transactional_id) + struct.pack(">i", timeout_ms))


def add_partition(names: Names, who: Identity) -> bytes:
    """AddPartitionsToTxn, of the output's partition 0."""
    return _request(24, 0, _head(names, who) + _one(_text(names.out) + _one(struct.pack(">i", 0))))


def produce(names: Names, who: Identity, value: bytes, sequence: int) -> bytes:
    """Produce, of one record."""
    batch = DefaultRecordBatchBuilder(2, 0, True, who.producer_id, who.epoch, sequence, 1_000)
    batch.append(0, int(time.time() * 1000), None, value, [])
    records = bytes(batch.build())
    partition = struct.pack(">ii", 0, len(records)) + records
    body = _text(names.transactional_id) + struct.pack(">hi", -1, 10_000)
    return _request(0, 7, body + _one(_text(names.out) + _one(partition)))


def add_offsets(names: Names, who: Identity) -> bytes:
    """AddOffsetsToTxn."""
    return _request(25, 0, _head(names, who) + _text(names.group))


def send_offsets(names: Names, who: Identity, offset: int, metadata: str) -> bytes:
    """TxnOffsetCommit, for the source's partition 0."""
    partition = struct.pack(">iqi", 0, offset, -1) + _text(metadata)
    body = _text(names.transactional_id) + _text(names.group) + struct.pack(">qh", *who)
    return _request(28, 2, body + _one(_text(names.source) + _one(partition)))


def fetch_offset(names: Names) -> bytes:
    """OffsetFetch, of the source's partition 0."""
    return _request(9, 1, _text(names.group) + _one(_text(names.source) + _one(struct.pack(">i", 0))))


def end(names: Names, who: Identity, *, commit: bool) -> bytes:
    """EndTxn."""
    return _request(26, 1, _head(names, who) + struct.pack(">?", commit))


class Answer(NamedTuple):
    """The error code, and of an InitProducerId who the producer is."""

    error: int
    who: Identity = Identity()


class Wire:
    """A connection to the broker, which sends frames and reads answers."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send(self, request: bytes) -> Answer:
        """Send a request, and wait for what the broker says."""
        answer = self._answer(request)
        (api_key,) = struct.unpack_from(">h", request)
        at = 4 if api_key == 0 else 8  # behind the correlation id, and the throttle time
        if api_key in (0, 24, 28):  # by topic and partition, one of each
            (topic_length,) = struct.unpack_from(">h", answer, at + 4)
            return Answer(*struct.unpack_from(">h", answer, at + 4 + 2 + topic_length + 4 + 4))
        (error,) = struct.unpack_from(">h", answer, at)
        return Answer(
            error, Identity(*struct.unpack_from(">qh", answer, at + 2)) if api_key == 22 else Identity()
        )

    def _answer(self, request: bytes) -> bytes:
        self._connection.sendall(struct.pack(">i", len(request)) + request)
        (length,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(length)

    def stored(self, names: Names) -> tuple[int, bytes]:
        """The group's offset and its metadata: -1 and nothing if it has none."""
        answer = self._answer(fetch_offset(names))
        at = 4 + 4 + 2 + len(names.source) + 4 + 4  # behind the partition's number
        offset, length = struct.unpack_from(">qh", answer, at)
        return offset, answer[at + 10 : at + 10 + max(0, length)]

    def _exactly(self, count: int) -> bytes:
        got = b""
        while len(got) < count:
            more = self._connection.recv(count - len(got))
            assert more, "the broker has closed the connection"
            got += more
        return got


@contextmanager
def wire(bootstrap: str) -> Iterator[Wire]:
    """A connection to a cluster of one broker."""
    host, _, port = bootstrap.partition(":")
    with socket.create_connection((host, int(port)), _CALL_S) as connection:
        yield Wire(connection)


def opened(bootstrap: str, connection: Wire, names: Names) -> Identity:
    """A producer's identity; of a fresh broker only a question for a coordinator makes one."""
    client = Producer({"bootstrap.servers": bootstrap, "transactional.id": names.transactional_id})
    client.init_transactions(_CALL_S)
    answer = connection.send(init(names, 60_000))
    assert answer.error == 0
    return answer.who


def _request(api_key: int, version: int, body: bytes) -> bytes:
    return struct.pack(">hhi", api_key, version, _CORRELATION_ID) + _text("raw") + body


def _head(names: Names, who: Identity) -> bytes:
    return _text(names.transactional_id) + struct.pack(">qh", *who)


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _one(item: bytes) -> bytes:
    return struct.pack(">i", 1) + item
