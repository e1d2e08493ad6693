"""What a worker process does with its events: logs them, counts them, and sends the figures to the parent and to OpenTelemetry.

Apart from the command line, so that workers do not load that; what is here is pickled by its name.
"""

from __future__ import annotations

from multiprocessing.connection import Connection

from eos.events import Listener, send_to_all
from eos.settings import Settings


def prepare(settings: Settings) -> None:
    """Set up a process's logs; called in a worker's process before anything of the job, and loads what `listen` needs."""
    from eos.ops.observe import configure_logs

    configure_logs(settings.observe)


def listen(connection: Connection, ordinal: int, settings: Settings) -> Listener:
    """Make a worker's listener; called in the worker's process, behind the import of the job, which may have set up logs too."""
    from eos.kafka.librdkafka import librdkafka_version
    from eos.ops.observe import LogListener, Reporter, Telemetry, log_start

    log_start(librdkafka_version, ordinal=ordinal)
    least_sessions = max(1, len(settings.ownership.owned_partitions))
    reporter = Reporter(connection, ordinal, expected_sessions=least_sessions)
    return send_to_all(LogListener(), reporter, Telemetry(reporter.state.registry, ordinal))
