"""The mock cluster injects what it is told to, and the client under test feels it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from eos.testing.proxy.frames import ApiKey
from tests.support.mock_cluster import MockCluster, MockError
from tests.support.patience import PATIENCE_S

TXN_ID = "mock-test"


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster(brokers=3) as running:
        yield running


@pytest.fixture
def producer(cluster: MockCluster) -> Iterator[Producer]:
    cluster.topic_create("t", partitions=1, rf=1)
    cluster.coordinator_set("transaction", TXN_ID, 2)
    client = Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "transactional.id": TXN_ID,
            "retry.backoff.ms": 10,
            "reconnect.backoff.ms": 10,
            "log_level": 0,
        }
    )
    client.list_topics(timeout=PATIENCE_S)  # connected first: init asks again only after 500 ms
    client.init_transactions(PATIENCE_S)
    yield client
    client.purge()


def begin_and_produce(producer: Producer) -> None:
    producer.begin_transaction()
    producer.produce("t", b"v")
    producer.flush(PATIENCE_S)


def error_of(raised: pytest.ExceptionInfo[KafkaException]) -> KafkaError:
    error = raised.value.args[0]
    assert isinstance(error, KafkaError)
    return error


def test_without_injection_a_transaction_commits(cluster: MockCluster, producer: Producer) -> None:
    begin_and_produce(producer)
    producer.commit_transaction(PATIENCE_S)
    assert [request.broker_id for request in cluster.requests(ApiKey.END_TXN)] == [2]


def test_pushed_fence_is_fatal(cluster: MockCluster, producer: Producer) -> None:
    begin_and_produce(producer)
    cluster.push_errors(ApiKey.END_TXN, 47)
    with pytest.raises(KafkaException) as raised:
        producer.commit_transaction(PATIENCE_S)
    assert error_of(raised).code() == KafkaError._FENCED
    assert error_of(raised).fatal()


def test_pushed_retriable_error_is_used_up_by_a_hidden_retry(
    cluster: MockCluster, producer: Producer
) -> None:
    begin_and_produce(producer)
    cluster.push_errors(ApiKey.END_TXN, 51)
    producer.commit_transaction(PATIENCE_S)
    assert len(cluster.requests(ApiKey.END_TXN)) == 2


def test_cleared_errors_are_not_returned(cluster: MockCluster, producer: Producer) -> None:
    begin_and_produce(producer)
    cluster.push_errors(ApiKey.END_TXN, 47)
    cluster.clear_errors(ApiKey.END_TXN)
    producer.commit_transaction(PATIENCE_S)


def test_disconnect_makes_the_client_send_again(cluster: MockCluster, producer: Producer) -> None:
    begin_and_produce(producer)
    cluster.push_errors(ApiKey.END_TXN, KafkaError._TRANSPORT)
    producer.commit_transaction(PATIENCE_S)
    assert len(cluster.requests(ApiKey.END_TXN)) == 2


def test_variadic_rtts_reach_the_named_broker_only(cluster: MockCluster, producer: Producer) -> None:
    begin_and_produce(producer)
    cluster.push_error_rtts(2, ApiKey.END_TXN, (51, 150), (0, 150))
    cluster.push_error_rtts(1, ApiKey.END_TXN, (47, 0))
    assert cluster.errors_left(2, ApiKey.END_TXN) == 2
    before = time.monotonic()
    producer.commit_transaction(PATIENCE_S)
    assert time.monotonic() - before >= 0.3
    assert cluster.errors_left(2, ApiKey.END_TXN) == 0
    assert cluster.errors_left(1, ApiKey.END_TXN) == 1


def test_slow_coordinator_times_out_the_commit_which_can_be_resumed(
    cluster: MockCluster, producer: Producer
) -> None:
    begin_and_produce(producer)
    cluster.set_rtt(2, 400)
    with pytest.raises(KafkaException) as raised:
        producer.commit_transaction(0.1)
    assert error_of(raised).code() == KafkaError._TIMED_OUT
    assert error_of(raised).retriable()
    cluster.set_rtt(2, 0)
    producer.commit_transaction(PATIENCE_S)


def test_coordinator_that_moved_is_followed(cluster: MockCluster, producer: Producer) -> None:
    begin_and_produce(producer)
    cluster.coordinator_set("transaction", TXN_ID, 3)
    cluster.push_errors(ApiKey.END_TXN, 16)
    producer.commit_transaction(PATIENCE_S)
    assert [request.broker_id for request in cluster.requests(ApiKey.END_TXN)] == [2, 3]


def test_coordinator_that_is_down_is_awaited(cluster: MockCluster, producer: Producer) -> None:
    begin_and_produce(producer)
    cluster.broker_down(2)
    with pytest.raises(KafkaException) as raised:
        producer.commit_transaction(0.2)
    assert error_of(raised).retriable()
    cluster.broker_up(2)
    producer.commit_transaction(PATIENCE_S)


def test_leader_that_moved_is_followed(cluster: MockCluster, producer: Producer) -> None:
    cluster.partition_set_leader("t", 0, 3)
    begin_and_produce(producer)
    producer.commit_transaction(PATIENCE_S)
    assert cluster.requests(ApiKey.PRODUCE)[-1].broker_id == 3  # the first may have gone to the old leader


def test_topic_error_is_in_the_metadata(cluster: MockCluster, producer: Producer) -> None:
    cluster.topic_set_error("t", KafkaError.TOPIC_AUTHORIZATION_FAILED)
    error = producer.list_topics("t", timeout=PATIENCE_S).topics["t"].error
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    cluster.topic_set_error("t", 0)
    assert producer.list_topics("t", timeout=PATIENCE_S).topics["t"].error is None


def test_requests_can_be_forgotten(cluster: MockCluster, producer: Producer) -> None:
    assert cluster.requests(ApiKey.INIT_PRODUCER_ID)
    cluster.clear_requests()
    assert cluster.requests(ApiKey.INIT_PRODUCER_ID) == []


def test_refused_call_names_the_reason(cluster: MockCluster) -> None:
    with pytest.raises(MockError, match="BROKER_NOT_AVAILABLE"):
        cluster.broker_down(99)


def test_api_version_range_is_offered(cluster: MockCluster) -> None:
    cluster.set_api_versions(ApiKey.INIT_PRODUCER_ID, -1, -1)
    client = Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "x", "log_level": 0}
    )
    with pytest.raises(KafkaException) as raised:
        client.init_transactions(PATIENCE_S)
    assert error_of(raised).code() == KafkaError._UNSUPPORTED_FEATURE


def test_close_can_be_repeated() -> None:
    cluster = MockCluster(brokers=1)
    cluster.close()
    cluster.close()
