"""Ports of the loopback listeners that eos chooses."""

from __future__ import annotations

import pytest

from eos.errors import ConfigError
from eos.local import ports
from eos.local.ports import free_port, listener


def test_a_listener_takes_no_port_that_outgoing_connections_get(monkeypatch: pytest.MonkeyPatch) -> None:
    """There a client that tries again at the port of a server that is gone could meet it."""
    with listener() as taken:
        port = taken.getsockname()[1]
        assert port < 32_768
        drawn = [port, port, free_port()]  # as if another process took the port behind the look
        monkeypatch.setattr(ports, "free_port", lambda: drawn.pop(0))
        with listener() as other:
            assert other.getsockname()[1] not in (0, port)
        with pytest.raises(OSError, match="in use"):
            listener(port)


def test_no_free_port_is_an_error_that_names_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    with listener() as taken:
        monkeypatch.setattr(ports, "free_port", lambda: taken.getsockname()[1])
        with pytest.raises(ConfigError, match=r"\[20000, 31999\]"):
            listener()
