"""What the client or the broker does not take: the transaction aborts in bounded time, the next one works."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from eos import ConfigError, OutputBatch, RecordRefusedError, UsageError
from eos.core.producer import ProducerState, ShardProducer
from eos.core.transaction import TransactionState
from eos.shards import OrdinalShard
from tests.support.observer import create_topics, lso, read_committed, read_uncommitted, unique
from tests.support.patience import PATIENCE_S
from tests.support.settings import settings_of

if TYPE_CHECKING:
    from tests.conftest import NewTopic

pytestmark = pytest.mark.broker

CLIENT_LIMIT_BYTES = 20_000
BROKER_LIMIT_BYTES = 5_000


@pytest.fixture
def open_producer(bootstrap: str) -> Iterator[Callable[..., ShardProducer]]:
    opened: list[ShardProducer] = []

    def make(options: dict[str, Any] | None = None, **transaction: object) -> ShardProducer:
        settings = settings_of(
            bootstrap,
            kafka__producer=options or {},
            ownership__max_poll_interval_ms=1_000_000,
            **{f"transaction.{name}": value for name, value in transaction.items()},
        )
        producer = ShardProducer(settings, OrdinalShard(unique("refused"), "group", 0))
        opened.append(producer)
        producer.open()
        return producer

    yield make
    for producer in opened:
        producer.close()


def visible(bootstrap: str, topic: str) -> list[bytes | None]:
    return [record.value for record in read_committed(bootstrap, topic)]


@pytest.mark.parametrize("batch", [False, True], ids=["produce", "produce_batch"])
def test_record_larger_than_the_client_allows_aborts_and_names_topic_and_fix(
    open_producer: Callable[..., ShardProducer], bootstrap: str, topic: NewTopic, *, batch: bool
) -> None:
    out, producer = topic(), open_producer({"message.max.bytes": CLIENT_LIMIT_BYTES})
    large = b"x" * CLIENT_LIMIT_BYTES
    with (
        pytest.raises(RecordRefusedError, match=r"message\.max\.bytes") as raised,
        producer.transaction() as txn,
    ):
        txn.produce(out, b"never")
        if batch:
            txn.produce_batch(out, OutputBatch(out, [b"never", large, b"never"]))
        else:
            txn.produce(out, large)
    assert out in str(raised.value)
    assert txn.state is TransactionState.ABORTED
    with producer.transaction() as txn:
        txn.produce(out, b"next")
    assert visible(bootstrap, out) == [b"next"]


@pytest.mark.parametrize(
    "odd",
    [
        {"values": [b"1", b"2", 3, b"4"]},
        {"headers": [(), (), [("h", 5)], ()]},
        {"timestamps_ms": [None, None, 1.5, None]},
    ],
    ids=["value", "header", "timestamp"],
)
def test_record_of_a_wrong_type_inside_a_batch_cannot_be_swallowed(
    open_producer: Callable[..., ShardProducer], bootstrap: str, topic: NewTopic, odd: dict[str, Any]
) -> None:
    """Those before it are queued: a commit would be a torn batch."""
    out, producer = topic(), open_producer({})
    says = rf"{out}: record 2 of 4 cannot be written: TypeError: .*Fix: "
    with pytest.raises(UsageError, match=says), producer.transaction() as txn:
        with pytest.raises(UsageError, match=says):
            txn.produce_batch(out, OutputBatch(out, **{"values": [b"1", b"2", b"3", b"4"]} | odd))
        txn.produce(out, b"never")
    with producer.transaction() as txn:
        txn.produce(out, b"next")
    assert visible(bootstrap, out) == [b"next"]


def test_record_refused_inside_a_batch_cannot_be_swallowed(
    open_producer: Callable[..., ShardProducer], bootstrap: str, topic: NewTopic
) -> None:
    """The client goes on behind the refused record: a commit would be a batch with a hole."""
    out, producer = topic(), open_producer({"message.max.bytes": CLIENT_LIMIT_BYTES})
    with pytest.raises(RecordRefusedError), producer.transaction() as txn:
        with pytest.raises(RecordRefusedError):
            txn.produce_batch(out, OutputBatch(out, [b"1", b"x" * CLIENT_LIMIT_BYTES, b"3"]))
        with pytest.raises(RecordRefusedError):
            txn.produce(out, b"4")
    assert visible(bootstrap, out) == []


def test_record_larger_than_the_topic_allows_aborts_and_names_topic_and_fix(
    open_producer: Callable[..., ShardProducer], bootstrap: str
) -> None:
    out, producer = unique("small"), open_producer()
    create_topics(bootstrap, {out: 1}, config={"max.message.bytes": str(BROKER_LIMIT_BYTES)})
    with (
        pytest.raises(RecordRefusedError, match=r"max\.message\.bytes") as raised,
        producer.transaction() as txn,
    ):
        txn.produce(out, b"never")
        txn.produce(out, b"x" * 2 * BROKER_LIMIT_BYTES)
    assert out in str(raised.value)
    assert txn.state is TransactionState.ABORTED
    with producer.transaction() as txn:
        txn.produce(out, b"next")
    assert visible(bootstrap, out) == [b"next"]


def test_missing_topic_aborts_and_is_named(
    open_producer: Callable[..., ShardProducer], bootstrap: str, topic: NewTopic
) -> None:
    """When: topic.metadata.propagation.max.ms, 10 s unless set (the topic may just have been created)."""
    out, missing = topic(), unique("missing")
    producer = open_producer({"topic.metadata.propagation.max.ms": 1000})
    with pytest.raises(RecordRefusedError, match="does not exist") as raised, producer.transaction() as txn:
        txn.produce(out, b"never")
        txn.produce(missing, b"never")
    assert missing in str(raised.value)
    with producer.transaction() as txn:
        txn.produce(out, b"next")
    assert visible(bootstrap, out) == [b"next"]


def test_missing_partition_aborts_and_is_named(
    open_producer: Callable[..., ShardProducer], bootstrap: str, topic: NewTopic
) -> None:
    out, producer = topic(), open_producer({"topic.metadata.propagation.max.ms": 1000})
    with pytest.raises(RecordRefusedError, match="partition does not exist"), producer.transaction() as txn:
        txn.produce(out, b"never", partition=7)
    with producer.transaction() as txn:
        txn.produce(out, b"next")
    assert visible(bootstrap, out) == [b"next"]


def test_full_queue_is_waited_out_and_keeps_the_order(
    open_producer: Callable[..., ShardProducer], bootstrap: str, topic: NewTopic
) -> None:
    out, producer = topic(), open_producer({"queue.buffering.max.messages": 50})
    with producer.transaction() as txn:
        for n in range(0, 1000, 200):
            for one in range(n, n + 100):
                txn.produce(out, b"%d" % one)
            txn.produce_batch(out, [{"value": b"%d" % one} for one in range(n + 100, n + 200)])
    assert visible(bootstrap, out) == [b"%d" % n for n in range(1000)]


def test_batch_over_the_queues_bytes_is_waited_out_and_keeps_the_order(
    open_producer: Callable[..., ShardProducer], bootstrap: str, topic: NewTopic
) -> None:
    """Only the number of records can be known before: the queue's bytes fill up in the middle of a batch."""
    out, producer = topic(), open_producer({"queue.buffering.max.kbytes": 64, "linger.ms": 100})
    values: list[bytes | None] = [(b"%d" % n).ljust(3000 if n % 3 else 30) for n in range(200)]
    with producer.transaction() as txn:
        txn.produce_batch(out, OutputBatch(out, values))
    assert visible(bootstrap, out) == values


def test_full_queue_of_a_missing_topic_aborts_at_the_transactions_deadline_and_is_named(
    open_producer: Callable[..., ShardProducer], bootstrap: str, topic: NewTopic
) -> None:
    missing, out = unique("missing"), topic()
    producer = open_producer(
        {"queue.buffering.max.messages": 10, "topic.metadata.propagation.max.ms": 60_000}, timeout_ms=6_000
    )
    began = time.monotonic()
    with (
        pytest.raises(ConfigError, match=f"is missing: topic {missing} does not exist.*Fix: "),
        producer.transaction() as txn,
    ):
        for n in range(100):
            txn.produce(missing, b"%d" % n)
    assert time.monotonic() - began < 30
    with producer.transaction() as txn:
        txn.produce(out, b"next")
    assert visible(bootstrap, out) == [b"next"]


def test_anothers_open_transaction_holds_the_readers_back_but_not_our_commits(
    open_producer: Callable[..., ShardProducer], bootstrap: str, topic: NewTopic
) -> None:
    out, slow, quick = topic(), open_producer(), open_producer()
    go_on = threading.Event()

    def hold_open() -> None:
        with slow.transaction() as txn:
            txn.produce(out, b"slow")
            go_on.wait(PATIENCE_S)

    holder = threading.Thread(target=hold_open)
    holder.start()
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not read_uncommitted(bootstrap, out) and time.monotonic() < deadline:
            time.sleep(0.02)
        for n in range(3):
            with quick.transaction() as txn:
                txn.produce(out, b"quick %d" % n)
        assert lso(bootstrap, out) == {0: 0}
        assert read_committed(bootstrap, out, settled=False) == []
    finally:
        go_on.set()
        holder.join(PATIENCE_S)
    assert visible(bootstrap, out) == [b"slow", b"quick 0", b"quick 1", b"quick 2"]
    assert quick.state is ProducerState.READY


def test_timeout_above_the_brokers_maximum_is_a_config_error_that_names_it(
    open_producer: Callable[..., ShardProducer],
) -> None:
    with pytest.raises(ConfigError, match=r"transaction\.max\.timeout\.ms"):
        open_producer(timeout_ms=900_001)
