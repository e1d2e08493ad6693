"""A rebalance callback that answers nothing leaves nothing to confluent-kafka, which would assign partitions by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from eos.faces.session import Session
from eos.kafka.config import consumer_config
from eos.kafka.consumer import ConsumerClient, Fetched
from eos.kafka.topics import add_partitions
from eos.offsets import OffsetVector, Partition
from tests.support.jobs_for_faults import settings_for
from tests.support.observer import PlainRecord, produce_plain, unique
from tests.support.patience import PATIENCE_S

if TYPE_CHECKING:
    from tests.conftest import NewTopic

pytestmark = pytest.mark.broker


class Listener:
    """Takes what it is assigned, if it is to, and gives nothing up by itself."""

    def __init__(self, client: ConsumerClient, *, takes: bool) -> None:
        self._client = client
        self._takes = takes
        self.calls: list[str] = []

    def assigned(self, partitions: Sequence[Partition]) -> None:
        self.calls.append("assigned")
        if self._takes:
            self._client.incremental_assign(OffsetVector(dict.fromkeys(partitions, 0)))

    def revoked(self, partitions: Sequence[Partition]) -> None:
        self.calls.append("revoked")

    def lost(self, partitions: Sequence[Partition]) -> None:
        self.calls.append("lost")


@pytest.mark.parametrize("takes", [False, True])
def test_callback_that_does_nothing_leaves_nothing_to_the_client(
    bootstrap: str, topic: NewTopic, *, takes: bool
) -> None:
    source = topic("in", 2)
    produce_plain(bootstrap, source, [b"a", b"b"])
    client = ConsumerClient(consumer_config(settings_for(bootstrap), unique("g"), None))
    listener = Listener(client, takes=takes)
    client.subscribe([source], listener)
    deadline = time.monotonic() + PATIENCE_S
    read = 0
    while not listener.calls or (takes and not read):
        assert time.monotonic() < deadline
        read += len(client.consume(10, 0.2).messages)
    for _ in range(5):
        read += len(client.consume(10, 0.2).messages)
    assert len(client.assignment()) == (2 if takes else 0)
    assert read == (2 if takes else 0)
    client.close()
    assert time.monotonic() < deadline
    assert listener.calls == ["assigned", "revoked"]


def test_partition_that_is_added_is_taken_over_without_a_question_that_ends_the_process(
    bootstrap: str, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that is asked for topics inside its callback aborts at its next one (tests/canaries): 6 of 60 workers."""
    source, sink = topic("in", 1), topic("out", 1)
    inside: list[ConsumerClient] = []
    asked: list[bool] = []
    consume, partitions_of = ConsumerClient.consume, ConsumerClient.partitions_of

    def consumes(client: ConsumerClient, *arguments: Any) -> Fetched:
        inside.append(client)
        try:
            return consume(client, *arguments)
        finally:
            inside.remove(client)

    def asks(client: ConsumerClient, topics: Sequence[str], timeout_s: float) -> list[Partition]:
        asked.append(client in inside)
        return partitions_of(client, topics, timeout_s)

    monkeypatch.setattr(ConsumerClient, "consume", consumes)
    monkeypatch.setattr(ConsumerClient, "partitions_of", asks)
    settings = settings_for(bootstrap, group=unique("g"))
    often = {"topic.metadata.refresh.interval.ms": 200}
    settings = settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"consumer": often})})
    produce_plain(bootstrap, source, [b"a"])
    seen: list[tuple[int, bytes | None]] = []
    with Session(settings, app="relay", inputs=[source], outputs=[sink]) as session:
        deadline = threading.Timer(PATIENCE_S, session.stop)
        deadline.start()
        for batch in session:
            with session.transaction(batch):
                seen += [(record.partition, record.value) for record in batch]
            if len(seen) == 1:
                asked.clear()
                add_partitions({"bootstrap.servers": bootstrap}, source, 2)
                produce_plain(bootstrap, source, [PlainRecord(b"b", None, 1)])
            if len(seen) == 2:
                break
        deadline.cancel()
    assert seen == [(0, b"a"), (1, b"b")]
    assert asked, "what is stored for the topic's other partitions is asked for"
    assert not any(asked)
