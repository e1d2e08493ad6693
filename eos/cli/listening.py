"""What a worker process does with its events: logs them, counts them, and sends the figures to the parent and to OpenTelemetry."""

from __future__ import annotations

from multiprocessing.connection import Connection

from eos.events import Listener, send_to_all
from eos.settings import Settings


def listen(connection: Connection, ordinal: int, settings: Settings) -> Listener:
    """Set up a worker's logs and make its listener; called in the worker's process.

    Picklable by its name, and apart from the command line, so that workers do not load that.
    """
    from eos.kafka.librdkafka import librdkafka_version
    from eos.observe import LogListener, Relay, Telemetry, configure_logs, log_start

    configure_logs(settings.observe)
    log_start(librdkafka_version, ordinal=ordinal)
    least_sessions = max(1, len(settings.ownership.owned_partitions))
    relay = Relay(connection, ordinal, expected_sessions=least_sessions)
    return send_to_all(LogListener(), relay, Telemetry(relay.metrics, ordinal))
