"""Observe: listeners that turn events into logs, metrics and answers to health checks."""

from eos.ops.observe.aggregator import Aggregator
from eos.ops.observe.log_lines import configure_logs, log_start
from eos.ops.observe.log_listener import LogListener
from eos.ops.observe.reporter import Reporter
from eos.ops.observe.server import Server, serve
from eos.ops.observe.telemetry import Telemetry
from eos.ops.observe.worker_state import WorkerState

__all__ = [
    "Aggregator",
    "LogListener",
    "Reporter",
    "Server",
    "Telemetry",
    "WorkerState",
    "configure_logs",
    "log_start",
    "serve",
]
