"""OpenTelemetry: a span for each transaction of a loop, and the figures of /metrics under the same names.

Of the packages only the API is needed: what becomes of spans and figures is said by the providers that the job sets.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.trace import Link, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import CollectorRegistry

from eos import events
from eos.base.listing import listed
from eos.base.printable import printable_values
from eos.errors import ConfigError
from eos.events import Event, Listener, send_to_all
from eos.headers import TraceContexts
from eos.offsets import OffsetVector
from eos.ops.observe.metrics import HISTOGRAMS, SECONDS
from eos.ops.observe.quoting import NOT_SHOWN, class_only, of_error
from eos.shards import parse_transactional_id

_NAME = "eos"
_MAX_LINKS = 128  # what an SDK keeps of a span by default
_MAX_PARTITIONS_SHOWN = 32


def listen(registry: CollectorRegistry, worker: int) -> Listener:
    """A listener for the providers that are set now."""
    record = figures(metrics.get_meter(_NAME), registry, {"worker": str(worker)})
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return record
    TraceContexts.wanted = True
    return send_to_all(record, Spans(trace.get_tracer(_NAME)))


@dataclass(slots=True)
class _Open:
    """What the open transaction of a shard has taken."""

    at_ns: int
    records: int = 0
    begins: OffsetVector = field(default_factory=OffsetVector)
    ends: OffsetVector = field(default_factory=OffsetVector)
    traceparents: dict[str, None] = field(default_factory=dict)


class Spans:
    """Makes a span when a transaction has ended: a link must be there when its span begins, and only then all are known.

    Offsets that are committed without a record have none. The names are those of OpenTelemetry's conventions for messaging,
    as far as these have one for it; else they begin with ``eos.``.
    """

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer
        # By shard. Of each nothing is taken while it commits in another thread.
        self._open: dict[str, _Open] = {}

    def __call__(self, event: Event) -> None:
        if isinstance(event, events.InputTaken):
            self._taken(event)
        elif isinstance(event, events.TransactionCommitted):
            self._ended(event.shard, "committed", records_out=event.records_out)
        elif isinstance(event, events.TransactionEnded):
            outcome = "aborted" if event.outcome == "aborted" else "unknown"
            self._ended(event.shard, outcome, event.reason)
        elif isinstance(event, events.Fenced):
            self._ended(event.shard, "unknown", f"FencedError: {event.reason}")

    def _taken(self, event: events.InputTaken) -> None:
        so_far = self._open.get(event.shard)
        if so_far is None:
            so_far = self._open[event.shard] = _Open(time.time_ns())
        so_far.records += event.records
        so_far.begins = event.begins.merged(so_far.begins)
        so_far.ends = so_far.ends.merged(event.ends)
        so_far.traceparents.update(dict.fromkeys(event.traceparents))

    def _ended(self, shard: str, outcome: str, reason: str = "", records_out: int | None = None) -> None:
        taken = self._open.pop(shard, None)
        if taken is None:
            return
        topics = {partition.topic for partition in taken.ends}
        attributes: dict[str, Any] = {
            "messaging.system": "kafka",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.batch.message_count": taken.records,
            "messaging.consumer.group.name": _group_of(shard),
            "eos.transactional_id": shard,
            "eos.outcome": outcome,
            "eos.offsets": listed(
                (f"{p} [{start}, {taken.ends[p]})" for p, start in sorted(taken.begins.items())),
                _MAX_PARTITIONS_SHOWN,
            ),
        }
        if records_out is not None:
            attributes["eos.records_out"] = records_out
        if reason:
            named = class_only(reason)
            attributes["error.type"] = "_OTHER" if named is NOT_SHOWN else named
        if len(topics) == 1:
            attributes["messaging.destination.name"] = next(iter(topics))
        if len(taken.ends) == 1:
            attributes["messaging.destination.partition.id"] = str(next(iter(taken.ends)).number)
        span = self._tracer.start_span(
            " ".join(("process", *(topics if len(topics) == 1 else ()))),
            context=Context(),  # a trace of its own, whatever span the job's code has left open
            kind=SpanKind.CONSUMER,
            attributes=printable_values(attributes),  # a collector's page shows names as they come
            links=_links(taken.traceparents),
            start_time=taken.at_ns,
        )
        if reason:
            span.set_status(Status(StatusCode.ERROR, of_error(reason)))
        span.end()


def _links(traceparents: Iterable[str]) -> list[Link]:
    """Links to the spans that wrote the records. One that was not sampled is not kept anywhere."""
    links: list[Link] = []
    for traceparent in traceparents:
        context = TraceContextTextMapPropagator().extract({"traceparent": traceparent})
        writer = trace.get_current_span(context).get_span_context()
        if writer.is_valid and writer.trace_flags.sampled:
            links.append(Link(writer))
        if len(links) == _MAX_LINKS:
            break
    return links


def _group_of(transactional_id: str) -> str:
    try:
        return parse_transactional_id(transactional_id).group
    except ConfigError:
        return ""


def figures(meter: Meter, registry: CollectorRegistry, labels: Mapping[str, str]) -> Listener:
    """Show a registry's counters and gauges to whatever reads the meter provider; the listener records the histograms.

    A histogram can't be read from elsewhere in OpenTelemetry: it is recorded, event by event.
    """
    for family in registry.collect():
        shown = partial(_observed, registry, labels)
        if family.type == "counter":
            callback = partial(shown, f"{family.name}_total")
            meter.create_observable_counter(family.name, [callback], description=family.documentation)
        elif family.type == "gauge":
            callback = partial(shown, family.name)
            meter.create_observable_gauge(family.name, [callback], description=family.documentation)
    histograms = [
        (meter.create_histogram(name, unit="s", explicit_bucket_boundaries_advisory=SECONDS), attribute)
        for name, (attribute, _) in HISTOGRAMS.items()
    ]

    def record(event: Event) -> None:
        if isinstance(event, events.TransactionCommitted):
            for histogram, attribute in histograms:
                histogram.record(getattr(event, attribute), labels)

    return record


def _observed(
    registry: CollectorRegistry, labels: Mapping[str, str], series: str, _: CallbackOptions
) -> Iterable[Observation]:
    for family in registry.restricted_registry([series]).collect():
        for sample in family.samples:
            yield Observation(sample.value, {**labels, **sample.labels})
