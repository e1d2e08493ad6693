"""Where refunds go: two tables, whose rows are committed together with how far the topics were read.

A row's key is the place of its record. So a record that was written to a topic twice would be two rows: the tables hide
nothing of what was before them.

    eos sql tables jobs.refund_tables:job --apply
    eos run jobs.refund_tables:job
"""

from __future__ import annotations

from pydantic import BaseModel
from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table

from eos import InputRecord
from eos.sql import Insert, SqlJob
from jobs.refund_rules import AuditRecord, Refund
from jobs.refunds import REFUND_AUDIT, REFUNDS_EMITTED

metadata = MetaData()


def _place() -> list[Column[int]]:
    """The key: where the record stands in its topic."""
    return [
        Column("partition", Integer, primary_key=True, autoincrement=False),
        Column("record_offset", BigInteger, primary_key=True, autoincrement=False),
    ]


refunds = Table(
    "refunds",
    metadata,
    *_place(),
    Column("refund_id", String, nullable=False),
    Column("settlement_id", String, nullable=False),
    Column("merchant_id", String, nullable=False),
    Column("payment_id", String, nullable=False),
    Column("amount_minor", BigInteger, nullable=False),
    Column("currency", String, nullable=False),
    Column("reason", String, nullable=False),
    Column("created_at", String, nullable=False),
)
refund_audit = Table(
    "refund_audit",
    metadata,
    *_place(),
    Column("settlement_id", String, nullable=False),
    Column("request_index", Integer, nullable=False),
    Column("refund_id", String, nullable=False),
    Column("merchant_id", String, nullable=False),
    Column("payment_id", String, nullable=False),
    Column("amount_minor", BigInteger, nullable=False),
    Column("currency", String, nullable=False),
    Column("remaining_minor", BigInteger, nullable=False),
    Column("decision", String, nullable=False),
    Column("rejection", String),
)
_WRITTEN: dict[str, tuple[Table, type[BaseModel]]] = {
    REFUNDS_EMITTED: (refunds, Refund),
    REFUND_AUDIT: (refund_audit, AuditRecord),
}


def rows(record: InputRecord) -> list[Insert]:
    """The row of a record that `jobs.refunds` has written."""
    table, kind = _WRITTEN[record.topic]
    columns = kind.model_validate_json(record.value or b"").model_dump(mode="json")
    return [Insert(table, {"partition": record.partition, "record_offset": record.offset, **columns})]


job = SqlJob(
    name="refund-tables",
    inputs=[REFUNDS_EMITTED, REFUND_AUDIT],
    tables=[refunds, refund_audit],
    transform=rows,
)
