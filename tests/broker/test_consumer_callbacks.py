"""A rebalance callback that answers nothing leaves nothing to confluent-kafka, which would assign partitions by itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from eos.kafka.config import consumer_config
from eos.kafka.consumer import ConsumerClient
from eos.offsets import OffsetVector, Partition
from tests.support.jobs_for_faults import settings_for
from tests.support.observer import produce_plain, unique

if TYPE_CHECKING:
    from tests.conftest import NewTopic

pytestmark = pytest.mark.broker

WAIT_S = 20.0


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
    deadline = time.monotonic() + WAIT_S
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
