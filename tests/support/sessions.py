"""The loop's pipeline for a given shard, driven by hand: what comes in is copied."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from eos.base.deadline import Deadline
from eos.core.owner import ShardOwner
from eos.core.pipeline import Pipeline
from eos.core.producer import ShardProducer
from eos.crashes.search import Search
from eos.events import Listener, ignore_event
from eos.faces.surroundings import SURROUNDINGS
from eos.kafka.producer import TransactionalClient
from eos.records import OutputRecord, by_topic
from eos.settings import Settings
from eos.shards import PartitionShard, Shard
from tests.support.patience import PATIENCE_S


def session_for(
    settings: Settings,
    shard: Shard,
    inputs: Sequence[str],
    *,
    listener: Listener = ignore_event,
    until_caught_up: bool = False,
    stop: threading.Event | None = None,
) -> Pipeline:
    """The pipeline of an owner of this shard, not yet open."""
    owner = ShardOwner(
        settings.model_copy(update={"group": shard.group}),
        app=shard.app,
        inputs=inputs,
        outputs=["of-the-test"],
        partition=shard.partition if isinstance(shard, PartitionShard) else None,
        until_caught_up=until_caught_up,
        stop=stop,
        listener=listener,
        surroundings=SURROUNDINGS,
    )
    return Pipeline(owner, Search)


def fill(session: Pipeline, out: str, records: int = 10, *, partitions: int = 1) -> None:
    """Copy the next records into the transaction, and wait until the broker has them. Values are numbers."""
    deadline = Deadline(PATIENCE_S)
    while records:
        assert not deadline.passed
        if batch := session.fetch(records, 0.2, 0.01):
            outputs = [OutputRecord(out, r.value, partition=int(r.value or b"0") % partitions) for r in batch]
            session.stage(batch, by_topic(outputs))
            records -= len(batch)
    session.produce()
    wait_delivered(producer_of(session.owner)._client)


def commit(session: Pipeline) -> None:
    """Commit what the transaction holds."""
    session.owner.committer.commit_soon()
    session.owner.committer.join(PATIENCE_S)


def wait_delivered(client: TransactionalClient | None) -> None:
    """Wait until the brokers have what the open transaction has produced."""
    assert client is not None
    deadline = Deadline(PATIENCE_S)
    while len(client._producer):
        assert not deadline.passed
        client.poll()
        time.sleep(0.005)


def producer_of(owner: ShardOwner) -> ShardProducer:
    """The producer of an owner that writes to Kafka."""
    writer = owner.committer.writer
    assert isinstance(writer, ShardProducer)
    return writer
