"""Loops of plain confluent-kafka, each with one mistake: python naive_loops.py MISTAKE. `eos prove` has to convict them.

Without a mistake it is the loop of the textbooks: each instance has the partitions whose number is its own modulo the
instances, and a transactional.id of its own; an abort rewinds, and after a fatal error the next process goes on.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

MISTAKES = ("no-transaction", "offsets-outside", "no-rewind", "no-comparison", "random-id")
SOURCE, SINK = "originals", "copies"
BATCH = 100
WORK_S = 0.05  # for each batch, between its output and its offsets
CALL_S = 30.0


class Loop:
    def __init__(self, mistake: str) -> None:
        self.mistake = mistake
        self.servers = {"bootstrap.servers": os.environ["EOS_KAFKA__BOOTSTRAP_SERVERS"], "log_level": 0}
        self.ordinal = int(os.environ["EOS_ORDINAL"])
        self.consumer = Consumer(
            {
                **self.servers,
                "group.id": os.environ["EOS_GROUP"],
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        self.producer = self.opened()
        instances = int(os.environ["EOS_OWNERSHIP__INSTANCES"])
        numbers = self.consumer.list_topics(SOURCE, CALL_S).topics[SOURCE].partitions
        mine = [TopicPartition(SOURCE, p) for p in numbers if p % instances == self.ordinal]
        self.consumer.assign(self.consumer.committed(mine, CALL_S))

    def opened(self) -> Producer:
        if self.mistake == "no-transaction":
            return Producer({**self.servers, "enable.idempotence": True, "partitioner": "murmur2_random"})
        named = str(uuid.uuid4()) if self.mistake == "random-id" else f"naive-{self.ordinal}"
        config = {
            "transactional.id": named,
            "transaction.timeout.ms": int(os.environ.get("TIMEOUT_MS", "30000")),
            "partitioner": "murmur2_random",
        }
        producer = Producer({**self.servers, **config})
        producer.init_transactions(CALL_S)
        return producer

    def run(self) -> None:
        while True:
            batch = [one for one in self.consumer.consume(BATCH, 0.2) if one.error() is None]
            while batch and not self.process(batch):
                pass

    def process(self, batch: Sequence[Message]) -> bool:
        """False: the same batch again."""
        ends = {one.partition() or 0: (one.offset() or 0) + 1 for one in batch}
        behind = [TopicPartition(SOURCE, partition, end) for partition, end in ends.items()]
        if self.mistake == "no-transaction":
            self.write(batch)
            self.consumer.commit(offsets=behind, asynchronous=False)
            return True
        try:
            self.producer.begin_transaction()
            self.write(batch)
            if self.mistake != "offsets-outside":
                metadata = self.consumer.consumer_group_metadata()
                self.producer.send_offsets_to_transaction(behind, metadata, CALL_S)
            self.producer.commit_transaction()
        except KafkaException as error:
            return self.failed(error, batch)
        if self.mistake == "offsets-outside":
            self.consumer.commit(offsets=behind, asynchronous=False)
        return True

    def write(self, batch: Sequence[Message]) -> None:
        for one in batch:
            self.producer.produce(SINK, one.value(), one.key())
        self.producer.flush(CALL_S)
        time.sleep(WORK_S)

    def failed(self, error: KafkaException, batch: Sequence[Message]) -> bool:
        if error.args[0].fatal() or not error.args[0].txn_requires_abort():
            if self.mistake != "no-comparison":
                raise error
            self.producer = self.opened()  # which takes the id back from whoever has it now
            return False
        self.producer.abort_transaction()
        if self.mistake != "no-rewind":
            starts: dict[int, int] = {}
            for one in batch:
                starts.setdefault(one.partition() or 0, one.offset() or 0)
            for partition, start in starts.items():
                self.consumer.seek(TopicPartition(SOURCE, partition, start))
        return True


if __name__ == "__main__":
    Loop(sys.argv[1]).run()
