"""An unanswered commit, and what a reopen proves: outcomes are read back, never guessed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer

from eos import (
    CommitOutcomeUnknownError,
    FencedError,
    GroupMetadata,
    OffsetVector,
    OrdinalShard,
    Partition,
    ProducerState,
    RecordRefusedError,
    ReopenError,
    Settings,
    Shard,
    TransactionalProducer,
    TransactionState,
    UnavailableError,
    UsageError,
)
from eos.events import Event, ProducerOpened, ProducerSuspect
from eos.ownership import Outcome
from tests.support.hold_proxy import Edge, HoldProxy, ends_with
from tests.support.kafka_frames import ApiKey
from tests.support.observer import committed_offsets, create_topics, read_committed, unique

if TYPE_CHECKING:
    from tests.conftest import NewTopic

pytestmark = pytest.mark.broker

Open = Callable[..., TransactionalProducer]


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
def shard() -> Shard:
    return OrdinalShard(unique("reopen"), "group", 0)


@pytest.fixture
def open_producer(bootstrap: str, shard: Shard, told: list[Event]) -> Iterator[Open]:
    opened: list[TransactionalProducer] = []

    def tell(event: Event) -> None:
        told.append(event)

    def make(address: str = bootstrap, **transaction: object) -> TransactionalProducer:
        overrides: dict[str, Any] = {
            "kafka.bootstrap_servers": address,
            **{f"transaction.{name}": value for name, value in transaction.items()},
        }
        settings = Settings.load(overrides=overrides, environ={})
        producer = TransactionalProducer(settings, shard, listener=tell)
        opened.append(producer)
        producer.open()
        return producer

    yield make
    for producer in opened:
        producer.close()


@pytest.fixture
def source(topic: NewTopic) -> str:
    return topic("in")


@pytest.fixture
def out(topic: NewTopic) -> str:
    return topic("out")


@pytest.fixture
def metadata(bootstrap: str) -> Iterator[GroupMetadata]:
    """Of a consumer that has not joined: a classic group without members accepts its offsets."""
    group = unique("reopen")
    member = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    yield GroupMetadata(group, member.consumer_group_metadata())
    member.close()


def write(
    producer: TransactionalProducer, out: str, value: bytes, source: str, offset: int, metadata: GroupMetadata
) -> None:
    with producer.transaction() as txn:
        txn.produce(out, value)
        txn.add_offsets(OffsetVector({Partition(source, 0): offset}), metadata)


def visible(bootstrap: str, topic: str) -> list[bytes | None]:
    return [record.value for record in read_committed(bootstrap, topic)]


def offset_of(bootstrap: str, metadata: GroupMetadata, source: str) -> int | None:
    return committed_offsets(bootstrap, metadata.group_id, [(source, 0)])[source, 0][0]


@pytest.mark.parametrize("edge", [Edge.REPLY, Edge.REQUEST], ids=["answer lost", "request lost"])
def test_commit_without_an_answer_is_unknown_and_the_reopen_says_which(
    proxy: HoldProxy,
    bootstrap: str,
    open_producer: Open,
    source: str,
    out: str,
    metadata: GroupMetadata,
    edge: Edge,
) -> None:
    producer = open_producer(proxy.bootstrap_servers, commit_deadline_ms=700)
    write(producer, out, b"first", source, 1, metadata)
    if edge is Edge.REPLY:
        proxy.drop_reply(ApiKey.END_TXN, where=ends_with(committed=True), times=100)
    else:
        proxy.cut(ApiKey.END_TXN, edge, where=ends_with(committed=True), times=100)
    with pytest.raises(CommitOutcomeUnknownError):
        write(producer, out, b"second", source, 2, metadata)
    assert producer.state is ProducerState.OVER

    # Until the old instance is gone, it goes on to send the commit again.
    happened = edge is Edge.REPLY
    assert producer.reopen() is (Outcome.COMMITTED if happened else Outcome.ABORTED)
    proxy.clear_rules()
    assert offset_of(bootstrap, metadata, source) == (2 if happened else 1)
    assert visible(bootstrap, out) == ([b"first", b"second"] if happened else [b"first"])

    write(producer, out, b"third", source, 3, metadata)
    assert visible(bootstrap, out)[-1] == b"third"
    assert offset_of(bootstrap, metadata, source) == 3


@pytest.mark.parametrize("edge", [Edge.REPLY, Edge.REQUEST], ids=["answer lost", "request lost"])
def test_commit_of_output_alone_without_an_answer_stays_unknown(
    proxy: HoldProxy,
    bootstrap: str,
    open_producer: Open,
    source: str,
    out: str,
    metadata: GroupMetadata,
    edge: Edge,
) -> None:
    """Offsets of earlier transactions prove that the shard is ours, but not what became of this one."""
    producer = open_producer(proxy.bootstrap_servers, commit_deadline_ms=700)
    write(producer, out, b"first", source, 1, metadata)
    if edge is Edge.REPLY:
        proxy.drop_reply(ApiKey.END_TXN, where=ends_with(committed=True), times=100)
    else:
        proxy.cut(ApiKey.END_TXN, edge, where=ends_with(committed=True), times=100)
    with pytest.raises(CommitOutcomeUnknownError), producer.transaction() as txn:
        txn.produce(out, b"output alone")
    assert producer.reopen() is Outcome.UNKNOWN
    proxy.clear_rules()
    write(producer, out, b"next", source, 2, metadata)
    seen = visible(bootstrap, out)
    assert seen == [b"first", *([b"output alone"] if edge is Edge.REPLY else []), b"next"]


def test_producer_of_output_alone_gives_up_after_an_unanswered_commit(
    proxy: HoldProxy, open_producer: Open, out: str
) -> None:
    producer = open_producer(proxy.bootstrap_servers, commit_deadline_ms=700)
    proxy.drop_reply(ApiKey.END_TXN, times=100)
    with pytest.raises(CommitOutcomeUnknownError), producer.transaction() as txn:
        txn.produce(out, b"maybe")
    proxy.clear_rules()
    with pytest.raises(ReopenError, match="carried no offsets"):
        producer.transaction()
    with pytest.raises(UsageError, match="closed"):
        producer.transaction()


def test_record_that_was_not_delivered_leaves_the_next_transaction_to_a_fresh_instance(
    bootstrap: str, open_producer: Open, told: list[Event]
) -> None:
    """The client misses the sequence number of a refused record: it would fail the next transaction."""
    out = unique("small")
    create_topics(bootstrap, {out: 1}, config={"max.message.bytes": "5000"})
    producer = open_producer()
    with pytest.raises(RecordRefusedError), producer.transaction() as txn:
        txn.produce(out, b"x" * 6000)
    assert txn.state is TransactionState.ABORTED
    assert [event for event in told if isinstance(event, ProducerSuspect)]
    for value in (b"next", b"and next"):
        with producer.transaction() as txn:
            txn.produce(out, value)
    assert visible(bootstrap, out) == [b"next", b"and next"]


def test_aborts_with_records_in_flight_never_harm_the_next_transaction(
    bootstrap: str, open_producer: Open, source: str, out: str, metadata: GroupMetadata
) -> None:
    producer = open_producer()
    for turn in range(15):
        with pytest.raises(ZeroDivisionError), producer.transaction() as txn:
            for _ in range(turn * 20):
                txn.produce(out, b"never" * 50)
            raise ZeroDivisionError
        write(producer, out, b"%d" % turn, source, turn + 1, metadata)
    assert visible(bootstrap, out) == [b"%d" % turn for turn in range(15)]
    assert offset_of(bootstrap, metadata, source) == 15


def test_reopen_that_cannot_compare_is_made_again_before_the_next_begin(
    bootstrap: str,
    open_producer: Open,
    source: str,
    out: str,
    metadata: GroupMetadata,
    told: list[Event],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The init alone proves nothing: without the comparison behind it, nothing may begin."""
    producer = open_producer()
    write(producer, out, b"first", source, 1, metadata)
    producer._suspect("a test")
    stored, calls = producer._stored, 0

    def fails_after_the_init(*arguments: Any, stable: bool) -> Any:
        nonlocal calls
        calls += stable
        if stable and calls == 1:
            raise UnavailableError("no answer")
        return stored(*arguments, stable=stable)

    monkeypatch.setattr(producer, "_stored", fails_after_the_init)
    with pytest.raises(UnavailableError):
        producer.transaction()
    assert producer.state is ProducerState.OVER
    write(producer, out, b"second", source, 2, metadata)
    assert calls == 2
    assert len([event for event in told if isinstance(event, ProducerOpened)]) == 3
    assert visible(bootstrap, out) == [b"first", b"second"]


def test_fence_every_transaction_gives_each_one_an_epoch_of_its_own(
    bootstrap: str, open_producer: Open, source: str, out: str, metadata: GroupMetadata, told: list[Event]
) -> None:
    producer = open_producer(fence_every="transaction")
    for n in range(3):
        write(producer, out, b"%d" % n, source, n + 1, metadata)
    assert len([event for event in told if isinstance(event, ProducerSuspect)]) == 2
    assert len([event for event in told if isinstance(event, ProducerOpened)]) == 3
    assert visible(bootstrap, out) == [b"0", b"1", b"2"]
    assert offset_of(bootstrap, metadata, source) == 3


def test_asked_reopen_of_an_undisturbed_producer_changes_nothing(
    bootstrap: str, open_producer: Open, source: str, out: str, metadata: GroupMetadata
) -> None:
    producer = open_producer()
    write(producer, out, b"first", source, 1, metadata)
    assert producer.reopen() is Outcome.ABORTED
    write(producer, out, b"second", source, 2, metadata)
    assert visible(bootstrap, out) == [b"first", b"second"]


def test_producer_that_was_never_open_cannot_be_reopened(bootstrap: str, shard: Shard) -> None:
    settings = Settings.load(overrides={"kafka.bootstrap_servers": bootstrap}, environ={})
    with pytest.raises(UsageError, match="not open"):
        TransactionalProducer(settings, shard).reopen()


def test_fenced_producer_cannot_be_reopened_over_the_new_owner(
    bootstrap: str, open_producer: Open, source: str, out: str, metadata: GroupMetadata
) -> None:
    """The new owner may have committed nothing yet, so a comparison would find nothing."""
    old = open_producer()
    write(old, out, b"old", source, 1, metadata)
    new = open_producer()
    with pytest.raises(FencedError):
        write(old, out, b"zombie", source, 2, metadata)
    for use in (old.reopen, old.transaction):
        with pytest.raises(FencedError):
            use()
    write(new, out, b"new", source, 2, metadata)
    assert visible(bootstrap, out) == [b"old", b"new"]
    assert offset_of(bootstrap, metadata, source) == 2


def test_offsets_call_that_never_returns_is_given_up_with_its_instance(
    bootstrap: str,
    open_producer: Open,
    source: str,
    out: str,
    metadata: GroupMetadata,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has a timeout of its own, which librdkafka does not always keep (issue 5511)."""
    monkeypatch.setattr("eos.transaction._OVERDUE_S", 0.2)
    producer = open_producer(timeout_ms=2000)
    write(producer, out, b"first", source, 1, metadata)
    hung, client = threading.Event(), producer._client
    monkeypatch.setattr(client, "send_offsets", lambda *_: hung.wait(30))
    began = time.monotonic()
    with pytest.raises(ReopenError, match="send offsets"):
        write(producer, out, b"never", source, 2, metadata)
    assert time.monotonic() - began < 5
    hung.set()
    write(producer, out, b"second", source, 2, metadata)
    assert visible(bootstrap, out) == [b"first", b"second"]
    assert offset_of(bootstrap, metadata, source) == 2


def test_loss_of_all_connections_between_transactions_is_survived(
    proxy: HoldProxy, bootstrap: str, open_producer: Open, source: str, out: str, metadata: GroupMetadata
) -> None:
    producer = open_producer(proxy.bootstrap_servers)
    for n in range(4):
        write(producer, out, b"%d" % n, source, n + 1, metadata)
        for task in list(proxy._connections):
            proxy._loop.call_soon_threadsafe(task.cancel)
        time.sleep(0.1)
    assert visible(bootstrap, out) == [b"0", b"1", b"2", b"3"]
    assert offset_of(bootstrap, metadata, source) == 4
