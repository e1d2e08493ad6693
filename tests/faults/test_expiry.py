"""The owner's transaction outlives transaction.timeout.ms, told apart from a fence.

librdkafka reports both as _FENCED (KIP-588 is not supported). Before the timeout that proves a rival;
after it, only a comparison of the committed offsets behind a reopen does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from eos import EosError, FencedError, ReopenError
from eos.core.producer import ProducerState
from eos.core.transaction import TransactionState
from eos.errors import TransactionExpiredError
from eos.events import TransactionEnded
from eos.shards import OrdinalShard
from tests.support.observer import lso, unique, watermarks
from tests.support.one_shard import OneShard
from tests.support.patience import PATIENCE_S

if TYPE_CHECKING:
    from tests.conftest import NewTopic

pytestmark = pytest.mark.broker

TIMEOUT_MS = 6_000  # what is committed before has to fit in


@pytest.fixture
def world(bootstrap: str, topic: NewTopic) -> Iterator[OneShard]:
    shard = OrdinalShard(unique("expiry"), "g", 0)
    with OneShard(
        bootstrap, topic("in"), topic("out"), shard, timeout_ms=TIMEOUT_MS, commit_deadline_ms=60_000
    ) as world:
        yield world


def wait_for_the_coordinators_abort(bootstrap: str, out: str, past: int) -> None:
    """Until the log has grown beyond ``past`` and nothing of it is open any more."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        high = watermarks(bootstrap, out)[0][1]
        if high > past and lso(bootstrap, out)[0] == high:
            return
        time.sleep(0.1)
    pytest.fail("the coordinator did not abort the transaction")


def test_expired_transaction_of_the_only_owner_is_redone_after_a_reopen(
    bootstrap: str, world: OneShard
) -> None:
    owner = world.open()
    world.commit(owner, b"first", 1)
    with pytest.raises(TransactionExpiredError), owner.transaction() as txn:
        txn.produce(world.out, b"expired")
        txn.add_offsets(world.offsets(2), world.metadata)
        wait_for_the_coordinators_abort(bootstrap, world.out, past=3)
    assert txn.state is TransactionState.UNRESOLVED
    assert owner.state is ProducerState.OVER
    assert [event.outcome for event in world.heard(TransactionEnded)] == ["expired"]
    assert world.offset == 1
    world.commit(owner, b"redone", 2)
    assert world.visible == [b"first", b"redone"]
    assert world.offset == 2


def test_expired_transaction_with_a_rival_that_committed_ends_fenced(world: OneShard) -> None:
    owner = world.open()
    world.commit(owner, b"first", 1)
    txn = owner.transaction()
    txn._begun().begin()
    txn.produce(world.out, b"expired")
    rival = world.open(timeout_ms=60_000)
    world.commit(rival, b"second", 2)
    time.sleep(TIMEOUT_MS / 1000)
    txn.add_offsets(world.offsets(2), world.metadata)
    with pytest.raises(TransactionExpiredError):
        txn._begun().commit()
    for _ in range(2):
        with pytest.raises(FencedError):
            owner.transaction()
    world.commit(rival, b"third", 3)  # not fenced by it
    assert world.visible == [b"first", b"second", b"third"]
    assert world.offset == 3


def test_fence_before_the_timeout_is_a_fence_at_once(world: OneShard) -> None:
    owner = world.open(timeout_ms=60_000)
    with pytest.raises(FencedError), owner.transaction() as txn:
        txn.produce(world.out, b"never")
        txn.add_offsets(world.offsets(2), world.metadata)
        world.open()
    assert owner.state is ProducerState.FENCED
    assert world.visible == []


def test_error_of_the_block_goes_on_although_its_transaction_had_expired(
    bootstrap: str, world: OneShard
) -> None:
    owner = world.open()
    world.commit(owner, b"first", 1)
    with pytest.raises(ZeroDivisionError), owner.transaction() as txn:
        txn.produce(world.out, b"expired")
        wait_for_the_coordinators_abort(bootstrap, world.out, past=3)
        raise ZeroDivisionError
    world.commit(owner, b"next", 2)
    assert world.visible == [b"first", b"next"]


@pytest.mark.slow
def test_record_behind_the_expiry_is_refused_and_the_rest_redone(bootstrap: str, world: OneShard) -> None:
    """Whatever the client says of it, nothing of the transaction is visible and the owner goes on."""
    owner = world.open()
    world.commit(owner, b"first", 1)
    with pytest.raises(EosError) as raised, owner.transaction() as txn:
        txn.produce(world.out, b"expired")
        wait_for_the_coordinators_abort(bootstrap, world.out, past=3)
        for _ in range(200):
            txn.produce(world.out, b"behind it")
            time.sleep(0.01)
    assert not isinstance(raised.value, FencedError)
    world.commit(owner, b"redone", 2)
    assert world.visible == [b"first", b"redone"]
    assert world.offset == 2


def test_expired_transaction_of_output_alone_cannot_be_told_from_a_fence(
    bootstrap: str, world: OneShard
) -> None:
    """Without offsets only the epoch is left, and the coordinator's abort raises it too: the producer gives up."""
    owner = world.open()
    with pytest.raises(TransactionExpiredError), owner.transaction() as txn:
        txn.produce(world.out, b"expired")
        wait_for_the_coordinators_abort(bootstrap, world.out, past=0)
    with pytest.raises(ReopenError, match="carried no offsets"):
        owner.transaction()
    fresh = world.open()
    with fresh.transaction() as txn:
        txn.produce(world.out, b"of a new producer")
    assert world.visible == [b"of a new producer"]
