"""The rows that the refunds processor's records become."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from eos.records import InputRecord
from jobs import refund_tables
from jobs.refund_rules import AuditRecord, Decision, Refund, Rejection, to_json
from jobs.refunds import REFUND_AUDIT, REFUNDS_EMITTED

REFUND = Refund(
    refund_id="r-1",
    settlement_id="s-1",
    merchant_id="m-1",
    payment_id="p-1",
    amount_minor=700,
    currency="EUR",
    reason="späte Lieferung",
    created_at="2026-01-02T03:04:05Z",
)
AUDIT = AuditRecord(
    settlement_id="s-1",
    request_index=1,
    refund_id="r-2",
    merchant_id="m-1",
    payment_id="p-1",
    amount_minor=9_000_000_000,
    currency="EUR",
    remaining_minor=300,
    decision=Decision.REJECTED,
    rejection=Rejection.OVER_SETTLED_AMOUNT,
)


def record(topic: str, value: bytes | None) -> InputRecord:
    return InputRecord(topic, 3, 41, b"m-1", value)


def test_refund_is_a_row_under_the_place_of_its_record() -> None:
    (change,) = refund_tables.rows(record(REFUNDS_EMITTED, to_json(REFUND)))
    assert change.table is refund_tables.refunds
    assert change.values == {"partition": 3, "record_offset": 41, **REFUND.model_dump()}


def test_audit_record_is_a_row_of_plain_texts_and_numbers() -> None:
    (change,) = refund_tables.rows(record(REFUND_AUDIT, to_json(AUDIT)))
    assert change.table is refund_tables.refund_audit
    assert change.values["decision"] == "rejected"
    assert change.values["rejection"] == "over_settled_amount"
    assert all(type(value) in (str, int) for value in change.values.values())
    emitted = AUDIT.model_copy(update={"decision": Decision.EMITTED, "rejection": None})
    (change,) = refund_tables.rows(record(REFUND_AUDIT, to_json(emitted)))
    assert change.values["rejection"] is None


def test_each_field_has_its_column() -> None:
    place = {"partition", "record_offset"}
    assert place | Refund.model_fields.keys() == set(refund_tables.refunds.columns.keys())
    assert place | AuditRecord.model_fields.keys() == set(refund_tables.refund_audit.columns.keys())


@pytest.mark.parametrize("value", [None, b"", b"{}", to_json(AUDIT)])
def test_what_is_no_refund_raises_for_the_poison_policy(value: bytes | None) -> None:
    with pytest.raises(ValidationError):
        refund_tables.rows(record(REFUNDS_EMITTED, value))


@pytest.mark.parametrize("module", ["settlement_outbox", "refund_tables"])
def test_example_uses_public_names_of_eos_alone(module: str) -> None:
    lines = (Path(refund_tables.__file__).parent / f"{module}.py").read_text().splitlines()
    imported = {line.split()[1] for line in lines if line.startswith("from eos")}
    assert imported <= {"eos", "eos.sql"}
