"""From a table to a topic, exactly once: an order and the record that tells of it are written in one transaction."""

import json
import sys

from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, create_engine, insert

from eos.sql import Outbox, OutboxJob

metadata = MetaData()
orders = Table("orders", metadata, Column("id", String, primary_key=True), Column("cents", Integer))
outbox = Outbox(metadata)


def place(connection: Connection, order: str, cents: int) -> None:
    connection.execute(insert(orders).values(id=order, cents=cents))
    value = json.dumps({"id": order, "cents": cents}).encode()
    outbox.add(connection, "orders-placed", key=order.encode(), value=value)


job = OutboxJob(name="orders-relay", outbox=outbox, outputs=["orders-placed"])

if __name__ == "__main__":
    engine = create_engine(sys.argv[1])
    metadata.create_all(engine)  # your migrations do this
    for order in sys.argv[2:]:
        with engine.begin() as connection:
            place(connection, order, 700)
