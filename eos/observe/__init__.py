"""Observe: listeners that turn events into logs, metrics and answers to health checks."""

from eos.observe.board import Board
from eos.observe.decisions import LogListener
from eos.observe.health import Health, Verdict
from eos.observe.logs import configure_logs, log_start
from eos.observe.metrics import MetricsListener
from eos.observe.relay import Relay
from eos.observe.server import Server, serve
from eos.observe.telemetry import Telemetry

__all__ = [
    "Board",
    "Health",
    "LogListener",
    "MetricsListener",
    "Relay",
    "Server",
    "Telemetry",
    "Verdict",
    "configure_logs",
    "log_start",
    "serve",
]
