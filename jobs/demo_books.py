"""The books of two databases, compared by plain SQL: what the application was asked for, and what became of it in the tables.

Nothing of eos is asked. Between the databases a transaction can be lost or doubled; in the tables alone one can be torn, because the
refunds processor writes a refund and its audit record to two topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy import Engine, text

_Sums = Mapping[tuple[str, str], tuple[int, int]]  # by merchant and currency: how many, and how much

_ASKED = """
    SELECT merchant_id, r.currency, count(*), sum(r.amount_minor)
    FROM refund_requests r JOIN settlements s ON s.settlement_id = r.settlement_id GROUP BY merchant_id, r.currency
"""
_DECIDED = "SELECT merchant_id, currency, count(*), sum(amount_minor) FROM refund_audit GROUP BY merchant_id, currency"
_GRANTED = """
    SELECT merchant_id, currency, count(*), sum(amount_minor) FROM refund_audit WHERE decision = 'emitted'
    GROUP BY merchant_id, currency
"""
_REFUNDED = (
    "SELECT merchant_id, currency, count(*), sum(amount_minor) FROM refunds GROUP BY merchant_id, currency"
)

_REQUESTS = "SELECT settlement_id, request_index FROM refund_requests"
_DECISIONS = "SELECT DISTINCT settlement_id, request_index FROM refund_audit"
_DOUBLED = """
    SELECT coalesce(sum(times - 1), 0) FROM (
        SELECT count(*) AS times FROM refund_audit GROUP BY settlement_id, request_index
        UNION ALL
        SELECT count(*) AS times FROM refunds GROUP BY settlement_id, refund_id
    ) AS rows_of_one
"""
_SAME = """
    r.settlement_id = a.settlement_id AND r.refund_id = a.refund_id AND r.amount_minor = a.amount_minor AND
    r.currency = a.currency AND r.merchant_id = a.merchant_id AND a.decision = 'emitted'
"""
_TORN = f"""
    SELECT
        (SELECT count(*) FROM refund_audit a
            WHERE a.decision = 'emitted' AND NOT EXISTS (SELECT 1 FROM refunds r WHERE {_SAME})) +
        (SELECT count(*) FROM refunds r WHERE NOT EXISTS (SELECT 1 FROM refund_audit a WHERE {_SAME}))
"""  # noqa: S608 - no value of anybody's is in it


class Books(NamedTuple):
    """What the comparison found.

    Attributes:
        asked: in the application's database: the refunds that were asked for, by merchant and currency.
        decided: in the tables: the decisions.
        refunded: in the tables: the refunds.
        differing: merchants and currencies of which the sums or counts differ.
        lost: requests without a decision.
        unasked: decisions without a request.
        doubled: rows of the tables beyond the first of one decision, or of one refund.
        torn: refunds without their decision, and decisions without their refund.
    """

    asked: _Sums
    decided: _Sums
    refunded: _Sums
    differing: int
    lost: int
    unasked: int
    doubled: int
    torn: int

    @property
    def are_exact(self) -> bool:
        """Whether there is something in them, and nothing wrong with it."""
        wrong = self.differing + self.lost + self.unasked + self.doubled + self.torn
        return bool(self.asked) and wrong == 0


def compare(application: Engine, tables: Engine) -> Books:
    """Count and sum in both."""
    asked, requests = _sums(application, _ASKED), _keys(application, _REQUESTS)
    decided, granted, refunded = (_sums(tables, one) for one in (_DECIDED, _GRANTED, _REFUNDED))
    decisions = _keys(tables, _DECISIONS)
    return Books(
        asked,
        decided,
        refunded,
        differing=len(
            {key for key, _ in (asked.items() ^ decided.items()) | (granted.items() ^ refunded.items())}
        ),
        lost=len(requests - decisions),
        unasked=len(decisions - requests),
        doubled=number(tables, _DOUBLED),
        torn=number(tables, _TORN),
    )


def number(engine: Engine, statement: str) -> int:
    """The one number that a query gives."""
    with engine.connect() as connection:
        return int(connection.execute(text(statement)).scalar_one())


def _sums(engine: Engine, statement: str) -> _Sums:
    with engine.connect() as connection:
        found = connection.execute(text(statement)).all()
    return {(merchant, currency): (int(count), int(amount)) for merchant, currency, count, amount in found}


def _keys(engine: Engine, statement: str) -> set[tuple[str, int]]:
    with engine.connect() as connection:
        return {(settlement, index) for settlement, index in connection.execute(text(statement))}
