"""A shard's producer on librdkafka's mock cluster, with what it told and the one block that tests vary."""

from __future__ import annotations

from typing import Any, TypeVar

from confluent_kafka import Consumer, TopicPartition

from eos.events import Event
from eos.kafka.consumer import GroupMetadata
from eos.offsets import OffsetVector, Partition
from eos.producer import TransactionalProducer
from eos.settings import Settings
from eos.shards import OrdinalShard
from eos.transaction import Transaction
from tests.support.mock_cluster import MockCluster

LEADER, TXN_COORDINATOR, GROUP_COORDINATOR = 1, 2, 3  # broker ids
GROUP = "g"
INPUT = Partition("in", 0)

Kind = TypeVar("Kind", bound=Event)


class MockShard:
    """The producer of a shard that no other test has.

    The mock answers TxnOffsetCommit but stores nothing; :meth:`store` does it in its place, for tests in
    which a producer is reopened after offsets were committed.

    Args:
        cluster: with the topics "in" and "out".
        group: a consumer of the group, which need not have joined.
        ordinal: a number that no other shard of the cluster has.
        transaction: settings of the table ``[transaction]``.
    """

    def __init__(self, cluster: MockCluster, group: Consumer, ordinal: int, **transaction: Any) -> None:
        self.cluster = cluster
        self.told: list[Event] = []
        self._group = group
        shard = OrdinalShard("app", GROUP, ordinal)
        cluster.coordinator_set("transaction", shard.transactional_id, TXN_COORDINATOR)
        settings = mock_settings(cluster, **transaction)
        self.producer = TransactionalProducer(settings, shard, listener=self._tell)

    def run(self, *, offset: int | None = None) -> Transaction:
        """One transaction with one record, and with an input offset if one is given."""
        with self.producer.transaction() as transaction:
            transaction.produce("out", b"v", key=b"k")
            if offset is not None:
                transaction.add_offsets(OffsetVector({INPUT: offset}), self._metadata())
        return transaction

    def told_of(self, kind: type[Kind]) -> list[Kind]:
        """The events of a kind, in order."""
        return [event for event in self.told if isinstance(event, kind)]

    def store(self, offset: int, stamp: str) -> None:
        """Store a committed offset, as the group coordinator does when the transaction commits."""
        self._group.commit(
            offsets=[TopicPartition(INPUT.topic, INPUT.number, offset, stamp)], asynchronous=False
        )

    def _metadata(self) -> GroupMetadata:
        return GroupMetadata(GROUP, self._group.consumer_group_metadata())

    def _tell(self, event: Event) -> None:
        self.told.append(event)


def mock_settings(cluster: MockCluster, **transaction: Any) -> Settings:
    """Settings with short back-offs, so that a test waits for what it injected and for little else."""
    return Settings.load(
        overrides={
            "group": GROUP,
            "kafka": {
                "bootstrap_servers": cluster.bootstrap_servers,
                "client": {"reconnect.backoff.ms": 10, "retry.backoff.ms": 10},
                "producer": {"statistics.interval.ms": 50},
            },
            "transaction": {"timeout_ms": 5000} | transaction,
        },
        environ={},
    )
