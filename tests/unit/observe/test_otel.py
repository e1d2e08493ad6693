"""Spans and figures for OpenTelemetry: what each holds, that they need a provider, and what the rest of eos does without."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from eos import events
from eos.core.fetched import FetchedBatch, Reading
from eos.core.ledger import Ledger
from eos.events import Event, InputTaken, Listener
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.headers import Headers, TraceContexts
from eos.offsets import OffsetVector, Partition
from eos.ops.observe import Telemetry, WorkerState, otel
from eos.ops.observe.otel import Spans, figures
from eos.records import InputBatch, InputRecord

SHARD = "refunds.refunds-group.i.3"
P0, P1 = Partition("in", 0), Partition("in", 1)
OTHER = Partition("more", 0)


def context_of(number: int, flags: str = "01") -> str:
    return f"00-{number:032x}-{number:016x}-{flags}"


def taken(
    begins: dict[Partition, int], ends: dict[Partition, int], records: int = 5, *traceparents: str
) -> InputTaken:
    return InputTaken(SHARD, records, OffsetVector(begins), OffsetVector(ends), traceparents)


COMMITTED = events.TransactionCommitted(SHARD, 10, 12, OffsetVector({P0: 20}), 0.1, 0.02)


def spans_of(*sent: Event) -> list[ReadableSpan]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    listener = Spans(provider.get_tracer("test"))
    for event in sent:
        listener(event)
    return list(exporter.get_finished_spans())


@pytest.fixture
def trace_contexts_wanted() -> Iterator[None]:
    TraceContexts.wanted = True
    yield
    TraceContexts.wanted = False


def test_a_committed_transaction_is_a_span_with_what_it_took_and_made() -> None:
    (span,) = spans_of(taken({P0: 5}, {P0: 9}, 4), taken({P0: 9}, {P0: 20}, 6), COMMITTED)
    assert (span.name, span.kind, span.status.status_code) == (
        "process in",
        SpanKind.CONSUMER,
        StatusCode.UNSET,
    )
    assert dict(span.attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.batch.message_count": 10,
        "messaging.consumer.group.name": "refunds-group",
        "messaging.destination.name": "in",
        "messaging.destination.partition.id": "0",
        "eos.transactional_id": SHARD,
        "eos.outcome": "committed",
        "eos.offsets": "in[0] [5, 20)",
        "eos.records_out": 12,
    }
    assert span.parent is None
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.start_time <= span.end_time


def test_partitions_and_topics_are_all_in_the_ranges() -> None:
    (span,) = spans_of(taken({P0: 5, OTHER: 0}, {P0: 9, OTHER: 7}), taken({P1: 1}, {P1: 2}), COMMITTED)
    found = span.attributes or {}
    assert span.name == "process"
    assert found["eos.offsets"] == "in[0] [5, 9), in[1] [1, 2), more[0] [0, 7)"
    assert "messaging.destination.name" not in found
    assert "messaging.destination.partition.id" not in found


@pytest.mark.parametrize(
    ("end", "outcome", "error", "shown"),
    [
        (
            events.TransactionEnded(SHARD, "aborted", "RebalancedError: partitions were lost", 0.1),
            "aborted",
            "RebalancedError",
            "RebalancedError: partitions were lost",
        ),
        (
            events.TransactionEnded(SHARD, "aborted", "ValueError: invalid literal for int(): '4711'", 0.1),
            "aborted",
            "ValueError",
            "ValueError",
        ),
        (events.TransactionEnded(SHARD, "aborted", "REQTMOUT", 0.1), "aborted", "_OTHER", None),
        (
            events.TransactionEnded(SHARD, "unresolved", "CommitOutcomeUnknownError: no answer", 0.1),
            "unknown",
            "CommitOutcomeUnknownError",
            "CommitOutcomeUnknownError: no answer",
        ),
        (
            events.TransactionEnded(
                SHARD, "expired", "TransactionExpiredError: it outlived transaction.timeout_ms", 61.0
            ),
            "unknown",
            "TransactionExpiredError",
            "TransactionExpiredError: it outlived transaction.timeout_ms",
        ),
        (
            events.Fenced(SHARD, "another owner"),
            "unknown",
            "FencedError",
            "FencedError: another owner",
        ),
    ],
    ids=["aborted", "text-of-a-record", "no-class", "unresolved", "expired", "fenced"],
)
def test_a_transaction_without_a_commit_is_an_error_and_quotes_no_record(
    end: Event, outcome: str, error: str, shown: str | None
) -> None:
    (span,) = spans_of(taken({P0: 5}, {P0: 9}, 4), end)
    found = span.attributes or {}
    assert (found["eos.outcome"], found["error.type"]) == (outcome, error)
    assert found["messaging.batch.message_count"] == 4
    assert "eos.records_out" not in found
    assert span.status.status_code is StatusCode.ERROR
    if shown is not None:
        assert span.status.description == shown
    assert "4711" not in str(span.status.description)


def test_each_transaction_has_its_own_input_and_offsets_alone_have_no_span() -> None:
    first, second = spans_of(
        taken({P0: 5}, {P0: 9}, 4),
        events.TransactionEnded(SHARD, "aborted", "RebalancedError: x", 0.1),
        taken({P0: 5}, {P0: 7}, 2),
        COMMITTED,
        COMMITTED,
        events.Fenced(SHARD, "x"),
    )
    assert [(s.attributes or {})["eos.offsets"] for s in (first, second)] == ["in[0] [5, 9)", "in[0] [5, 7)"]


def test_links_lead_to_the_sampled_writers_of_the_input_once_each_and_to_128_at_most() -> None:
    some = [context_of(n) for n in (1, 2, 2)]
    (span,) = spans_of(
        taken({P0: 5}, {P0: 9}, 4, *some, "garbage", context_of(3, flags="00")),
        taken({P0: 9}, {P0: 10}, 1, context_of(1), context_of(4)),
        COMMITTED,
    )
    assert [link.context.span_id for link in span.links] == [1, 2, 4]
    (span,) = spans_of(taken({P0: 5}, {P0: 999}, 994, *map(context_of, range(1, 300))), COMMITTED)
    assert [link.context.trace_id for link in span.links] == list(range(1, 129))


def fetched(headers: Sequence[Headers]) -> FetchedBatch:
    ledger = Ledger(OffsetMetadata(OwnershipMode.GROUP, "#0"))
    ledger.taken_over({P0: None}, OffsetVector({P0: 5}))
    messages = [
        InputRecord("in", 0, 5 + at, None, b"x", of_record, 1) for at, of_record in enumerate(headers)
    ]
    ends = OffsetVector({P0: 5 + len(headers)})
    as_messages = InputBatch.of(messages)._messages
    return ledger.batch(as_messages, ends)[0]


@pytest.mark.usefixtures("trace_contexts_wanted")
def test_a_fetch_names_the_trace_contexts_of_its_first_records() -> None:
    one, two = context_of(1).encode(), context_of(2).encode()
    batch = fetched(
        [(("traceparent", one),), (), (("a", b"b"), ("traceparent", two)), (("traceparent", one),)]
        + [()] * 124
        + [(("traceparent", context_of(3).encode()),)]
    )
    event = batch.taken(SHARD)
    assert event.traceparents == (one.decode(), two.decode())
    assert (event.records, event.begins[P0], event.ends[P0]) == (129, 5, 134)


@pytest.mark.usefixtures("trace_contexts_wanted")
def test_headers_without_a_value_or_of_another_encoding_do_not_stop_the_job() -> None:
    batch = fetched([(("traceparent", None),), (("traceparent", b"\xff\xfe"),)])
    (span,) = spans_of(batch.taken(SHARD), COMMITTED)
    assert span.links == ()


def test_without_a_listener_for_them_no_header_is_read() -> None:
    class NoHeaders:
        def __getattr__(self, name: str) -> None:
            raise AssertionError(name)

    batch = FetchedBatch([NoHeaders()], OffsetVector({P0: 5}), OffsetVector({P0: 6}), Reading())  # type: ignore[list-item]
    assert batch.taken(SHARD).traceparents == ()


def test_figures_have_the_names_and_labels_of_the_metrics_page_and_the_worker() -> None:
    counted = WorkerState()
    reader = InMemoryMetricReader()
    meter = MeterProvider(metric_readers=[reader]).get_meter("test")
    record = figures(meter, counted.registry, {"worker": "2"})
    for event in (
        COMMITTED,
        COMMITTED,
        events.TransactionEnded(SHARD, "aborted", "x", 0.1),
        events.Sampled(SHARD, lag=events.Lag({P0: 5}, {P0: 7})),
    ):
        counted(event)
        record(event)
    data = reader.get_metrics_data()
    assert data is not None
    found = {
        metric.name: {
            tuple(sorted((point.attributes or {}).items())): point.count
            if isinstance(point, HistogramDataPoint)
            else getattr(point, "value", None)
            for point in metric.data.data_points
        }
        for of_resource in data.resource_metrics
        for scope in of_resource.scope_metrics
        for metric in scope.metrics
    }
    assert found["eos_records_out"] == {(("worker", "2"),): 24}
    assert found["eos_transactions"] == {
        (("outcome", "aborted"), ("shard", SHARD), ("worker", "2")): 1,
        (("outcome", "committed"), ("shard", SHARD), ("worker", "2")): 2,
        (("outcome", "unresolved"), ("shard", SHARD), ("worker", "2")): 0,
    }
    assert found["eos_lag_records"] == {(("partition", "0"), ("topic", "in"), ("worker", "2")): 5}
    assert found["eos_commit_seconds"] == {(("worker", "2"),): 2}
    assert found.keys() <= {family.name for family in counted.registry.collect()}
    missing = {family.name for family in counted.registry.collect()} - found.keys()
    assert missing == {  # nothing has been counted under these yet
        "eos_retries",
        "eos_dead_letters",
        "eos_stalled_seconds",
    }


def test_without_a_provider_headers_stay_unread_and_the_events_are_taken() -> None:
    telemetry = Telemetry(WorkerState().registry, 0)
    for event in (events.SessionOpened(SHARD, 0.1), taken({P0: 5}, {P0: 9}), COMMITTED):
        telemetry(event)
    assert not TraceContexts.wanted


def test_sessions_that_open_at_once_show_the_figures_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def listen(registry: object, ordinal: int) -> Listener:
        time.sleep(0.05)
        made.append(ordinal)
        return lambda _: None

    monkeypatch.setattr(otel, "listen", listen)
    telemetry = Telemetry(WorkerState().registry, 7)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(telemetry, [events.SessionOpened(f"a.b.p.in.{n}", 0.1) for n in range(4)]))
    assert made == [7]
