"""The refunds processor: settlements in; refunds, audit records and dead letters out.

Every output of a settlement and its input offset are one transaction. The records of a merchant keep
their order, because they carry its id as their key. Output timestamps are those of the input: with a
clock's, the same input would give another output when it is computed again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from pydantic import BaseModel, ConfigDict, Field

from eos import InputRecord, Job, OutputRecord, dead_letter
from jobs.refund_rules import DEFAULT_MAX_REFUNDS, InvalidSettlementError, decide, parse_settlement, to_json

SETTLEMENTS = "settlements"
REFUNDS_EMITTED = "refunds-emitted"
REFUND_AUDIT = "refund-audit"
DEAD_LETTERS = "settlements.dlq"


class RefundSettings(BaseModel):
    """Settings of the rules (table ``[job]``)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_refunds_per_settlement: int = Field(
        default=DEFAULT_MAX_REFUNDS,
        ge=1,
        description="refunds emitted per settlement at most; requests beyond are rejected as too_many_refunds",
    )


def refunds(settings: RefundSettings) -> Callable[[InputRecord], list[OutputRecord]]:
    """The transform of a settlement: its refunds, then its audit records; or its dead letter.

    It raises for no input: what is no settlement is an output here, whatever the poison policy says.
    """
    max_refunds = settings.max_refunds_per_settlement

    def transform(record: InputRecord) -> list[OutputRecord]:
        try:
            settlement = parse_settlement(record.value)
        except InvalidSettlementError as error:
            return [dead_letter(record, str(error), topic=DEAD_LETTERS)]
        key = settlement.merchant_id.encode()
        decisions = decide(settlement, max_refunds=max_refunds)
        return [
            OutputRecord(topic, to_json(output), key, timestamp_ms=record.timestamp_ms)
            for topic, outputs in ((REFUNDS_EMITTED, decisions.refunds), (REFUND_AUDIT, decisions.audits))
            for output in outputs
        ]

    return transform


def sample_input(seed: int) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Settlements without end, one in a hundred of them poison: what `eos prove` feeds the job with."""
    from jobs.settlements import settlements

    return settlements(sys.maxsize, seed)


job = Job(
    name="refunds",
    inputs=[SETTLEMENTS],
    outputs=[REFUNDS_EMITTED, REFUND_AUDIT],
    transform_factory=refunds,
    dead_letters=DEAD_LETTERS,
    settings=RefundSettings,
)
