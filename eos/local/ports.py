"""Choose loopback ports for brokers."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection

from eos.errors import ConfigError

HOST = "127.0.0.1"
# Below the ranges from which systems give ports to outgoing connections (Linux 32768, macOS 49152). There,
# any client could sit on the port of a broker that is down for a moment; worse, a client that reconnects to
# a port of that range while nobody listens can be given the same port as its source and connect to itself.
_FIRST_PORT, _LAST_PORT = 20_000, 31_999
_TRIES = 200  # with even half of the range taken, all of these fail with probability 2^-200


def is_free(port: int) -> bool:
    """Whether a server could listen on that loopback port now."""
    with socket.socket() as probe:
        # As the JVM does on POSIX: connections of an earlier broker in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port(taken: Collection[int] = ()) -> int:
    """A free loopback port that is not in ``taken``.

    It is free now; whoever binds it must still be ready to find it occupied.

    Raises:
        ConfigError: no port is free.
    """
    for _ in range(_TRIES):
        port = random.randint(_FIRST_PORT, _LAST_PORT)  # noqa: S311 - no secret
        if port not in taken and is_free(port):
            return port
    msg = f"no free port found on {HOST} in [{_FIRST_PORT}, {_LAST_PORT}] after {_TRIES} tries"
    raise ConfigError(msg)
