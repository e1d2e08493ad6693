"""What a listener speaks is found out from its answers alone; who answers otherwise is not guessed at."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from eos.ops.check.listener import Listener, listener_at
from tests.support.patience import PATIENCE_S


@contextmanager
def listening(answer: Callable[[bytes], bytes | None]) -> Iterator[str]:
    """A listener that gives this answer to each connection's first bytes; None: nothing, and the connection stays open."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                said = answer(connection.recv(1000))
                if said is None:
                    kept.append(connection)
                else:
                    connection.sendall(said)
                    connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE_S)
        for connection in kept:
            connection.close()


def handshake(error: int, *mechanisms: str) -> Callable[[bytes], bytes]:
    """The answers of Kafka's listener without TLS: it ends a connection that begins with TLS."""

    def answer(request: bytes) -> bytes:
        if request[:1] == b"\x16":
            return b""
        assert struct.unpack_from(">hh", request, 4) == (17, 1)
        body = request[8:12] + struct.pack(">hi", error, len(mechanisms))
        for name in mechanisms:
            body += struct.pack(">h", len(name)) + name.encode()
        return struct.pack(">i", len(body)) + body

    return answer


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (handshake(34), Listener("PLAINTEXT")),
        (handshake(33, "SCRAM-SHA-512", "PLAIN"), Listener("SASL_PLAINTEXT", ("PLAIN", "SCRAM-SHA-512"))),
        (handshake(99), None),
        (lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n", None),
        (lambda _: b"", None),
        (lambda _: struct.pack(">i", 2_000_000_000), None),
        (lambda _: struct.pack(">iihi", 10, 0, 33, 1_000_000), None),
    ],
)
def test_a_listener_is_known_by_its_answers(answer: Callable[[bytes], bytes], found: Listener | None) -> None:
    with listening(answer) as server:
        assert listener_at(server, PATIENCE_S) == found


def test_a_listener_that_says_nothing_is_given_up_in_time() -> None:
    with listening(lambda _: None) as server:  # its connection stays open until the answer is there
        assert listener_at(server, 0.4) is None


@pytest.mark.parametrize("server", ["127.0.0.1:1", "no.such.host.invalid:9092", "kafka", "kafka:port", ""])
def test_an_address_where_nobody_is_is_no_error(server: str) -> None:
    assert listener_at(server, 1.0) is None


def test_what_a_listener_speaks_in_words() -> None:
    assert str(Listener("SASL_SSL", ("PLAIN", "SCRAM-SHA-512"))) == "SASL_SSL (PLAIN, SCRAM-SHA-512)"
    assert str(Listener("SSL")) == "SSL"
