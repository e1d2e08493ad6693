"""The transaction block of a producer on its own: what its end makes visible, and what misuse gets.

The rules are those of ShardProducer and Transaction: leaving the block commits, an exception
aborts and goes on untouched, AbortTransaction aborts quietly, and misuse is a UsageError at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer

from eos import AbortableError, AbortTransaction, OffsetVector, Partition, Settings, UsageError
from eos.core.producer import ProducerState, ShardProducer
from eos.core.transaction import TransactionState
from eos.events import Event, TransactionCommitted, TransactionEnded
from eos.kafka.group_offsets import GroupMetadata
from eos.shards import OrdinalShard
from tests.support.observer import (
    committed_offsets,
    lso,
    read_committed,
    read_uncommitted,
    unique,
    watermarks,
)
from tests.support.patience import PATIENCE_S
from tests.support.settings import settings_of

if TYPE_CHECKING:
    from tests.conftest import NewTopic

pytestmark = pytest.mark.broker

AT_ONCE_S = 30.0  # half of transaction.timeout_ms


@pytest.fixture
def settings(bootstrap: str) -> Settings:
    return settings_of(bootstrap)


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
def producer(settings: Settings, told: list[Event]) -> Iterator[ShardProducer]:
    shard = OrdinalShard(unique("block"), "group", 0)

    def tell(event: Event) -> None:
        told.append(event)

    with ShardProducer(settings, shard, listener=tell) as one:
        yield one


@pytest.fixture
def out(topic: NewTopic) -> str:
    return topic("out")


@pytest.fixture
def group_metadata(bootstrap: str) -> Iterator[Callable[[str], GroupMetadata]]:
    """What a consumer that has not joined says: a classic group without members accepts its offsets."""
    members: list[Consumer] = []

    def make(group: str) -> GroupMetadata:
        member = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
        members.append(member)
        return GroupMetadata(group, member.consumer_group_metadata())

    yield make
    for member in members:
        member.close()


def visible(bootstrap: str, topic: str) -> list[bytes | None]:
    return [record.value for record in read_committed(bootstrap, topic)]


def test_leaving_the_block_makes_records_visible_and_not_before(
    producer: ShardProducer, bootstrap: str, out: str, told: list[Event]
) -> None:
    with producer.transaction() as txn:
        txn.produce(out, b"a")
        txn.produce(out, "b")
        deadline = time.monotonic() + PATIENCE_S
        while len(read_uncommitted(bootstrap, out)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [r.value for r in read_uncommitted(bootstrap, out)] == [b"a", b"b"]
        assert read_committed(bootstrap, out, settled=False) == []
    assert txn.state is TransactionState.COMMITTED
    assert visible(bootstrap, out) == [b"a", b"b"]
    (committed,) = [event for event in told if isinstance(event, TransactionCommitted)]
    assert committed.records_out == 2


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_exception_aborts_and_goes_on_untouched(
    producer: ShardProducer, bootstrap: str, out: str, error: BaseException, told: list[Event]
) -> None:
    with pytest.raises(type(error)) as raised, producer.transaction() as txn:
        txn.produce(out, b"never")
        raise error
    assert raised.value is error
    assert error.__cause__ is None
    assert txn.state is TransactionState.ABORTED
    assert any(isinstance(event, TransactionEnded) and event.outcome == "aborted" for event in told)

    with producer.transaction() as txn:
        txn.produce(out, b"next")
    assert visible(bootstrap, out) == [b"next"]


def test_generator_that_is_closed_inside_the_block_aborts(
    producer: ShardProducer, bootstrap: str, out: str
) -> None:
    def steps() -> Iterator[None]:
        with producer.transaction() as txn:
            txn.produce(out, b"never")
            yield
            txn.produce(out, b"never either")

    running = steps()
    next(running)
    running.close()  # type: ignore[attr-defined]  # a generator is declared as Iterator

    with producer.transaction() as txn:
        txn.produce(out, b"next")
    assert visible(bootstrap, out) == [b"next"]


def test_asked_abort_is_quiet_and_nothing_is_visible(
    producer: ShardProducer, bootstrap: str, out: str
) -> None:
    with producer.transaction() as txn:
        txn.produce(out, b"never")
        raise AbortTransaction
    assert txn.state is TransactionState.ABORTED
    assert visible(bootstrap, out) == []


def test_aborted_offsets_are_not_committed(
    producer: ShardProducer,
    bootstrap: str,
    out: str,
    group_metadata: Callable[[str], GroupMetadata],
) -> None:
    group = unique("aborted-offsets")
    with producer.transaction() as txn:
        txn.produce(out, b"never")
        txn.add_offsets(OffsetVector({Partition(out, 0): 7}), group_metadata(group))
        raise AbortTransaction
    assert committed_offsets(bootstrap, group, [(out, 0)]) == {(out, 0): (None, "")}
    assert visible(bootstrap, out) == []


def test_records_and_offsets_are_visible_together(
    producer: ShardProducer,
    bootstrap: str,
    topic: NewTopic,
    out: str,
    group_metadata: Callable[[str], GroupMetadata],
) -> None:
    source, group = topic("in", 2), unique("both")
    with producer.transaction() as txn:
        txn.produce(out, b"a")
        txn.add_offsets(
            OffsetVector({Partition(source, 0): 7, Partition(source, 1): 9}), group_metadata(group)
        )
    assert visible(bootstrap, out) == [b"a"]
    found = committed_offsets(bootstrap, group, [(source, 0), (source, 1)])
    assert [offset for offset, _ in found.values()] == [7, 9]
    assert all(" shard=#0 owner=" in metadata for _, metadata in found.values())


def test_offsets_only_transaction_commits_them(
    producer: ShardProducer,
    bootstrap: str,
    topic: NewTopic,
    group_metadata: Callable[[str], GroupMetadata],
) -> None:
    source, group = topic("in"), unique("offsets-only")
    for offset in (3, 4):
        with producer.transaction() as txn:
            txn.add_offsets(OffsetVector({Partition(source, 0): offset}), group_metadata(group))
    assert committed_offsets(bootstrap, group, [(source, 0)])[source, 0][0] == 4
    assert producer.state is ProducerState.READY


def test_empty_transaction_asks_the_broker_nothing_and_the_next_one_works(
    producer: ShardProducer, bootstrap: str, out: str
) -> None:
    with producer.transaction() as txn:
        pass
    assert txn.state is TransactionState.COMMITTED
    with producer.transaction():
        raise AbortTransaction
    assert watermarks(bootstrap, out) == {0: (0, 0)}
    with producer.transaction() as txn:
        txn.produce(out, b"a")
    assert visible(bootstrap, out) == [b"a"]


def test_nested_block_is_refused_and_the_outer_one_commits(
    producer: ShardProducer, bootstrap: str, out: str
) -> None:
    with producer.transaction() as txn:
        txn.produce(out, b"outer")
        with pytest.raises(UsageError, match="still open"):
            producer.transaction()
        with pytest.raises(UsageError, match="still open"):
            producer.reopen()
    assert visible(bootstrap, out) == [b"outer"]


def test_used_block_is_refused_a_second_time(producer: ShardProducer, bootstrap: str, out: str) -> None:
    with producer.transaction() as txn:
        txn.produce(out, b"once")
    began = time.monotonic()
    with pytest.raises(UsageError, match="a block is used once"), txn:
        pass
    late_calls: list[Callable[[], object]] = [
        lambda: txn.produce(out, b"late"),
        lambda: txn.produce_batch(out, [{"value": b"late"}]),
        lambda: txn.add_offsets(OffsetVector(), GroupMetadata("group", None)),
        txn._begun().commit,
        txn._begun().abort,
    ]
    for late in late_calls:
        with pytest.raises(UsageError):
            late()
    assert time.monotonic() - began < AT_ONCE_S
    assert visible(bootstrap, out) == [b"once"]


def test_record_before_the_block_is_refused(producer: ShardProducer, bootstrap: str, out: str) -> None:
    txn = producer.transaction()
    with pytest.raises(UsageError, match="the transaction is new"):
        txn.produce(out, b"early")
    with txn:
        txn.produce(out, b"a")
    assert visible(bootstrap, out) == [b"a"]


def test_second_add_offsets_is_refused_and_the_first_holds(
    producer: ShardProducer,
    bootstrap: str,
    out: str,
    group_metadata: Callable[[str], GroupMetadata],
) -> None:
    """Two sends of one transaction could be swapped by a resend, and the older offsets would win."""
    group = unique("twice")
    with producer.transaction() as txn:
        txn.add_offsets(OffsetVector({Partition(out, 0): 5}), group_metadata(group))
        with pytest.raises(UsageError, match="once per transaction"):
            txn.add_offsets(OffsetVector({Partition(out, 0): 6}), group_metadata(group))
    assert committed_offsets(bootstrap, group, [(out, 0)])[out, 0][0] == 5


def test_offsets_of_an_unknown_partition_abort_the_transaction_before_it_expires(
    bootstrap: str, out: str, group_metadata: Callable[[str], GroupMetadata]
) -> None:
    """The client repeats such a request until its time is over; an abort must still fit in."""
    settings = settings_of(bootstrap, transaction__timeout_ms=10_000)
    with ShardProducer(settings, OrdinalShard(unique("unknown"), "group", 0)) as producer:
        with pytest.raises(AbortableError, match="UNKNOWN_TOPIC_OR_PART"), producer.transaction() as txn:
            txn.produce(out, b"never")
            txn.add_offsets(OffsetVector({Partition(out, 99): 5}), group_metadata(unique("unknown")))
        assert txn.state is TransactionState.ABORTED
        assert txn._begun().seconds < 10
        with producer.transaction() as txn:
            txn.produce(out, b"next")
    assert visible(bootstrap, out) == [b"next"]


def test_closed_inside_a_block_aborts_at_once_and_frees_the_readers(
    producer: ShardProducer, bootstrap: str, out: str
) -> None:
    """close() of the client leaves the transaction open; readers would wait for transaction.timeout.ms."""
    txn = producer.transaction()
    txn._begun().begin()
    txn.produce(out, b"never")
    deadline = time.monotonic() + PATIENCE_S
    while not read_uncommitted(bootstrap, out) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert lso(bootstrap, out) == {0: 0}
    began = time.monotonic()
    producer.close()
    assert time.monotonic() - began < AT_ONCE_S
    assert read_committed(bootstrap, out, timeout_s=AT_ONCE_S) == []
    assert txn.state is TransactionState.ABORTED
    for use in (producer.transaction, producer.reopen, lambda: txn.produce(out, b"late")):
        with pytest.raises(UsageError):
            use()


def test_producer_closed_before_its_block_is_entered_is_a_usage_error(
    producer: ShardProducer,
) -> None:
    txn = producer.transaction()
    producer.close()
    with pytest.raises(UsageError, match="was closed"), txn:
        pass


def test_interrupt_while_the_commit_waits_is_answered_and_the_commit_is_not_torn(
    producer: ShardProducer,
    bootstrap: str,
    out: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a commit was sent, an abort is not allowed any more: the same commit gets a last short chance."""
    client = producer._client
    assert client is not None
    commit, calls = client.commit, threading.Event()

    def interrupted(timeout_s: float, last_look: Callable[[], None] | None = None) -> None:
        if not calls.is_set():
            calls.set()
            client.commit_called = True
            raise KeyboardInterrupt
        commit(timeout_s)

    monkeypatch.setattr(client, "commit", interrupted)
    with pytest.raises(KeyboardInterrupt), producer.transaction() as txn:
        txn.produce(out, b"a")
    assert txn.state is TransactionState.COMMITTED
    assert visible(bootstrap, out) == [b"a"]


def test_second_interrupt_in_that_chance_leaves_it_to_the_reopen(
    producer: ShardProducer, bootstrap: str, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = producer._client
    assert client is not None

    def interrupted(*_: object) -> None:
        client.commit_called = True
        raise KeyboardInterrupt

    monkeypatch.setattr(client, "commit", interrupted)
    with pytest.raises(KeyboardInterrupt), producer.transaction() as txn:
        txn.produce(out, b"a")
    assert txn.state is TransactionState.UNRESOLVED
    assert producer.state is ProducerState.OVER
