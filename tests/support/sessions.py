"""The loop's session for a given shard, driven by hand: what comes in is copied."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from eos.deadline import Deadline
from eos.events import Listener, ignore_event
from eos.kafka.producer import TransactionalClient
from eos.records import OutputRecord, by_topic
from eos.session.pipeline import PipelinedSession
from eos.settings import Settings
from eos.shards import PartitionShard, Shard

_WAIT_S = 30.0


def session_for(
    settings: Settings,
    shard: Shard,
    inputs: Sequence[str],
    *,
    listener: Listener = ignore_event,
    until_caught_up: bool = False,
    stop: threading.Event | None = None,
) -> PipelinedSession:
    """A session, not yet open, that owns this shard."""
    return PipelinedSession(
        settings.model_copy(update={"group": shard.group}),
        app=shard.app,
        inputs=inputs,
        outputs=["of-the-test"],
        partition=shard.partition if isinstance(shard, PartitionShard) else None,
        until_caught_up=until_caught_up,
        stop=stop,
        listener=listener,
    )


def fill(session: PipelinedSession, out: str, records: int = 10, *, partitions: int = 1) -> None:
    """Copy the next records into the transaction, and wait until the broker has them. Values are numbers."""
    deadline = Deadline(_WAIT_S)
    while records:
        assert not deadline.passed
        if batch := session.fetch(records, 0.2, 0.01):
            outputs = [OutputRecord(out, r.value, partition=int(r.value or b"0") % partitions) for r in batch]
            session.stage(by_topic(outputs), len(batch))
            records -= len(batch)
    session.produce()
    wait_delivered(session._producer._client)


def commit(session: PipelinedSession) -> None:
    """Commit what the transaction holds."""
    session.commit_soon()
    session.join(_WAIT_S)


def wait_delivered(client: TransactionalClient | None) -> None:
    """Wait until the brokers have what the open transaction has produced."""
    assert client is not None
    deadline = Deadline(_WAIT_S)
    while len(client._producer):
        assert not deadline.passed
        client.poll()
        time.sleep(0.005)
