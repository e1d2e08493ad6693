"""Opening a producer: what is waited out, what is refused at once, and what a fence does."""

from __future__ import annotations

import threading
import time

import pytest
from confluent_kafka import KafkaError

from eos.core.producer import ProducerState
from eos.core.transactional import TransactionalProducer
from eos.errors import ConfigError, EosError, FencedError, UnavailableError
from eos.events import CallRetried, Fenced, ProducerOpened
from eos.settings import Settings
from eos.testing.proxy.frames import ApiKey
from tests.mock_cluster.conftest import NewShard
from tests.support.jobs_for_faults import settings_for
from tests.support.mock_cluster import MockCluster
from tests.support.mock_shard import TIMEOUT_MS

E = KafkaError
ONLY, COORDINATOR = 1, 2  # broker ids: of the single one, and of three


@pytest.mark.parametrize(
    "code", [E.COORDINATOR_LOAD_IN_PROGRESS, E.CONCURRENT_TRANSACTIONS, E.NOT_COORDINATOR, E._TRANSPORT]
)
def test_coordinator_that_is_not_ready_is_asked_again(
    code: int, cluster: MockCluster, new_shard: NewShard
) -> None:
    shard = new_shard()
    cluster.push_errors(ApiKey.INIT_PRODUCER_ID, code)
    shard.producer.open()
    assert len(cluster.requests(ApiKey.INIT_PRODUCER_ID)) == 2
    assert len(shard.told_of(ProducerOpened)) == 1
    shard.run()


def test_init_that_outlasts_its_slice_is_resumed_and_not_sent_again(
    slow_cluster: MockCluster, new_shard: NewShard
) -> None:
    shard = new_shard(on=slow_cluster)
    slow_cluster.push_error_rtts(ONLY, ApiKey.INIT_PRODUCER_ID, (0, 1500))
    shard.producer.open()
    assert len(slow_cluster.requests(ApiKey.INIT_PRODUCER_ID)) == 1
    assert {retried.call for retried in shard.told_of(CallRetried)} == {"init"}
    shard.run()


def test_coordinator_that_is_down_is_awaited(three_brokers: MockCluster, new_shard: NewShard) -> None:
    shard = new_shard(on=three_brokers)
    three_brokers.coordinator_set("transaction", shard.producer.transactional_id, COORDINATOR)
    three_brokers.broker_down(COORDINATOR)
    back = threading.Timer(1.2, three_brokers.broker_up, [COORDINATOR])
    back.start()
    try:
        shard.producer.open()
    finally:
        back.join()
    assert shard.told_of(CallRetried)
    shard.run()


def test_cluster_that_stays_away_is_given_up_at_the_deadline_and_can_be_opened_later(
    three_brokers: MockCluster, new_shard: NewShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = new_shard(on=three_brokers)
    three_brokers.broker_down()
    began = time.monotonic()
    with monkeypatch.context() as shorter:
        shorter.setattr(Settings, "open_timeout_s", 1.2)
        with pytest.raises(UnavailableError, match="init: no usable answer"):
            shard.producer.open()
    assert 1.2 <= time.monotonic() - began < TIMEOUT_MS / 1000 / 2
    assert shard.producer.state is ProducerState.NEW
    three_brokers.broker_up()
    shard.run()


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        (E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "TransactionalId"),
        (E.CLUSTER_AUTHORIZATION_FAILED, "cluster"),
        (E.INVALID_TRANSACTION_TIMEOUT, "transaction.timeout_ms"),
    ],
)
def test_refusal_is_told_at_once_with_its_fix_and_without_a_retry(
    code: int, fix: str, cluster: MockCluster, new_shard: NewShard
) -> None:
    shard = new_shard()
    cluster.push_errors(ApiKey.INIT_PRODUCER_ID, *[code] * 20)
    began = time.monotonic()
    with pytest.raises(ConfigError, match=fix):
        shard.producer.open()
    assert time.monotonic() - began < TIMEOUT_MS / 1000 / 2
    assert len(cluster.requests(ApiKey.INIT_PRODUCER_ID)) == 1


@pytest.mark.parametrize("code", [E.INVALID_PRODUCER_EPOCH, E.PRODUCER_FENCED])
def test_fence_at_init_is_final(code: int, cluster: MockCluster, new_shard: NewShard) -> None:
    shard = new_shard()
    cluster.push_errors(ApiKey.INIT_PRODUCER_ID, code)
    with pytest.raises(FencedError):
        shard.producer.open()
    assert shard.producer.state is ProducerState.FENCED
    assert len(shard.told_of(Fenced)) == 1
    with pytest.raises(FencedError):
        shard.producer.transaction()
    assert len(cluster.requests(ApiKey.INIT_PRODUCER_ID)) == 1


def test_broker_without_transactions_is_refused_by_its_age(
    three_brokers: MockCluster, new_shard: NewShard
) -> None:
    three_brokers.set_api_versions(ApiKey.INIT_PRODUCER_ID, -1, -1)
    with pytest.raises(EosError) as raised:
        new_shard(on=three_brokers).producer.open()
    assert isinstance(raised.value, ConfigError), raised.value
    assert "2.5 or newer" in str(raised.value)


def test_a_producer_that_nobody_listens_to_logs_what_it_waits_for(
    three_brokers: MockCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("eos.retry._FIRST_NOTICE_S", 0.1)
    producer = TransactionalProducer(settings_for(three_brokers.bootstrap_servers), app="payments")
    three_brokers.coordinator_set("transaction", producer.transactional_id, COORDINATOR)
    three_brokers.broker_down(COORDINATOR)
    back = threading.Timer(1.2, three_brokers.broker_up, [COORDINATOR])
    back.start()
    try:
        with producer:
            pass
    finally:
        back.join()
    assert "waiting for" in caplog.text
