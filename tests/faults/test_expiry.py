"""The owner's transaction outlives transaction.timeout.ms, told apart from a fence.

librdkafka reports both as _FENCED (KIP-588 is not supported). Before the timeout that proves a rival;
after it, only a comparison of the committed offsets behind a reopen does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer

from eos import (
    EosError,
    FencedError,
    GroupMetadata,
    OffsetVector,
    OrdinalShard,
    Partition,
    ProducerState,
    ReopenError,
    Settings,
    Shard,
    TransactionalProducer,
    TransactionExpiredError,
    TransactionState,
)
from eos.events import Event, TransactionExpired
from tests.support.observer import committed_offsets, lso, read_committed, unique, watermarks

if TYPE_CHECKING:
    from tests.conftest import NewTopic

pytestmark = pytest.mark.broker

TIMEOUT_MS = 1000
EXPIRED_S = 10.0  # by then the coordinator (it looks every second) has aborted it

Open = Callable[..., TransactionalProducer]


@pytest.fixture
def source(topic: NewTopic) -> str:
    return topic("in")


@pytest.fixture
def out(topic: NewTopic) -> str:
    return topic("out")


@pytest.fixture
def shard() -> Shard:
    return OrdinalShard(unique("expiry"), "g", 0)


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
def open_owner(bootstrap: str, shard: Shard, told: list[Event]) -> Iterator[Open]:
    owners: list[TransactionalProducer] = []

    def tell(event: Event) -> None:
        told.append(event)

    def make(timeout_ms: int = TIMEOUT_MS) -> TransactionalProducer:
        overrides: dict[str, Any] = {
            "kafka.bootstrap_servers": bootstrap,
            "transaction.timeout_ms": timeout_ms,
            "transaction.commit_deadline_ms": 10_000,
        }
        owner = TransactionalProducer(Settings.load(overrides=overrides, environ={}), shard, listener=tell)
        owners.append(owner)
        owner.open()
        return owner

    yield make
    for owner in owners:
        owner.close()


@pytest.fixture
def metadata(bootstrap: str) -> Iterator[GroupMetadata]:
    """Of a consumer that has not joined: a classic group without members accepts its offsets."""
    group = unique("expiry")
    member = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    yield GroupMetadata(group, member.consumer_group_metadata())
    member.close()


def commit(
    owner: TransactionalProducer, out: str, value: bytes, source: str, offset: int, metadata: GroupMetadata
) -> None:
    with owner.transaction() as txn:
        txn.produce(out, value)
        txn.add_offsets(OffsetVector({Partition(source, 0): offset}), metadata)


def wait_for_the_coordinators_abort(bootstrap: str, out: str, past: int) -> None:
    """Until the log has grown beyond ``past`` and nothing of it is open any more."""
    deadline = time.monotonic() + EXPIRED_S
    while time.monotonic() < deadline:
        high = watermarks(bootstrap, out)[0][1]
        if high > past and lso(bootstrap, out)[0] == high:
            return
        time.sleep(0.1)
    pytest.fail("the coordinator did not abort the transaction")


def visible(bootstrap: str, topic: str) -> list[bytes | None]:
    return [record.value for record in read_committed(bootstrap, topic)]


def offset_of(bootstrap: str, metadata: GroupMetadata, source: str) -> int | None:
    return committed_offsets(bootstrap, metadata.group_id, [(source, 0)])[source, 0][0]


def test_expired_transaction_of_the_only_owner_is_redone_after_a_reopen(
    bootstrap: str, open_owner: Open, source: str, out: str, metadata: GroupMetadata, told: list[Event]
) -> None:
    owner = open_owner()
    commit(owner, out, b"first", source, 1, metadata)
    with pytest.raises(TransactionExpiredError), owner.transaction() as txn:
        txn.produce(out, b"expired")
        txn.add_offsets(OffsetVector({Partition(source, 0): 2}), metadata)
        wait_for_the_coordinators_abort(bootstrap, out, past=3)
    assert txn.state is TransactionState.UNRESOLVED
    assert owner.state is ProducerState.OVER
    assert any(isinstance(event, TransactionExpired) for event in told)
    assert offset_of(bootstrap, metadata, source) == 1
    commit(owner, out, b"redone", source, 2, metadata)
    assert visible(bootstrap, out) == [b"first", b"redone"]
    assert offset_of(bootstrap, metadata, source) == 2


def test_expired_transaction_with_a_rival_that_committed_ends_fenced(
    bootstrap: str, open_owner: Open, source: str, out: str, metadata: GroupMetadata
) -> None:
    owner = open_owner()
    commit(owner, out, b"first", source, 1, metadata)
    txn = owner.transaction()
    txn.begin()
    txn.produce(out, b"expired")
    rival = open_owner(timeout_ms=60_000)
    commit(rival, out, b"second", source, 2, metadata)
    time.sleep(TIMEOUT_MS / 1000)
    txn.add_offsets(OffsetVector({Partition(source, 0): 2}), metadata)
    with pytest.raises(TransactionExpiredError):
        txn.commit()
    for _ in range(2):
        with pytest.raises(FencedError):
            owner.transaction()
    commit(rival, out, b"third", source, 3, metadata)  # not fenced by it
    assert visible(bootstrap, out) == [b"first", b"second", b"third"]
    assert offset_of(bootstrap, metadata, source) == 3


def test_fence_before_the_timeout_is_a_fence_at_once(
    bootstrap: str, open_owner: Open, source: str, out: str, metadata: GroupMetadata
) -> None:
    owner = open_owner(timeout_ms=60_000)
    with pytest.raises(FencedError), owner.transaction() as txn:
        txn.produce(out, b"never")
        txn.add_offsets(OffsetVector({Partition(source, 0): 2}), metadata)
        open_owner()
    assert owner.state is ProducerState.FENCED
    assert visible(bootstrap, out) == []


def test_error_of_the_block_goes_on_although_its_transaction_had_expired(
    bootstrap: str, open_owner: Open, source: str, out: str, metadata: GroupMetadata
) -> None:
    owner = open_owner()
    commit(owner, out, b"first", source, 1, metadata)
    with pytest.raises(ZeroDivisionError), owner.transaction() as txn:
        txn.produce(out, b"expired")
        wait_for_the_coordinators_abort(bootstrap, out, past=3)
        raise ZeroDivisionError
    commit(owner, out, b"next", source, 2, metadata)
    assert visible(bootstrap, out) == [b"first", b"next"]


@pytest.mark.slow
def test_record_behind_the_expiry_is_refused_and_the_rest_redone(
    bootstrap: str, open_owner: Open, source: str, out: str, metadata: GroupMetadata
) -> None:
    """Whatever the client says of it, nothing of the transaction is visible and the owner goes on."""
    owner = open_owner()
    commit(owner, out, b"first", source, 1, metadata)
    with pytest.raises(EosError) as raised, owner.transaction() as txn:
        txn.produce(out, b"expired")
        wait_for_the_coordinators_abort(bootstrap, out, past=3)
        for _ in range(200):
            txn.produce(out, b"behind it")
            time.sleep(0.01)
    assert not isinstance(raised.value, FencedError)
    commit(owner, out, b"redone", source, 2, metadata)
    assert visible(bootstrap, out) == [b"first", b"redone"]
    assert offset_of(bootstrap, metadata, source) == 2


def test_expired_transaction_of_output_alone_cannot_be_told_from_a_fence(
    bootstrap: str, open_owner: Open, out: str
) -> None:
    """Without offsets only the epoch is left, and the coordinator's abort raises it too: the producer gives up."""
    owner = open_owner()
    with pytest.raises(TransactionExpiredError), owner.transaction() as txn:
        txn.produce(out, b"expired")
        wait_for_the_coordinators_abort(bootstrap, out, past=0)
    with pytest.raises(ReopenError, match="carried no offsets"):
        owner.transaction()
    fresh = open_owner()
    with fresh.transaction() as txn:
        txn.produce(out, b"of a new producer")
    assert visible(bootstrap, out) == [b"of a new producer"]
