"""A job whose transactions are spans: eos run docs.examples.traced_job:job. It needs eos-kafka[otel] and opentelemetry-sdk."""

from multiprocessing import parent_process

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

from eos import InputRecord, Job, OutputRecord

# In a worker process alone: `eos run`'s parent and `eos verify` import this module too. In the place of the two exporters to
# the console you will want those of opentelemetry-exporter-otlp.
if parent_process() is not None:
    resource = Resource.create({"service.name": "shipments"})
    tracing = TracerProvider(resource=resource)
    tracing.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter()))
    trace.set_tracer_provider(tracing)
    metrics.set_meter_provider(
        MeterProvider([PeriodicExportingMetricReader(ConsoleMetricExporter())], resource)
    )


def labels(record: InputRecord) -> list[OutputRecord]:
    """A label per shipment. Its reader's spans join the shipment's trace, because the headers go on as they came."""
    return [OutputRecord("shipment-labels", record.value, record.key, record.headers, record.timestamp_ms)]


job = Job(name="shipment-labels", inputs=["shipments"], outputs=["shipment-labels"], transform=labels)
