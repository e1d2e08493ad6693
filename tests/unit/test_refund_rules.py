"""The rules of refunding, and the job that adapts them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from eos.records import InputRecord, OutputRecord
from jobs.refund_rules import (
    AuditRecord,
    Decision,
    InvalidSettlementError,
    Refund,
    RefundRequest,
    Rejection,
    Settlement,
    decide,
    parse_settlement,
    to_json,
)
from jobs.refunds import RefundSettings, job

CASES = settings(max_examples=30, deadline=None)
AT = "2026-01-02T03:04:05Z"


def request(refund_id: str = "r-1", amount_minor: int = 10, currency: str = "EUR") -> RefundRequest:
    return RefundRequest(
        refund_id=refund_id, amount_minor=amount_minor, currency=currency, reason="late", created_at=AT
    )


def settlement(
    *requests: RefundRequest, amount_minor: int = 100, currency: str = "EUR", status: str = "settled"
) -> Settlement:
    return Settlement(
        settlement_id="s-1",
        merchant_id="m-1",
        payment_id="p-1",
        amount_minor=amount_minor,
        currency=currency,
        status=status,
        refund_requests=requests,
    )


def outcomes(event: Settlement, max_refunds: int = 100) -> list[Rejection | None]:
    return [audit.rejection for audit in decide(event, max_refunds=max_refunds).audits]


EMITTED = None


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        pytest.param(settlement(), [], id="nothing asked, nothing decided"),
        pytest.param(settlement(request(amount_minor=100)), [EMITTED], id="all of the amount"),
        pytest.param(
            settlement(request(amount_minor=101)), [Rejection.OVER_SETTLED_AMOUNT], id="one too much"
        ),
        pytest.param(
            settlement(request("a", 70), request("b", 60), request("c", 30)),
            [EMITTED, Rejection.OVER_SETTLED_AMOUNT, EMITTED],
            id="a rejected request uses nothing up",
        ),
        pytest.param(
            settlement(request("a", 50), request("b", 50), request("c", 1)),
            [EMITTED, EMITTED, Rejection.OVER_SETTLED_AMOUNT],
            id="the running total counts",
        ),
        pytest.param(settlement(request(currency="USD")), [Rejection.CURRENCY_MISMATCH], id="other currency"),
        pytest.param(
            settlement(request(), request("b"), request()),
            [EMITTED, EMITTED, Rejection.REPEATED_REFUND_ID],
            id="repeated after an emitted one",
        ),
        pytest.param(
            settlement(request(currency="USD"), request()),
            [Rejection.CURRENCY_MISMATCH, Rejection.REPEATED_REFUND_ID],
            id="repeated after a rejected one",
        ),
        pytest.param(settlement(request(), status="pending"), [Rejection.NOT_SETTLED], id="pending"),
        pytest.param(settlement(request(), status="Settled"), [Rejection.NOT_SETTLED], id="status is exact"),
        pytest.param(settlement(request(amount_minor=0)), [Rejection.NON_POSITIVE_AMOUNT], id="zero"),
        pytest.param(settlement(request(amount_minor=-5)), [Rejection.NON_POSITIVE_AMOUNT], id="negative"),
        pytest.param(
            settlement(request(currency="USD", amount_minor=-5), status="failed"),
            [Rejection.NOT_SETTLED],
            id="of several reasons the first is given",
        ),
        pytest.param(
            settlement(request(amount_minor=1), amount_minor=0),
            [Rejection.OVER_SETTLED_AMOUNT],
            id="nothing settled",
        ),
    ],
)
def test_requests_are_decided_by_the_rules(event: Settlement, expected: list[Rejection | None]) -> None:
    assert outcomes(event) == expected


def test_requests_beyond_the_maximum_are_rejected_and_rejected_ones_do_not_count() -> None:
    event = settlement(request("a", 0), request("b"), request("c"), request("d"))

    assert outcomes(event, max_refunds=2) == [
        Rejection.NON_POSITIVE_AMOUNT,
        EMITTED,
        EMITTED,
        Rejection.TOO_MANY_REFUNDS,
    ]


def test_audit_record_says_what_was_left_before_the_decision() -> None:
    audits = decide(settlement(request("a", 70), request("b", 60), request("c", 30))).audits

    assert [(a.request_index, a.remaining_minor) for a in audits] == [(0, 100), (1, 30), (2, 30)]


def test_bytes_of_outputs_are_pinned() -> None:
    """Consumers of the topics and outputs already written hold us to these bytes."""
    decisions = decide(settlement(request("a", 70), request("é", 60)))

    refund_a = (
        '{"refund_id":"a","settlement_id":"s-1","merchant_id":"m-1","payment_id":"p-1","amount_minor":70,'
        '"currency":"EUR","reason":"late","created_at":"2026-01-02T03:04:05Z"}'
    )
    audit_a = (
        '{"settlement_id":"s-1","request_index":0,"refund_id":"a","merchant_id":"m-1","payment_id":"p-1",'
        '"amount_minor":70,"currency":"EUR","remaining_minor":100,"decision":"emitted","rejection":null}'
    )
    audit_e = (
        '{"settlement_id":"s-1","request_index":1,"refund_id":"é","merchant_id":"m-1","payment_id":"p-1",'
        '"amount_minor":60,"currency":"EUR","remaining_minor":30,"decision":"rejected",'
        '"rejection":"over_settled_amount"}'
    )
    assert [to_json(refund).decode() for refund in decisions.refunds] == [refund_a]
    assert [to_json(audit).decode() for audit in decisions.audits] == [audit_a, audit_e]


def test_models_are_immutable() -> None:
    with pytest.raises(ValidationError):
        settlement().amount_minor = 5  # type: ignore[misc] # the point of the test


currencies = st.sampled_from(["EUR", "USD"])
requests = st.builds(
    request, refund_id=st.sampled_from("abcdef"), amount_minor=st.integers(-20, 120), currency=currencies
)
settlements = st.builds(
    lambda asked, **fields: settlement(*asked, **fields),
    st.lists(requests, max_size=8),
    amount_minor=st.integers(0, 200),
    currency=currencies,
    status=st.sampled_from(["settled", "settled", "settled", "pending"]),
)


@CASES
@given(event=settlements, max_refunds=st.integers(1, 4))
def test_every_settlement_keeps_the_invariants(event: Settlement, max_refunds: int) -> None:
    refunds, audits = decide(event, max_refunds=max_refunds)

    assert sum(refund.amount_minor for refund in refunds) <= event.amount_minor
    assert len(refunds) <= max_refunds
    assert all(refund.amount_minor > 0 and refund.currency == event.currency for refund in refunds)
    assert len({refund.refund_id for refund in refunds}) == len(refunds)
    assert event.status == "settled" or not refunds
    # One audit record for each request, in order, that says what was asked.
    assert [(a.request_index, a.refund_id, a.amount_minor, a.currency) for a in audits] == [
        (i, r.refund_id, r.amount_minor, r.currency) for i, r in enumerate(event.refund_requests)
    ]
    assert all((audit.decision is Decision.EMITTED) == (audit.rejection is None) for audit in audits)
    # A refund for each audit record that says so, as it was asked for.
    emitted = [event.refund_requests[a.request_index] for a in audits if a.decision is Decision.EMITTED]
    assert [(r.refund_id, r.amount_minor, r.reason, r.created_at) for r in refunds] == [
        (r.refund_id, r.amount_minor, r.reason, r.created_at) for r in emitted
    ]


def encoded(event: Settlement) -> list[bytes]:
    refunds, audits = decide(event)
    return [*(to_json(refund) for refund in refunds), *(to_json(audit) for audit in audits)]


@CASES
@given(event=settlements)
def test_the_same_event_gives_the_same_bytes(event: Settlement) -> None:
    copy = parse_settlement(event.model_dump_json().encode())

    assert copy == event
    assert encoded(copy) == encoded(event)


@CASES
@given(event=settlements)
def test_outputs_read_back_as_they_were_written(event: Settlement) -> None:
    refunds, audits = decide(event)

    assert [Refund.model_validate_json(to_json(refund)) for refund in refunds] == refunds
    assert [AuditRecord.model_validate_json(to_json(audit)) for audit in audits] == audits


def valid() -> dict[str, Any]:
    event: dict[str, Any] = json.loads(settlement(request()).model_dump_json())
    return event


def changed(**fields: object) -> bytes:
    return json.dumps(valid() | fields).encode()


def asked(**fields: object) -> bytes:
    return changed(refund_requests=[valid()["refund_requests"][0] | fields])


def without(name: str) -> bytes:
    return json.dumps({key: value for key, value in valid().items() if key != name}).encode()


INVALID = {
    "tombstone": (None, "value: missing"),
    "empty value": (b"", "value: json_invalid"),
    "cut off": (changed()[:-1], "value: json_invalid"),
    "not UTF-8": (changed().replace(b"EUR", b"\xff\xfe"), "value: json_invalid"),
    "half of a surrogate pair": (changed(merchant_id="m-\ud800"), "value: json_invalid"),
    "nested without end": (b"[" * 100_000, "value: json_invalid"),
    "number without end": (b'{"amount_minor":' + b"9" * 100_000 + b"}", "value: json_invalid"),
    "two values": (changed() * 2, "value: json_invalid"),
    "no object": (b"[]", "value: model_type"),
    "null": (b"null", "value: model_type"),
    "missing field": (without("payment_id"), "payment_id: missing"),
    "missing requests": (without("refund_requests"), "refund_requests: missing"),
    "amount as text": (changed(amount_minor="100"), "amount_minor: int_type"),
    "amount with a fraction": (changed(amount_minor=1.5), "amount_minor: int_type"),
    "amount as a float": (changed(amount_minor=100.0), "amount_minor: int_type"),
    "amount as a bool": (changed(amount_minor=True), "amount_minor: int_type"),
    "negative amount": (changed(amount_minor=-1), "amount_minor: greater_than_equal"),
    "amount over 64 bits": (changed(amount_minor=2**63), "amount_minor: less_than_equal"),
    "currency in small letters": (changed(currency="eur"), "currency: string_pattern_mismatch"),
    "currency and a newline": (changed(currency="EUR\n"), "currency: string_pattern_mismatch"),
    "empty id": (changed(merchant_id=""), "merchant_id: string_too_short"),
    "long id": (changed(merchant_id="m" * 101), "merchant_id: string_too_long"),
    "id as number": (changed(merchant_id=7), "merchant_id: string_type"),
    "requests are no list": (changed(refund_requests={}), "refund_requests: tuple_type"),
    "request is no object": (changed(refund_requests=[1]), "refund_requests[0]: model_type"),
    "request's amount": (asked(amount_minor=None), "refund_requests[0].amount_minor: int_type"),
    "no timestamp": (asked(created_at="yesterday"), "refund_requests[0].created_at: string_pattern_mismatch"),
    "no time zone": (
        asked(created_at="2026-01-02T03:04:05"),
        "refund_requests[0].created_at: string_pattern_mismatch",
    ),
    "hour 24": (
        asked(created_at="2026-01-02T24:00:00Z"),
        "refund_requests[0].created_at: string_pattern_mismatch",
    ),
    "not on the calendar": (
        asked(created_at="2026-02-30T03:04:05Z"),
        "refund_requests[0].created_at: value_error",
    ),
    "many faults": (b"{}", "settlement_id: missing; merchant_id: missing; payment_id: missing; and 4 more"),
}


@pytest.mark.parametrize(("raw", "text"), INVALID.values(), ids=INVALID.keys())
def test_what_is_no_settlement_is_refused_with_a_stable_text(raw: bytes | None, text: str) -> None:
    """The text is an output: it must not follow pydantic's wording, its version or the input's size."""
    with pytest.raises(InvalidSettlementError) as raised:
        parse_settlement(raw)

    assert str(raised.value) == text


@pytest.mark.parametrize("created_at", ["2024-02-29T23:59:59.123456789+05:30", "2026-01-02T03:04:05-00:00"])
def test_timestamps_are_carried_byte_for_byte(created_at: str) -> None:
    refunds = decide(parse_settlement(asked(created_at=created_at))).refunds

    assert refunds[0].created_at == created_at


def test_field_added_by_the_sender_is_ignored() -> None:
    assert parse_settlement(changed(schema_version=2)) == settlement(request())


def record(value: bytes | None, timestamp_ms: int | None = 1_700_000_000_000) -> InputRecord:
    return InputRecord("settlements", 3, 17, b"any key", value, (("trace", b"1"),), timestamp_ms)


def transformed(value: bytes | None, **fields: int) -> list[OutputRecord]:
    return job.bound(RefundSettings(**fields)).record(record(value))


def test_job_writes_refunds_and_audit_records_under_the_merchants_key_and_the_inputs_timestamp() -> None:
    event = settlement(request("a", 70), request("b", 60))
    decisions = decide(event)

    assert transformed(event.model_dump_json().encode()) == [
        OutputRecord(
            "refunds-emitted", to_json(decisions.refunds[0]), b"m-1", timestamp_ms=1_700_000_000_000
        ),
        OutputRecord("refund-audit", to_json(decisions.audits[0]), b"m-1", timestamp_ms=1_700_000_000_000),
        OutputRecord("refund-audit", to_json(decisions.audits[1]), b"m-1", timestamp_ms=1_700_000_000_000),
    ]


def test_job_writes_nothing_for_a_settlement_without_requests() -> None:
    assert transformed(settlement().model_dump_json().encode()) == []


@pytest.mark.parametrize(("raw", "text"), INVALID.values(), ids=INVALID.keys())
def test_job_dead_letters_what_is_no_settlement(raw: bytes | None, text: str) -> None:
    [letter] = transformed(raw)

    assert letter == OutputRecord(
        topic="settlements.dlq",
        value=raw,
        key=b"any key",
        headers=(
            ("trace", b"1"),
            ("eos.deadletter.topic", b"settlements"),
            ("eos.deadletter.partition", b"3"),
            ("eos.deadletter.offset", b"17"),
            ("eos.deadletter.error", text.encode()),
        ),
        timestamp_ms=1_700_000_000_000,
    )


@CASES
@given(st.binary() | st.from_regex(rb'\{"[a-z_]+":.*\}', fullmatch=True))
def test_job_raises_for_no_bytes_at_all(raw: bytes) -> None:
    [letter] = transformed(raw)

    assert letter.topic == "settlements.dlq"


def test_job_applies_its_settings() -> None:
    event = settlement(request("a"), request("b")).model_dump_json().encode()

    topics = [output.topic for output in transformed(event, max_refunds_per_settlement=1)]

    assert topics == ["refunds-emitted", "refund-audit", "refund-audit"]


@pytest.mark.parametrize("wrong", [{"max_refunds_per_settlement": 0}, {"max_refunds": 5}])
def test_wrong_settings_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        RefundSettings.model_validate(wrong)
