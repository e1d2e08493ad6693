"""Telemetry: a worker's transactions and figures for OpenTelemetry, if the job's module has set that up."""

from __future__ import annotations

import sys
import threading

from prometheus_client import CollectorRegistry

from eos.events import Event, Listener, SessionOpened, ignore_event


class Telemetry:
    """A worker's listener. It looks at each open of a session whether there is a provider, and passes events on if so.

    It imports nothing of OpenTelemetry by itself: where no other code has done so, no provider can be set, and a worker is
    to start without it (50 ms).

    Args:
        registry: whose figures are shown.
        ordinal: of the worker.
    """

    def __init__(self, registry: CollectorRegistry, ordinal: int) -> None:
        self._registry = registry
        self._ordinal = ordinal
        self._listener: Listener = ignore_event
        self._looking = threading.Lock()  # shards may run in a thread each, and figures are to be shown once

    def __call__(self, event: Event) -> None:
        if isinstance(event, SessionOpened):
            with self._looking:
                self._look()
        self._listener(event)

    def _look(self) -> None:
        if self._listener is not ignore_event:
            return
        if "opentelemetry.trace" not in sys.modules and "opentelemetry.metrics" not in sys.modules:
            return
        from eos.ops.observe.otel import listen

        self._listener = listen(self._registry, self._ordinal)
