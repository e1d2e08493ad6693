"""Listener: which security protocol a broker's listener speaks, asked by hand where a client only says that it got no answer."""

from __future__ import annotations

import socket
import ssl
import struct
from contextlib import suppress
from typing import NamedTuple

from eos.base.deadline import Deadline
from eos.ops.check.kafka_python import kafka_python

# The first request that may come over any connection. It authenticates nobody and says no more than a mechanism's name.
_NO_MECHANISM = "eos-asks"
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
    errors, _ = kafka_python()
    for encrypted in (True, False):
        # ValueError, IndexError, struct.error: of kafka-python, for bytes that are no answer of Kafka.
        with suppress(OSError, ValueError, IndexError, struct.error, errors.KafkaError):
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
    kafka_python()
    from kafka.protocol.parser import KafkaProtocol
    from kafka.protocol.sasl import SaslHandshakeRequest

    protocol = KafkaProtocol(client_id="eos", receive_message_max_bytes=_MAX_ANSWER_BYTES)
    protocol.send_request(SaslHandshakeRequest(mechanism=_NO_MECHANISM, version=1))
    connection.sendall(protocol.send_bytes())
    while True:
        connection.settimeout(max(0.01, deadline.left_s))
        if not (part := connection.recv(_MAX_ANSWER_BYTES)):
            raise ValueError("the connection has ended")
        for _, answer in protocol.receive_bytes(part):
            return answer.error_code, tuple(sorted(answer.mechanisms))
