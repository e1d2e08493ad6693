"""The interface of what runs the brokers of a test cluster, processes or containers."""

from __future__ import annotations

from typing import Protocol


class Backend(Protocol):
    """Brokers with the ids 1, 2, …; ``eos.local.LocalKafka`` is one. Times are in seconds."""

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, also of those that are down."""

    def start(self) -> object:
        """Start what is not running, and wait until it serves clients."""

    def stop(self) -> None:
        """End every broker, and remove what only they needed."""

    def kill_broker(self, broker_id: int) -> None:
        """SIGKILL."""

    def stop_broker(self, broker_id: int) -> None:
        """SIGTERM: leaders are moved first."""

    def pause_broker(self, broker_id: int) -> None:
        """Connections stay open and the broker does not answer."""

    def resume_broker(self, broker_id: int) -> None:
        """End a pause."""

    def restart_broker(self, broker_id: int) -> None:
        """Start a broker at its address again, after stopping it if it runs, and wait until it serves clients."""
