"""Choose the loopback ports of a cluster."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from eos.errors import ConfigError

HOST = "127.0.0.1"
# Below the ranges from which systems give ports to outgoing connections (Linux 32768, macOS 49152). There,
# any client could sit on the port of a broker that is down for a moment; worse, a client that reconnects to
# a port of that range while nothing listens can be given the same port as its source and connect to itself.
_FIRST_PORT, _LAST_PORT = 20_000, 31_999
# Not Python's own: suites that seed it alike, as pytest-randomly does, would try the same ports in the same order.
_draw = random.SystemRandom()
_TRIES = 200  # with even half of the range taken, all of these fail with probability 2^-200


@dataclass(frozen=True, slots=True)
class NodePorts:
    """The loopback ports of one node.

    Args:
        client: where clients and other brokers connect.
        controller: where the KRaft quorum connects.
        proxied: where a proxy forwards to; the listener bound here advertises ``proxy`` instead.
        proxy: where the proxy itself listens. Both or none.
        others: further listeners for clients, by name.
    """

    client: int
    controller: int
    proxied: int | None = None
    proxy: int | None = None
    others: Mapping[str, int] = field(default_factory=dict)


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

    It is free now; another process may take it before it is bound.

    Raises:
        ConfigError: no port is free.
    """
    for _ in range(_TRIES):
        port = _draw.randint(_FIRST_PORT, _LAST_PORT)
        if port not in taken and is_free(port):
            return port
    raise _none_free()


def _none_free() -> ConfigError:
    return ConfigError(f"no free port found on {HOST} in [{_FIRST_PORT}, {_LAST_PORT}] after {_TRIES} tries")


def listener(port: int = 0) -> socket.socket:
    """A loopback listener.

    Args:
        port: where; 0: at a free port of those that no system gives to outgoing connections.

    Raises:
        OSError: the port is taken.
        ConfigError: no port is free.
    """
    for _ in range(_TRIES):
        try:
            return socket.create_server((HOST, port or free_port()))
        except OSError:  # without a port of the caller's: another process was quicker
            if port:
                raise
    raise _none_free()


def choose_ports(
    node_ids: Sequence[int],
    *,
    last: Mapping[int, NodePorts],
    first: int | None = None,
    proxies: Sequence[int] = (),
    listeners: Iterable[str] = (),
) -> dict[int, NodePorts]:
    """The ports of every node, by node id.

    Args:
        node_ids: the nodes.
        last: their ports of the last time; kept if they are free, so that clients' settings go on working.
        first: the client port of the first node, the others' follow it; default: free ones.
        proxies: where each node's proxy listens, or will; or none.
        listeners: the names of further listeners.

    Raises:
        ConfigError: a port that was asked for is occupied, or no port is free.
    """
    taken: set[int] = set(proxies)

    def choose(wanted: int | None) -> int:
        port = wanted if wanted and wanted not in taken and is_free(wanted) else free_port(taken)
        taken.add(port)
        return port

    chosen = {}
    for index, node_id in enumerate(node_ids):
        before = last.get(node_id) or NodePorts(client=0, controller=0)  # 0: any
        client = choose(before.client if first is None else first + index)
        if first is not None and client != first + index:
            raise ConfigError(
                f"port {first + index} is occupied on {HOST}. Fix: end what listens there, or choose another port."
            )
        controller = choose(before.controller)
        proxy = proxies[index] if proxies else None
        proxied = choose(before.proxied) if proxies else None
        others = {name: choose(before.others.get(name)) for name in listeners}
        chosen[node_id] = NodePorts(client, controller, proxied, proxy, others)
    return chosen
