"""One shard over one input and one output partition: the owners that a test opens, and what everybody else sees."""

from __future__ import annotations

from typing import Self, TypeVar

from confluent_kafka import Consumer

from eos import OffsetVector, Partition
from eos.core.producer import ShardProducer
from eos.events import Event
from eos.kafka.group_offsets import GroupMetadata
from eos.shards import Shard
from tests.support.observer import committed_offsets, read_committed, unique
from tests.support.settings import settings_of

E = TypeVar("E", bound=Event)


class OneShard:
    """Owners commit to ``out`` together with an offset of ``source``; a separate reader says what came of it.

    Args:
        bootstrap: the broker.
        source: the input topic, of which partition 0 counts.
        out: the output topic.
        shard: whose transactional.id every owner has.
        transaction: settings of the table ``transaction`` that every owner starts from.

    Attributes:
        metadata: of a consumer that has not joined: a classic group without members accepts its offsets.
        told: what happened to all owners, in order.
    """

    def __init__(self, bootstrap: str, source: str, out: str, shard: Shard, **transaction: object) -> None:
        self.source = Partition(source, 0)
        self.out = out
        self.told: list[Event] = []
        self._bootstrap = bootstrap
        self._shard = shard
        self._transaction = transaction
        self._owners: list[ShardProducer] = []
        self._group = unique("group")
        self._member = Consumer({"bootstrap.servers": bootstrap, "group.id": self._group, "log_level": 0})
        self.metadata = GroupMetadata(self._group, self._member.consumer_group_metadata())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for owner in self._owners:
            owner.close()
        self._member.close()

    def open(self, address: str = "", **transaction: object) -> ShardProducer:
        """One more owner, by default at the broker's own address."""
        limits = {f"transaction.{name}": value for name, value in (self._transaction | transaction).items()}
        settings = settings_of(address or self._bootstrap, **limits)
        owner = ShardProducer(settings, self._shard, listener=self.told.append)
        self._owners.append(owner)
        owner.open()
        return owner

    def commit(self, owner: ShardProducer, value: bytes, offset: int | None = None) -> None:
        """A transaction of one record, with an offset if one is given."""
        with owner.transaction() as txn:
            txn.produce(self.out, value)
            if offset is not None:
                txn.add_offsets(self.offsets(offset), self.metadata)

    def offsets(self, offset: int) -> OffsetVector:
        """The input's position."""
        return OffsetVector({self.source: offset})

    def heard(self, kind: type[E]) -> list[E]:
        """What was told of one kind."""
        return [event for event in self.told if isinstance(event, kind)]

    @property
    def visible(self) -> list[bytes | None]:
        """The values of the read_committed output."""
        return [record.value for record in read_committed(self._bootstrap, self.out)]

    @property
    def offset(self) -> int | None:
        """The group's committed offset."""
        partition = (self.source.topic, self.source.number)
        return committed_offsets(self._bootstrap, self._group, [partition])[partition][0]
