"""Loops of plain confluent-kafka that share their input by a group: python group_loops.py MISTAKE [SECONDS_PER_RECORD].

Without a mistake it is the loop of the textbooks: a batch, a transaction of its outputs and offsets, a rewind after an abort, a
new process after a fatal error. Options are librdkafka's defaults, its partitioner and its five minutes between two looks at a
topic's partitions too.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

MISTAKES = ("no-revoke", "too-high", "two-transactions")
STUCK = "stuck"  # no mistake: what it has done is right, and then it does no more
STUCK_S = 5.0
SOURCE, SINK = "originals", "copies"
BATCH = 100
BATCH_S = float(os.environ.get("BATCH_S", "0.3"))
CALL_S = 70.0
TOO_HIGH = 5  # the transaction of which the offsets are


class Loop:
    def __init__(self, mistake: str, record_s: float) -> None:
        self.mistake, self.record_s = mistake, record_s
        self.ended = 0  # transactions
        self.servers = {"bootstrap.servers": os.environ["EOS_KAFKA__BOOTSTRAP_SERVERS"], "log_level": 0}
        self.consumer = Consumer(
            {
                **self.servers,
                "group.id": os.environ["EOS_GROUP"],
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6_000,
            }
        )
        given = {"transactional.id": f"loop-{os.environ['EOS_ORDINAL']}"}
        for option, name in (("partitioner", "PARTITIONER"), ("transaction.timeout.ms", "TIMEOUT_MS")):
            if value := os.environ.get(name):
                given[option] = value
        self.producer = Producer({**self.servers, **given})
        self.producer.init_transactions(CALL_S)
        self.consumer.subscribe([SOURCE], on_revoke=lambda *_: None)

    def run(self) -> None:
        began = time.monotonic()
        while True:
            if self.mistake == STUCK and self.ended and time.monotonic() - began > STUCK_S:
                signal.pause()
            if self.mistake == "no-revoke":
                self.produce_while_it_reads()
            elif batch := self.read(BATCH_S):
                self.process(batch)

    def read(self, seconds: float) -> list[Message]:
        count = BATCH if not self.record_s else max(1, int(10 / self.record_s))
        return [one for one in self.consumer.consume(count, seconds) if one.error() is None]

    def write(self, batch: Iterable[Message]) -> None:
        for one in batch:
            time.sleep(self.record_s)
            self.producer.produce(SINK, one.value(), one.key())

    def process(self, batch: list[Message]) -> None:
        try:
            self.producer.begin_transaction()
            self.write(batch)
            if self.mistake == "two-transactions":
                self.producer.commit_transaction()
                self.producer.begin_transaction()
            self.end(batch)
        except KafkaException as error:
            self.failed(error, batch)

    def produce_while_it_reads(self) -> None:
        """Partitions may be revoked while the transaction is open that has their records."""
        batch: list[Message] = []
        try:
            self.producer.begin_transaction()
            until = time.monotonic() + BATCH_S
            while time.monotonic() < until:
                read = self.read(BATCH_S / 5)
                self.write(read)
                batch += read
            self.end(batch)
        except KafkaException as error:
            self.failed(error, batch)

    def end(self, batch: Iterable[Message]) -> None:
        ends = {one.partition() or 0: (one.offset() or 0) + 1 for one in batch}
        self.ended += 1
        if self.mistake == "too-high" and self.ended == TOO_HIGH:
            ends[min(ends)] += 1
        offsets = [TopicPartition(SOURCE, partition, end) for partition, end in ends.items()]
        metadata = self.consumer.consumer_group_metadata()
        self.producer.send_offsets_to_transaction(offsets, metadata, CALL_S)
        self.producer.commit_transaction()

    def failed(self, error: KafkaException, batch: Iterable[Message]) -> None:
        if error.args[0].fatal() or not error.args[0].txn_requires_abort():
            raise error
        self.producer.abort_transaction()
        mine = {one.partition for one in self.consumer.assignment()}
        starts: dict[int, int] = {}
        for one in batch:
            starts.setdefault(one.partition() or 0, one.offset() or 0)
        for partition, start in starts.items():
            if partition in mine:
                self.consumer.seek(TopicPartition(SOURCE, partition, start))


if __name__ == "__main__":
    Loop(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 0.0).run()
