"""The jobs of the proof with a database at one end: payments into tables, and an outbox into topics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table

from eos import InputRecord, OutputRecord
from eos.sql import Delete, Insert, Outbox, OutboxJob, SqlJob, Upsert

MERCHANTS = 40
_CLOSED = 25  # each of so many payments closes the merchant's balance

metadata = MetaData()
payments = Table(
    "payments",
    metadata,
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("record_offset", BigInteger, primary_key=True, autoincrement=False),
    Column("merchant", String, nullable=False),
    Column("cents", Integer, nullable=False),
)
balances = Table(
    "balances",
    metadata,
    Column("merchant", String, primary_key=True),
    Column("cents", BigInteger, nullable=False),
)


def rows(record: InputRecord) -> list[Insert | Upsert | Delete]:
    """A row of its own, and the balance of its merchant, whose payments are in one partition."""
    payment = json.loads(record.value or b"")
    merchant = payment["merchant"]
    place = {"partition": record.partition, "record_offset": record.offset}
    return [
        Insert(payments, {**place, "merchant": merchant, "cents": payment["cents"]}),
        Upsert(balances, {"merchant": merchant, "cents": payment["balance"]})
        if payment["balance"]
        else Delete(balances, {"merchant": merchant}),
    ]


def sample_input(seed: int) -> Iterator[tuple[bytes, bytes]]:
    """Payments, each with the balance behind it; 0 closes it."""
    random, balance = Random(seed), dict.fromkeys(range(MERCHANTS), 0)
    while True:
        merchant, cents = random.randrange(MERCHANTS), random.randrange(1, 10_000)
        if balance[merchant] and not random.randrange(_CLOSED):
            cents = -balance[merchant]
        balance[merchant] += cents
        named = f"m{merchant}"
        payment = {"merchant": named, "cents": cents, "balance": balance[merchant]}
        yield named.encode(), json.dumps(payment).encode()


sink = SqlJob(name="payments-sink", inputs=["payments"], tables=[payments, balances], transform=rows)

outbox = Outbox(MetaData())
relay = OutboxJob(name="orders-relay", outbox=outbox, outputs=["orders-placed", "orders-paid"])
shared_relay = OutboxJob(
    name="orders-relays", outbox=outbox, outputs=["orders-placed", "orders-paid"], shards=2
)


def orders(seed: int) -> Iterator[OutputRecord]:
    """No two are alike."""
    random, number = Random(seed), 0
    while True:
        number += 1
        key = b"%d" % random.randrange(50) if number % 4 else None
        topic = relay.outputs[number % 2]
        yield OutputRecord(topic, b"order %d of %d" % (number, seed), key, headers=(("n", b"%d" % number),))
