"""The raw question to a broker: what it answers, and everything that is not an answer."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from eos.local import metadata
from eos.local.ports import HOST, free_port


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def _answer(correlation_id: int = 1) -> bytes:
    brokers = b"".join(
        struct.pack(">i", i) + _text("127.0.0.1") + struct.pack(">i", 9000 + i) + struct.pack(">h", -1)
        for i in (1, 2)
    )
    body = struct.pack(">ii", correlation_id, 2) + brokers + _text("cluster") + struct.pack(">ii", 1, 0)
    return struct.pack(">i", len(body)) + body


@contextmanager
def _server(answer: bytes) -> Iterator[tuple[int, Callable[[], bytes]]]:
    asked: list[bytes] = []
    with socket.create_server((HOST, 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                asked.append(connection.recv(1000))
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1], lambda: asked[0]
        thread.join(5)


def test_answer_names_cluster_and_brokers() -> None:
    with _server(_answer()) as (port, asked):
        assert metadata.ask(HOST, port, 2) == metadata.ClusterMetadata("cluster", {1: 9001, 2: 9002})
    frame = asked()
    assert struct.unpack(">i", frame[:4]) == (len(frame) - 4,)
    assert struct.unpack(">hh", frame[4:8]) == (3, 2)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n",
        _answer()[:-12],
        _answer(correlation_id=9),
        struct.pack(">ii", 4, 1),
    ],
    ids=["closed", "http", "cut off", "other request", "too short"],
)
def test_anything_else_is_no_answer(answer: bytes) -> None:
    with _server(answer) as (port, _):
        assert metadata.ask(HOST, port, 2) is None


def test_nobody_there_is_no_answer() -> None:
    assert metadata.ask(HOST, free_port(), 0.5) is None
