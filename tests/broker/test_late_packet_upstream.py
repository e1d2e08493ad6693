"""A canary: plain librdkafka still lets a late packet of one transaction end or change the next one.

librdkafka speaks EndTxn v1, so two transactions of one producer share an epoch and the broker cannot
tell a late request of the first from one of the second. Here the late request is one that librdkafka
sent again by itself; no call raises. As long as these tests pass, eos must rebuild suspect producers;
once one fails (a librdkafka with transactions V2, KIP-890), the workaround can go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from eos.testing.proxy.frames import ApiKey
from eos.testing.proxy.hold_proxy import Hold, HoldProxy, Outcome, ends_with
from tests.support.observer import committed_offsets, read_committed, unique
from tests.support.patience import PATIENCE_S

if TYPE_CHECKING:
    from tests.conftest import NewTopic

pytestmark = [pytest.mark.broker, pytest.mark.canary]

SOCKET_TIMEOUT_MS = 1000
INVALID_PRODUCER_EPOCH = 47


@pytest.fixture
def out(topic: NewTopic) -> str:
    return topic("late-packet", partitions=2)


@pytest.fixture
def producer(proxy: HoldProxy) -> Iterator[Producer]:
    client = new_producer(proxy, unique("late-packet"))
    yield client
    client.purge()


def new_producer(proxy: HoldProxy, transactional_id: str) -> Producer:
    client = Producer(
        {
            "bootstrap.servers": proxy.bootstrap_servers,
            "transactional.id": transactional_id,
            "socket.timeout.ms": SOCKET_TIMEOUT_MS,
            "message.timeout.ms": 20_000,
            "transaction.timeout.ms": 30_000,
            "log_level": 0,
        }
    )
    client.init_transactions(PATIENCE_S)
    return client


def produce(producer: Producer, topic: str, partition: int, value: str) -> None:
    producer.produce(topic, value, partition=partition)
    assert producer.flush(PATIENCE_S) == 0


def deliver_late(hold: Hold) -> bytes:
    """Let the first copy reach the broker and wait until it has acted on it; returns its answer."""
    hold.wait_held(PATIENCE_S)
    hold.release()
    return hold.wait_answer(PATIENCE_S)


@pytest.mark.parametrize("reset_client", [False, True], ids=["after a timeout", "after a disconnect"])
def test_late_abort_of_the_first_transaction_loses_a_record_of_the_second(
    proxy: HoldProxy, producer: Producer, bootstrap: str, out: str, *, reset_client: bool
) -> None:
    late = proxy.hold(ApiKey.END_TXN, where=ends_with(committed=False), reset_client=reset_client)
    producer.begin_transaction()
    produce(producer, out, 0, "of the first")
    producer.abort_transaction(PATIENCE_S)  # returns: librdkafka has sent it again
    held, *again = [seen.outcome for seen in proxy.requests(ApiKey.END_TXN)]
    assert (held, set(again)) == (Outcome.HELD, {Outcome.FORWARDED})

    producer.begin_transaction()
    produce(producer, out, 0, "a")
    deliver_late(late)
    produce(producer, out, 1, "b")
    producer.commit_transaction(PATIENCE_S)

    assert [record.value for record in read_committed(bootstrap, out)] == [b"b"]


def test_late_commit_of_the_first_transaction_tears_the_second_which_was_aborted(
    proxy: HoldProxy, producer: Producer, bootstrap: str, out: str
) -> None:
    late = proxy.hold(ApiKey.END_TXN, where=ends_with(committed=True), reset_client=True)
    producer.begin_transaction()
    produce(producer, out, 0, "of the first")
    producer.commit_transaction(PATIENCE_S)

    producer.begin_transaction()
    produce(producer, out, 0, "a")
    deliver_late(late)
    produce(producer, out, 1, "b")
    producer.abort_transaction(PATIENCE_S)

    assert [record.value for record in read_committed(bootstrap, out)] == [b"of the first", b"a"]


def test_late_offsets_of_an_aborted_transaction_skip_input_in_the_next(
    proxy: HoldProxy, producer: Producer, bootstrap: str, out: str
) -> None:
    group = unique("late-offsets")
    member = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        metadata = member.consumer_group_metadata()
        late = proxy.hold(ApiKey.TXN_OFFSET_COMMIT, reset_client=True)
        producer.begin_transaction()
        produce(producer, out, 1, "of the first")
        producer.send_offsets_to_transaction([TopicPartition(out, 0, 10)], metadata, PATIENCE_S)
        producer.abort_transaction(PATIENCE_S)

        producer.begin_transaction()
        produce(producer, out, 1, "of the second")
        producer.send_offsets_to_transaction([TopicPartition(out, 0, 5)], metadata, PATIENCE_S)
        deliver_late(late)
        producer.commit_transaction(PATIENCE_S)
    finally:
        member.close()

    assert committed_offsets(bootstrap, group, [(out, 0)]) == {(out, 0): (10, "")}


def test_rebuilt_producer_is_safe_from_the_late_abort(
    proxy: HoldProxy, bootstrap: str, out: str, names: Callable[[str], str]
) -> None:
    """The cure: a new instance of the same id has a higher epoch, and the late packet is refused."""
    transactional_id = names("late-packet")
    late = proxy.hold(ApiKey.END_TXN, reset_client=True)
    first = new_producer(proxy, transactional_id)
    first.begin_transaction()
    produce(first, out, 0, "of the first")
    first.abort_transaction(PATIENCE_S)

    second = new_producer(proxy, transactional_id)
    second.begin_transaction()
    produce(second, out, 0, "a")
    frame = late.wait_held(PATIENCE_S)
    assert frame.error_in(deliver_late(late)) == INVALID_PRODUCER_EPOCH
    produce(second, out, 1, "b")
    second.commit_transaction(PATIENCE_S)

    assert [record.value for record in read_committed(bootstrap, out)] == [b"a", b"b"]
