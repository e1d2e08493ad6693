"""Closing a producer lets go of its instance: no thread, no connection and no resend of it stays behind."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from eos.base.deadline import Deadline
from eos.errors import EosError
from eos.testing.proxy.frames import ApiKey
from tests.mock_cluster.conftest import NewShard
from tests.support.mock_cluster import MockCluster
from tests.support.patience import PATIENCE_S


def threads() -> set[str]:
    """Threads of this process, librdkafka's included."""
    return {task.name for task in Path("/proc/self/task").iterdir()}


@pytest.fixture
def without_collector() -> Iterator[None]:
    """What only the cyclic collector would free stays: when it runs is nobody's to say."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads as Linux shows them")
@pytest.mark.parametrize("code", [0, KafkaError.TRANSACTION_ABORTABLE, KafkaError.INVALID_PRODUCER_EPOCH])
def test_closed_producer_leaves_no_thread_behind(
    code: int, cluster: MockCluster, new_shard: NewShard
) -> None:
    """Nor after an error, whose traceback holds the frames of the call that failed."""
    shard = new_shard()
    shard._reader.list_topics(timeout=PATIENCE_S)  # then the reader starts no more threads
    before = threads()
    shard.producer.open()
    its = threads() - before
    assert its
    if code:
        cluster.push_errors(ApiKey.END_TXN, code)
    try:
        shard.run(offset=5)
    except EosError:
        assert code  # a producer that is fenced lets go at once
    its |= threads() - before
    shard.producer.close()
    assert Deadline(PATIENCE_S).wait_for(lambda: not its & threads())
