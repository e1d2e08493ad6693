"""Ask a broker which brokers are alive, with one raw Metadata request.

Only this frame is spoken here, so that a cluster can be started without a client library.
Fields: https://kafka.apache.org/protocol#The_Messages_Metadata (version 2, the first with a cluster id).
"""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

_METADATA_KEY, _METADATA_VERSION = 3, 2
_CORRELATION_ID = 1
_MAX_ANSWER_BYTES = 1_000_000  # an answer without topics has some hundred bytes


class ClusterMetadata(NamedTuple):
    """What one broker knows: the cluster's id, and the ports of the brokers that are registered and unfenced."""

    cluster_id: str
    ports: dict[int, int]


def ask(host: str, port: int, timeout_s: float) -> ClusterMetadata | None:
    """What the broker at that address answers, or None if it does not (yet), within ``timeout_s`` per read."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            connection.sendall(_request())
            (size,) = struct.unpack(">i", _read(connection, 4))
            if not 0 < size <= _MAX_ANSWER_BYTES:
                return None
            return _parse(_read(connection, size))
    except (OSError, struct.error, UnicodeDecodeError, IndexError):
        return None  # nobody there, not ready, or not a Kafka broker: each means "not this one, not now"


def _request() -> bytes:
    client = b"eos-local"
    no_topics = struct.pack(">i", 0)
    header = struct.pack(">hhih", _METADATA_KEY, _METADATA_VERSION, _CORRELATION_ID, len(client)) + client
    frame = header + no_topics
    return struct.pack(">i", len(frame)) + frame


def _read(connection: socket.socket, size: int) -> bytes:
    chunks = b""
    while len(chunks) < size:
        chunk = connection.recv(size - len(chunks))
        if not chunk:
            raise ConnectionError  # closed in the middle of an answer
        chunks += chunk
    return chunks


def _parse(answer: bytes) -> ClusterMetadata | None:
    reader = _Reader(answer)
    if reader.number(">i") != _CORRELATION_ID:
        return None
    ports = {}
    for _ in range(reader.number(">i")):
        broker_id = reader.number(">i")
        reader.text()  # host
        ports[broker_id] = reader.number(">i")
        reader.text()  # rack
    return ClusterMetadata(reader.text(), ports)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, layout: str) -> int:
        (value,) = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return int(value)

    def text(self) -> str:
        size = max(0, self.number(">h"))  # -1 is null
        start, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise IndexError
        return self._data[start : self._at].decode()
