"""Where settlements come from: an application's database, in which a settlement and its record are one transaction.

The relay sends each committed record once; one whose transaction was rolled back it never sees.

    eos sql tables jobs.settlement_outbox:job --apply
    eos run jobs.settlement_outbox:job
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import BigInteger, Column, Connection, Engine, Integer, MetaData, String, Table, insert

from eos.sql import Outbox, OutboxJob
from jobs.refund_rules import parse_settlement
from jobs.refunds import SETTLEMENTS
from jobs.settlements import KeyValue

metadata = MetaData()

settlements = Table(
    "settlements",
    metadata,
    Column("settlement_id", String, primary_key=True),
    Column("merchant_id", String, nullable=False),
    Column("payment_id", String, nullable=False),
    Column("amount_minor", BigInteger, nullable=False),
    Column("currency", String, nullable=False),
    Column("status", String, nullable=False),
)
refund_requests = Table(
    "refund_requests",
    metadata,
    Column("settlement_id", String, primary_key=True),
    Column("request_index", Integer, primary_key=True, autoincrement=False),
    Column("refund_id", String, nullable=False),
    Column("amount_minor", BigInteger, nullable=False),
    Column("currency", String, nullable=False),
    Column("reason", String, nullable=False),
    Column("created_at", String, nullable=False),
)
outbox = Outbox(metadata)


def add(connection: Connection, record: KeyValue) -> None:
    """Insert a settlement, the refunds that are asked of it, and its record.

    Args:
        connection: in a transaction, which decides about all of them.
        record: what `jobs.settlements` makes.

    Raises:
        InvalidSettlementError: it holds no settlement.
    """
    settlement = parse_settlement(record.value)
    row = settlement.model_dump(mode="json")
    requests = row.pop("refund_requests")
    connection.execute(insert(settlements), row)
    if requests:
        of = {"settlement_id": settlement.settlement_id}
        connection.execute(
            insert(refund_requests),
            [{**of, "request_index": index, **request} for index, request in enumerate(requests)],
        )
    outbox.add(connection, SETTLEMENTS, record.key, record.value)


def write(engine: Engine, records: Iterable[KeyValue]) -> int:
    """Write settlements, each in a transaction of its own; returns how many."""
    count = 0
    for record in records:
        with engine.begin() as connection:
            add(connection, record)
        count += 1
    return count


job = OutboxJob(name="settlement-outbox", outbox=outbox, outputs=[SETTLEMENTS])
