"""The rules of refunding: which refund requests of a settlement are emitted, and why the others are not.

Pure: no clock, no random number, no I/O, and nothing of eos or Kafka. The same event gives the same
bytes in every process, so that an output can be computed again and compared.

Amounts are integers in minor units (cents). Timestamps are carried as the text that came in, never
parsed into a clock's type and printed again, which could change their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from enum import StrEnum
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

DEFAULT_MAX_REFUNDS = 100  # emitted refunds per settlement; see RefundSettings in jobs/refunds.py
SETTLED = "settled"  # the one status that can be refunded

_MAX_MINOR = 2**63 - 1  # what readers in other languages keep in a 64-bit integer
_MAX_ERRORS_NAMED = 3  # an error text goes into a record header: enough to find the fault, still short
_TIMESTAMP = (  # RFC 3339; [0-9] because \d also matches digits of other scripts
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?"
    r"(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"
)


def _on_the_calendar(timestamp: str) -> str:
    date.fromisoformat(timestamp[:10])  # ValueError for the 30th of February
    return timestamp


Id = Annotated[str, StringConstraints(min_length=1, max_length=100)]
Text = Annotated[str, StringConstraints(max_length=1000)]
Currency = Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")]
Timestamp = Annotated[str, StringConstraints(pattern=_TIMESTAMP), AfterValidator(_on_the_calendar)]


class _Event(BaseModel):
    # strict: "12" or 12.0 is no amount. Unknown fields are ignored: a field that the sender adds must
    # not turn every event into a dead letter; and so an error text never quotes a name from outside.
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class RefundRequest(_Event):
    """A wish to refund part of a settlement; ``amount_minor`` may be senseless, which is for the rules to say."""

    refund_id: Id
    amount_minor: Annotated[int, Field(ge=-_MAX_MINOR, le=_MAX_MINOR)]
    currency: Currency
    reason: Text
    created_at: Timestamp


class Settlement(_Event):
    """One input event: what was settled for a payment, with the refunds asked of it so far."""

    settlement_id: Id
    merchant_id: Id
    payment_id: Id
    amount_minor: Annotated[int, Field(ge=0, le=_MAX_MINOR)]
    currency: Currency
    status: Text  # any text: a status that is new to us is not settled, hence rejected and audited
    refund_requests: tuple[RefundRequest, ...]


class Refund(_Event):
    """A refund to pay out."""

    refund_id: str
    settlement_id: str
    merchant_id: str
    payment_id: str
    amount_minor: int
    currency: str
    reason: str
    created_at: str


class Decision(StrEnum):
    """What became of a refund request."""

    EMITTED = "emitted"
    REJECTED = "rejected"


class Rejection(StrEnum):
    """Why a refund request was rejected. The first that holds, in this order, is the one given."""

    NOT_SETTLED = "not_settled"  # the settlement's status is another one
    REPEATED_REFUND_ID = (
        "repeated_refund_id"  # an earlier request of this event has the id, whatever became of it
    )
    CURRENCY_MISMATCH = "currency_mismatch"  # not the settlement's currency
    NON_POSITIVE_AMOUNT = "non_positive_amount"
    OVER_SETTLED_AMOUNT = "over_settled_amount"  # more than is left of the settled amount
    TOO_MANY_REFUNDS = "too_many_refunds"  # the settlement already has its maximum of emitted refunds


class AuditRecord(_Event):
    """One decision. ``(settlement_id, request_index)`` tells it from the other decisions of its event.

    Attributes:
        request_index: place of the request in the event, from 0.
        amount_minor: what was asked for.
        remaining_minor: what was left of the settled amount before this decision.
        rejection: None for an emitted refund.
    """

    settlement_id: str
    request_index: int
    refund_id: str
    merchant_id: str
    payment_id: str
    amount_minor: int
    currency: str
    remaining_minor: int
    decision: Decision
    rejection: Rejection | None


class Decisions(NamedTuple):
    """The outcome for one settlement, in the order of its requests."""

    refunds: Sequence[Refund]
    audits: Sequence[AuditRecord]


class InvalidSettlementError(ValueError):
    """The bytes are no settlement. The text is short and the same at every try: fields and kinds of error."""


def parse_settlement(raw: bytes | None) -> Settlement:
    """The settlement that a record's value holds, as JSON in UTF-8.

    Raises:
        InvalidSettlementError: it holds none.
    """
    if raw is None:
        raise InvalidSettlementError("value: missing")
    try:
        return Settlement.model_validate_json(raw)
    except ValidationError as error:
        raise InvalidSettlementError(_stable_text(error)) from error


def _stable_text(error: ValidationError) -> str:
    # pydantic's own text holds a URL with its version and quotes the input; places and types are stable.
    found = error.errors(include_url=False, include_context=False, include_input=False)
    named = [f"{_place(details['loc'])}: {details['type']}" for details in found[:_MAX_ERRORS_NAMED]]
    if len(found) > _MAX_ERRORS_NAMED:
        named.append(f"and {len(found) - _MAX_ERRORS_NAMED} more")
    return "; ".join(named)


def _place(steps: tuple[int | str, ...]) -> str:
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return path.removeprefix(".") or "value"


def decide(settlement: Settlement, *, max_refunds: int = DEFAULT_MAX_REFUNDS) -> Decisions:
    """Decide each refund request of a settlement, in order: one audit record each, a refund per emitted one.

    Args:
        settlement: the event.
        max_refunds: how many refunds of one settlement may be emitted.
    """
    refunds: list[Refund] = []
    audits: list[AuditRecord] = []
    seen: set[str] = set()
    remaining_minor = settlement.amount_minor
    for index, request in enumerate(settlement.refund_requests):
        rejection = _rejection(
            settlement,
            request,
            is_repeated=request.refund_id in seen,
            remaining_minor=remaining_minor,
            is_full=len(refunds) >= max_refunds,
        )
        seen.add(request.refund_id)
        audits.append(
            AuditRecord(
                settlement_id=settlement.settlement_id,
                request_index=index,
                refund_id=request.refund_id,
                merchant_id=settlement.merchant_id,
                payment_id=settlement.payment_id,
                amount_minor=request.amount_minor,
                currency=request.currency,
                remaining_minor=remaining_minor,
                decision=Decision.EMITTED if rejection is None else Decision.REJECTED,
                rejection=rejection,
            )
        )
        if rejection is None:
            remaining_minor -= request.amount_minor
            refunds.append(
                Refund(
                    refund_id=request.refund_id,
                    settlement_id=settlement.settlement_id,
                    merchant_id=settlement.merchant_id,
                    payment_id=settlement.payment_id,
                    amount_minor=request.amount_minor,
                    currency=request.currency,
                    reason=request.reason,
                    created_at=request.created_at,
                )
            )
    return Decisions(refunds, audits)


def _rejection(
    settlement: Settlement, request: RefundRequest, *, is_repeated: bool, remaining_minor: int, is_full: bool
) -> Rejection | None:
    if settlement.status != SETTLED:
        return Rejection.NOT_SETTLED
    if is_repeated:
        return Rejection.REPEATED_REFUND_ID
    if request.currency != settlement.currency:
        return Rejection.CURRENCY_MISMATCH
    if request.amount_minor <= 0:
        return Rejection.NON_POSITIVE_AMOUNT
    if request.amount_minor > remaining_minor:
        return Rejection.OVER_SETTLED_AMOUNT
    return Rejection.TOO_MANY_REFUNDS if is_full else None


def to_json(record: Refund | AuditRecord) -> bytes:
    """The record as JSON in UTF-8, fields in their declared order: equal records give equal bytes."""
    return record.model_dump_json().encode()
