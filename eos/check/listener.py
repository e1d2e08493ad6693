"""Listener: which security protocol a broker's listener speaks, asked by hand where a client only says that it got no answer."""

from __future__ import annotations

import socket
import ssl
import struct
from contextlib import suppress
from typing import NamedTuple

from eos.deadline import Deadline

# The first request that may come over any connection. It authenticates nobody and says no more than a mechanism's name.
_SASL_HANDSHAKE = 17
_NO_MECHANISM = b"eos-asks"
_ILLEGAL_SASL_STATE = 34  # the listener has no SASL
_UNSUPPORTED_MECHANISM = 33  # it has, and names those that it knows
_MAX_ANSWER_BYTES = 10_000


class Listener(NamedTuple):
    """What a listener speaks, as kafka.security_protocol, and kafka.sasl_mechanism may be."""

    protocol: str
    mechanisms: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.protocol + (f" ({', '.join(self.mechanisms)})" if self.mechanisms else "")


def listener_at(server: str, timeout_s: float) -> Listener | None:
    """Ask ``host:port``, at most twice; None where it cannot be found out (nobody is there, a client certificate is needed)."""
    for encrypted in (True, False):
        with suppress(OSError, ValueError, struct.error):
            deadline = Deadline(timeout_s / 2)
            with _connected(server, deadline, encrypted=encrypted) as connection:
                error, mechanisms = _handshake(connection, deadline)
            secured = "SSL" if encrypted else "PLAINTEXT"
            if error == _ILLEGAL_SASL_STATE:
                return Listener(secured)
            if error == _UNSUPPORTED_MECHANISM:
                return Listener(f"SASL_{secured}", mechanisms)
    return None


def _connected(server: str, deadline: Deadline, *, encrypted: bool) -> socket.socket:
    host, _, port = server.strip().rpartition(":")
    connection = socket.create_connection((host.strip("[]"), int(port)), timeout=deadline.left_s)
    if not encrypted:
        return connection
    # Not verified: no secret goes over it, and what is asked is whether it is there.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        return context.wrap_socket(connection)
    except BaseException:
        connection.close()
        raise


def _handshake(connection: socket.socket, deadline: Deadline) -> tuple[int, tuple[str, ...]]:
    request = struct.pack(">hhih", _SASL_HANDSHAKE, 1, 0, -1) + _string(_NO_MECHANISM)
    connection.sendall(struct.pack(">i", len(request)) + request)
    (size,) = struct.unpack(">i", _received(connection, 4, deadline))
    if not 0 < size <= _MAX_ANSWER_BYTES:
        raise ValueError("not an answer of Kafka")
    answer = _received(connection, size, deadline)
    _, error, count = struct.unpack_from(">ihi", answer)
    mechanisms, at = [], 10
    for _ in range(count):
        (length,) = struct.unpack_from(">h", answer, at)
        mechanisms.append(answer[at + 2 : at + 2 + length].decode())
        at += 2 + length
    return error, tuple(sorted(mechanisms))


def _string(text: bytes) -> bytes:
    return struct.pack(">h", len(text)) + text


def _received(connection: socket.socket, size: int, deadline: Deadline) -> bytes:
    received = b""
    while len(received) < size:
        connection.settimeout(max(0.01, deadline.left_s))
        part = connection.recv(size - len(received))
        if not part:
            raise ValueError("the connection has ended")
        received += part
    return received
