"""A shard's producer on librdkafka's mock cluster, with what it told and the one block that tests vary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from confluent_kafka import Consumer, TopicPartition

from eos.core.block import Transaction
from eos.core.producer import ShardProducer
from eos.events import Event
from eos.kafka.group_offsets import GroupMetadata
from eos.offsets import OffsetVector, Partition
from eos.settings import Settings
from eos.shards import OrdinalShard
from tests.support.mock_cluster import MockCluster
from tests.support.settings import settings_of

INPUT = Partition("in", 0)
TIMEOUT_MS = 60_000

Kind = TypeVar("Kind", bound=Event)


class MockShard:
    """The producer of a shard, with a group of its own, that no other test has.

    The mock answers TxnOffsetCommit but stores nothing; :meth:`store` does it in its place, for tests in
    which a producer is reopened after offsets were committed. It also gives a new producer id to every
    instance, which looks like a rival to a producer that has sent no offsets and goes by its epoch.

    Args:
        cluster: with the topics "in" and "out".
        ordinal: a number that no other shard of the cluster has.
        transaction: settings of the table ``[transaction]``.
    """

    def __init__(self, cluster: MockCluster, ordinal: int, **transaction: Any) -> None:
        self.cluster = cluster
        self.told: list[Event] = []
        self.group = f"g{ordinal}"
        self._reader = Consumer(
            {"bootstrap.servers": cluster.bootstrap_servers, "group.id": self.group, "log_level": 0}
        )
        settings = mock_settings(cluster, group=self.group, transaction=transaction)
        shard = OrdinalShard("app", self.group, ordinal)
        self.producer = ShardProducer(settings, shard, listener=self._tell)

    def run(self, *, offset: int | None = None) -> Transaction:
        """One transaction with one record, and with an input offset if one is given."""
        with self.producer.transaction() as transaction:
            transaction.produce("out", b"v", key=b"k")
            if offset is not None:
                group = GroupMetadata(self.group, self._reader.consumer_group_metadata())
                transaction.add_offsets(OffsetVector({INPUT: offset}), group)
        return transaction

    def take_over(self) -> None:
        """What the group has stored is known before anything is sent, as a session knows it."""
        self.producer.take_over(self.group, [INPUT])

    def told_of(self, kind: type[Kind]) -> list[Kind]:
        """The events of a kind, in order."""
        return [event for event in self.told if isinstance(event, kind)]

    def store(self, offset: int, *, by: str | None = None) -> None:
        """Store a committed offset with our own metadata or another, as the group coordinator does at a commit."""
        metadata = by or str(replace(self.producer.ledger_of(self.group).metadata, started_partitions=1))
        position = TopicPartition(INPUT.topic, INPUT.number, offset, metadata)
        self._reader.commit(offsets=[position], asynchronous=False)

    def close(self) -> None:
        """Let go of both clients."""
        self.producer.close()
        self._reader.close()

    def _tell(self, event: Event) -> None:
        self.told.append(event)


def mock_settings(cluster: MockCluster, *, group: str, transaction: Mapping[str, Any]) -> Settings:
    """Settings with short back-offs, so that a test waits for what it injected and for little else.

    The time-out is long: who waits for it shows that.
    """
    return settings_of(
        cluster.bootstrap_servers,
        group=group,
        kafka__client={"reconnect.backoff.ms": 10, "retry.backoff.ms": 10},
        transaction={"timeout_ms": TIMEOUT_MS, **transaction},
    )
