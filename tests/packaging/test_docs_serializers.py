"""The code of docs/SERIALIZERS.md, run as it stands there against confluent's mock registry."""

from __future__ import annotations

import json
import sys
from types import ModuleType
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import (  # type: ignore[import-untyped] # protobuf ships no types
    descriptor_pb2,
    message_factory,
)

from eos import InputRecord, Job, OutputRecord, UnclassifiedError
from tests.support.documents import blocks

PAGE = blocks("docs/SERIALIZERS.md")
SUBJECT = "refunds-emitted-value"
VALUE_OUT = SerializationContext("refunds-emitted", MessageField.VALUE)
REFUNDS = [{"refund_id": "r-1", "amount_minor": 250}, {"refund_id": "r-2", "amount_minor": 7}]
SETTLEMENT = json.dumps(
    {
        "type": "record",
        "name": "Settlement",
        "fields": [
            {
                "name": "refunds",
                "type": {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "Refund",
                        "fields": [
                            {"name": "refund_id", "type": "string"},
                            {"name": "amount_minor", "type": "long"},
                        ],
                    },
                },
            }
        ],
    }
)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> SchemaRegistryClient:
    """One mock registry for the test and the page's code: mock:// gives each client a store of its own."""
    client = SchemaRegistryClient.new_client({"url": "mock://docs"})
    monkeypatch.setattr(SchemaRegistryClient, "new_client", lambda _configuration: client)
    return client


@pytest.fixture
def refund_message(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What protoc would make of the page's .proto, as the module ``payments_pb2``."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="payments.proto", syntax="proto3")
    message = file.message_type.add(name="Refund")
    message.field.add(name="refund_id", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    message.field.add(name="amount_minor", number=2, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
    module = ModuleType("payments_pb2")
    module.Refund = message_factory.GetMessages([file])["Refund"]  # type: ignore[attr-defined] # made here
    monkeypatch.setitem(sys.modules, "payments_pb2", module)
    return module.Refund


def page_block(heading: str) -> dict[str, Any]:
    """Run the page's Python block under this heading; returns its names."""
    names: dict[str, Any] = {"__name__": "job_of_the_page"}
    exec(compile(PAGE[heading], "docs/SERIALIZERS.md", "exec"), names)  # noqa: S102 - the page's own code
    return names


def outputs_of(job: Job, value: bytes) -> list[OutputRecord]:
    assert job.settings is not None
    transform = job.bound(job.settings(schema_registry_url="mock://docs"))
    record = InputRecord("settlements", 0, 41, b"merchant-7", value, timestamp_ms=1_700_000_000_000)
    once, again = transform.record(record), transform.record(record)
    assert again == once
    assert job.bound(job.settings(schema_registry_url="mock://docs")).record(record) == once
    assert [(out.key, out.timestamp_ms) for out in once] == [(b"merchant-7", 1_700_000_000_000)] * len(
        REFUNDS
    )
    return once


def values_of(outputs: list[OutputRecord]) -> list[bytes]:
    return [out.value for out in outputs if out.value is not None]


def test_avro_records_are_read_and_written_with_the_page_s_code(registry: SchemaRegistryClient) -> None:
    page = page_block("Avro in, Avro out")
    schema_id = registry.register_schema(SUBJECT, Schema(page["REFUND"], "AVRO"))
    settlement = AvroSerializer(registry, SETTLEMENT)(
        {"refunds": REFUNDS}, SerializationContext("settlements", MessageField.VALUE)
    )
    assert settlement is not None

    values = values_of(outputs_of(page["job"], settlement))

    read = AvroDeserializer(registry)
    assert [read(value, VALUE_OUT) for value in values] == REFUNDS
    assert {value[:5] for value in values} == {b"\x00" + schema_id.to_bytes(4, "big")}


def test_protobuf_records_are_written_with_the_page_s_code(
    registry: SchemaRegistryClient, refund_message: Any
) -> None:
    ProtobufSerializer(refund_message, registry)(
        refund_message(), VALUE_OUT
    )  # registers, as a deployment does
    page = page_block("Protobuf")

    values = values_of(outputs_of(page["job"], json.dumps({"refunds": REFUNDS}).encode()))

    read = ProtobufDeserializer(refund_message, {}, registry)
    found = [read(value, VALUE_OUT) for value in values]
    assert [{"refund_id": it.refund_id, "amount_minor": it.amount_minor} for it in found] == REFUNDS


def test_json_schema_records_are_written_with_the_page_s_code(registry: SchemaRegistryClient) -> None:
    page = page_block("JSON Schema")
    registry.register_schema(SUBJECT, Schema(page["REFUND"], "JSON"))

    values = values_of(outputs_of(page["job"], json.dumps({"refunds": REFUNDS}).encode()))

    read = JSONDeserializer(page["REFUND"], schema_registry_client=registry)
    assert [read(value, VALUE_OUT) for value in values] == REFUNDS


@pytest.mark.parametrize("mark", ["Avro in, Avro out", "Protobuf", "JSON Schema"])
def test_a_schema_that_is_not_registered_ends_the_start_and_is_not_registered_by_it(
    mark: str, registry: SchemaRegistryClient, refund_message: Any
) -> None:
    job = page_block(mark)["job"]
    with pytest.raises(UnclassifiedError, match="Schema Not Found") as raised:
        job.bound(job.settings(schema_registry_url="mock://docs"))
    assert isinstance(raised.value.__cause__, SchemaRegistryError)
    assert registry.get_subjects() == []
