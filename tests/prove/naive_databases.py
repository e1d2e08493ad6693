"""Programs with a database at one end, each with one mistake: python naive_databases.py MISTAKE. `eos prove` has to find them out.

The sinks add the cents of each payment to the balance of its merchant; the relays copy an outbox by the ids of its rows, or by the
numbers of their transactions.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from random import Random
from typing import ClassVar

import psycopg
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from sqlalchemy import BigInteger, Column, MetaData, String, Table

from eos import InputRecord, OutputRecord
from eos.sql import Outbox, OutboxJob, SqlJob, Upsert

SINKS = ("offsets-first", "offsets-behind", "dedup-without-lock")
BY_ID, BY_XID = "by-id", "by-xid"
SOURCE, SINK = "payments", "orders"
BATCH, CALL_S = 20, 30.0
WORK_S = 0.05

balances = Table(
    "balances",
    MetaData(),
    Column("merchant", String, primary_key=True),
    Column("cents", BigInteger, nullable=False),
)


def balance(record: InputRecord) -> list[Upsert]:
    """What the balance is behind a payment."""
    payment = json.loads(record.value or b"")
    return [Upsert(balances, {"merchant": payment["merchant"], "cents": payment["balance"]})]


def payments(seed: int) -> Iterator[tuple[bytes, bytes]]:
    """Payments of a few merchants, each with the balance behind it."""
    random, sums = Random(seed), [0] * 20
    while True:
        merchant, cents = random.randrange(20), random.randrange(1, 1_000)
        sums[merchant] += cents
        found = {"merchant": f"m{merchant}", "cents": cents, "balance": sums[merchant]}
        yield b"%d" % merchant, json.dumps(found).encode()


def orders(seed: int) -> Iterator[OutputRecord]:
    """No two are alike."""
    number = 0
    while True:
        number += 1
        yield OutputRecord(SINK, b"%d of %d" % (number, seed), b"%d" % (number % 9))


sink = SqlJob(name="balances", inputs=[SOURCE], tables=[balances], transform=balance)
relay = OutboxJob(name="orders-relay", outbox=Outbox(MetaData()), outputs=[SINK])


class Sink:
    """Has the partitions whose number is its own modulo the instances."""

    def __init__(self, mistake: str) -> None:
        self.mistake = mistake
        self.consumer = Consumer(
            {
                "bootstrap.servers": os.environ["EOS_KAFKA__BOOTSTRAP_SERVERS"],
                "log_level": 0,
                "group.id": os.environ["EOS_GROUP"],
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        # A COMMIT of its own would be met in the place of a batch's.
        self.database = psycopg.connect(os.environ["EOS_SQL__URL"], autocommit=True)
        # Nothing in it makes two rows that are alike fail.
        self.database.execute("CREATE TABLE IF NOT EXISTS seen (part int, place bigint)")
        numbers = self.consumer.list_topics(SOURCE, CALL_S).topics[SOURCE].partitions
        instances, ordinal = int(os.environ["EOS_OWNERSHIP__INSTANCES"]), int(os.environ["EOS_ORDINAL"])
        mine = [TopicPartition(SOURCE, p) for p in numbers if p % instances == ordinal]
        self.consumer.assign(self.consumer.committed(mine, CALL_S))

    def run(self) -> None:
        while True:
            if batch := [one for one in self.consumer.consume(BATCH, 0.2) if one.error() is None]:
                self.process(batch)

    def process(self, batch: Sequence[Message]) -> None:
        if self.mistake == "offsets-first":
            self.commit(batch)
        with self.database.transaction():
            if self.mistake == "dedup-without-lock":
                batch = self.new(batch)
            time.sleep(WORK_S)
            for one in batch:
                payment = json.loads(one.value() or b"")
                self.database.execute(
                    "INSERT INTO balances VALUES (%s, %s) ON CONFLICT (merchant) DO UPDATE SET cents = balances.cents + excluded.cents",
                    (payment["merchant"], payment["cents"]),
                )
        if self.mistake != "offsets-first":
            self.commit(batch)

    def new(self, batch: Sequence[Message]) -> Sequence[Message]:
        """Those of which no one has said yet that they are done; says it of them."""
        places = [(one.partition(), one.offset()) for one in batch]
        seen = set(
            self.database.execute(
                "SELECT part, place FROM seen WHERE part = ANY(%s) AND place = ANY(%s)",
                ([part for part, _ in places], [place for _, place in places]),
            )
        )
        new = [one for one, place in zip(batch, places, strict=True) if place not in seen]
        for part, place in set(places) - seen:
            self.database.execute("INSERT INTO seen VALUES (%s, %s)", (part, place))
        return new

    def commit(self, batch: Sequence[Message]) -> None:
        ends = {one.partition() or 0: (one.offset() or 0) + 1 for one in batch}
        if ends:
            behind = [TopicPartition(SOURCE, partition, end) for partition, end in ends.items()]
            self.consumer.commit(offsets=behind, asynchronous=False)


class Relay:
    """Takes every row behind a place for new; all else of it is right."""

    # By their ids, which are not in the order of commits: some rows are skipped. By the numbers of their transactions, below all that
    # are open: nothing is skipped or doubled, but a number may be drawn long before a row is inserted that depends on others.
    STATEMENTS: ClassVar = {
        BY_ID: "SELECT '0', id, topic, key, value FROM eos_outbox WHERE %s = '0' AND id > %s ORDER BY id LIMIT 100",
        # The text has another name: ORDER BY xid would mean the text, and "1000" would come before "999".
        BY_XID: "SELECT CAST(xid AS text) AS number, id, topic, key, value FROM eos_outbox "
        "WHERE (xid, id) > (CAST(%s AS xid8), %s) "
        "AND xid < pg_snapshot_xmin(pg_current_snapshot()) ORDER BY xid, id LIMIT 100",
    }

    def __init__(self, mistake: str) -> None:
        self.statement = self.STATEMENTS[mistake]
        self.database = psycopg.connect(os.environ["EOS_SQL__URL"], autocommit=True)
        servers = {"bootstrap.servers": os.environ["EOS_KAFKA__BOOTSTRAP_SERVERS"], "log_level": 0}
        self.consumer = Consumer({**servers, "group.id": os.environ["EOS_GROUP"]})
        self.producer = Producer(
            {
                **servers,
                "transactional.id": mistake,
                "transaction.timeout.ms": 10_000,
                "partitioner": "murmur2_random",
            }
        )
        self.producer.init_transactions(CALL_S)
        (place,) = self.consumer.committed([TopicPartition(SINK, 0)], CALL_S)
        self.xid, self.id = place.metadata or "0", max(place.offset, 0)

    def run(self) -> None:
        while True:
            if rows := self.database.execute(self.statement, (self.xid, self.id)).fetchall():
                self.producer.begin_transaction()
                for self.xid, self.id, topic, key, value in rows:
                    self.producer.produce(topic, bytes(value), bytes(key))
                behind = [TopicPartition(SINK, 0, self.id, self.xid)]
                self.producer.send_offsets_to_transaction(
                    behind, self.consumer.consumer_group_metadata(), CALL_S
                )
                self.producer.commit_transaction(CALL_S)
            time.sleep(WORK_S)


if __name__ == "__main__":
    (Sink if sys.argv[1] in SINKS else Relay)(sys.argv[1]).run()
