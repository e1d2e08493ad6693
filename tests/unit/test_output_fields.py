"""A header or a timestamp of a type that the client does not take: the error says which input record it was made of."""

from __future__ import annotations

from typing import Any

import pytest

from eos import InputRecord, Job, OutputBatch, OutputRecord
from eos.errors import UsageError
from eos.poison import PoisonFilter
from eos.records import InputBatch

FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"timestamp_ms": 1.5}, "a timestamp is float"),
    ({"partition": "0"}, "a partition is str"),
    ({"headers": {"name": b"v"}}, "a header is str"),
    ({"headers": [("name", 5)]}, r"a header is a tuple of \(str, int\)"),
    ({"headers": [("name", b"v", b"w")]}, r"a header is a tuple of \(str, bytes, bytes\)"),
    ({"headers": [(b"name", b"v")]}, r"a header is a tuple of \(bytes, bytes\)"),
]
RECORDS = InputBatch.of([InputRecord("in", 3, offset, None, b"%d" % offset) for offset in (41, 42, 43)])


def applied(fields: dict[str, Any], *, batches: bool) -> list[OutputBatch]:
    def of(record: InputRecord) -> dict[str, Any]:
        return fields if record.offset == 42 else {}

    def one(record: InputRecord) -> list[OutputRecord]:
        return [OutputRecord("out", record.value, **of(record))]

    def many(batch: InputBatch) -> list[OutputBatch]:
        return [
            OutputBatch(
                "out",
                [record.value],
                headers=[of(record).get("headers")],  # type: ignore[list-item] # what is tried
                timestamps_ms=[of(record).get("timestamp_ms")],
                partitions=[of(record).get("partition")],
            )
            for record in batch
        ]

    shape: dict[str, Any] = {"transform_batch": many} if batches else {"transform": one}
    transform = Job(name="j", inputs=["in"], outputs=["out"], **shape).bound()
    return PoisonFilter(transform, "stop", shard="j.g.i.0", listener=lambda _: None).apply(RECORDS)


@pytest.mark.parametrize("batches", [False, True], ids=["records", "batches"])
@pytest.mark.parametrize(("fields", "says"), FIELDS)
def test_field_of_a_wrong_type_names_the_input_record(
    fields: dict[str, Any], says: str, *, batches: bool
) -> None:
    with pytest.raises(UsageError, match=rf"in\[3\] offset 42: .*{says}\. Fix: "):
        applied(fields, batches=batches)


@pytest.mark.parametrize("batches", [False, True], ids=["records", "batches"])
def test_headers_that_are_an_empty_mapping_are_none(*, batches: bool) -> None:
    made = [record for batch in applied({"headers": {}}, batches=batches) for record in batch]
    assert [record.value for record in made] == [b"41", b"42", b"43"]


def test_time_of_minus_one_is_none() -> None:
    class Message:
        def timestamp(self) -> tuple[int, int]:
            return (1, -1)

    assert InputBatch([Message()]).timestamps_ms == [None]  # type: ignore[list-item] # all that is asked for
