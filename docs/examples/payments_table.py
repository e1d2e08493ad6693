"""From a topic to a table, exactly once: each payment is a row, and each merchant's balance the last one said."""

import json
import sys

from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine

from eos import InputRecord
from eos.sql import Insert, SqlJob, Upsert

metadata = MetaData()
payments = Table("payments", metadata, Column("id", String, primary_key=True), Column("cents", Integer))
balances = Table("balances", metadata, Column("merchant", String, primary_key=True), Column("cents", Integer))


def rows(record: InputRecord) -> list[Insert | Upsert]:
    payment = json.loads(record.value or b"")
    return [
        Insert(payments, {"id": payment["id"], "cents": payment["cents"]}),
        Upsert(balances, {"merchant": payment["merchant"], "cents": payment["balance"]}),
    ]


job = SqlJob(name="payments-table", inputs=["payments"], tables=[payments, balances], transform=rows)

if __name__ == "__main__":  # your migrations do this
    metadata.create_all(create_engine(sys.argv[1]))
