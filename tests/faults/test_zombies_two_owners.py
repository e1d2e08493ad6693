"""Two live producers of one shard: the newer one has it, the older one is told so at its next use.

A suspect zombie would reopen its producer, and an init fences whoever has the shard. So the reopen
compares, before the init and after it; what it can compare with is said in each test.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from eos import FencedError, Partition
from eos.core.producer import ProducerState, ShardProducer
from eos.events import Fenced, ProducerOpened
from eos.shards import PartitionShard
from tests.support.observer import unique
from tests.support.one_shard import OneShard
from tests.support.patience import PATIENCE_S
from tests.support.sessions import wait_delivered

if TYPE_CHECKING:
    from tests.conftest import NewTopic

pytestmark = pytest.mark.broker

PROMPTLY_S = 30.0  # half of what a transaction may take


@pytest.fixture
def world(bootstrap: str, topic: NewTopic) -> Iterator[OneShard]:
    source = topic("in")
    shard = PartitionShard(unique("owners"), "g", Partition(source, 0))
    with OneShard(bootstrap, source, topic("out"), shard) as world:
        yield world


def assert_fenced_for_good(owner: ShardProducer) -> None:
    began = time.monotonic()
    for use in (owner.transaction, owner.reopen, owner.transaction):
        with pytest.raises(FencedError):
            use()
    owner.close()
    with pytest.raises(FencedError):
        owner.transaction()
    assert owner.state is ProducerState.FENCED
    assert time.monotonic() - began < PROMPTLY_S


def test_second_open_fences_the_first_at_its_commit_and_for_good(world: OneShard) -> None:
    first = world.open()
    world.commit(first, b"first", 1)
    txn = first.transaction()
    txn._begun().begin()
    txn.produce(world.out, b"of the zombie")
    second = world.open()
    began = time.monotonic()
    with pytest.raises(FencedError):
        txn._begun().commit()
    assert time.monotonic() - began < PROMPTLY_S
    assert_fenced_for_good(first)
    world.commit(second, b"second", 2)
    assert world.visible == [b"first", b"second"]
    assert world.offset == 2
    assert len(world.heard(Fenced)) == 1


def test_owner_that_is_fenced_while_it_produces_is_told_by_produce(world: OneShard) -> None:
    first = world.open()
    second = world.open()
    deadline = time.monotonic() + PATIENCE_S
    with pytest.raises(FencedError), first.transaction() as txn:
        while time.monotonic() < deadline:
            txn.produce(world.out, b"of the zombie")
            time.sleep(0.001)
    assert time.monotonic() < deadline
    assert_fenced_for_good(first)
    world.commit(second, b"second", 1)
    assert world.visible == [b"second"]


def test_owner_that_is_fenced_while_it_sends_offsets_is_told(world: OneShard) -> None:
    first = world.open()
    world.commit(first, b"first", 1)
    second = world.open()
    with pytest.raises(FencedError), first.transaction() as txn:
        txn.add_offsets(world.offsets(2), world.metadata)
    assert_fenced_for_good(first)
    assert world.offset == 1
    world.commit(second, b"second", 2)
    assert world.offset == 2


def test_error_of_the_block_goes_on_untouched_although_the_owner_was_fenced(world: OneShard) -> None:
    first = world.open()
    with pytest.raises(ZeroDivisionError), first.transaction() as txn:
        txn.produce(world.out, b"of the zombie")
        wait_delivered(first._client)
        world.open()
        raise ZeroDivisionError
    assert_fenced_for_good(first)
    assert world.visible == []


def test_fenced_while_idle_is_told_at_the_next_transaction(world: OneShard) -> None:
    first = world.open()
    world.commit(first, b"first", 1)
    second = world.open()
    world.commit(second, b"second", 2)
    with pytest.raises(FencedError):
        world.commit(first, b"of the zombie", 3)
    assert_fenced_for_good(first)
    assert world.visible == [b"first", b"second"]
    assert world.offset == 2


def test_suspect_zombie_does_not_take_the_shard_back(world: OneShard) -> None:
    """The comparison before the init spares the rightful owner."""
    first = world.open()
    world.commit(first, b"first", 1)
    second = world.open()
    world.commit(second, b"second", 2)
    first._suspect("a test")
    with pytest.raises(FencedError, match="offset 2"):
        world.commit(first, b"of the zombie", 2)
    assert_fenced_for_good(first)
    assert len(world.heard(ProducerOpened)) == 2
    world.commit(second, b"third", 3)
    assert world.visible == [b"first", b"second", b"third"]
    assert world.offset == 3


def test_suspect_zombie_is_found_out_by_the_token_where_the_offset_is_the_same(world: OneShard) -> None:
    """A new owner that commits the same offset again, as for an idle partition, leaves its own token."""
    first = world.open()
    world.commit(first, b"first", 1)
    second = world.open()
    world.commit(second, b"second", 1)
    first._suspect("a test")
    with pytest.raises(FencedError):
        world.commit(first, b"of the zombie", 2)
    world.commit(second, b"third", 2)
    assert world.visible == [b"first", b"second", b"third"]


def test_rival_between_the_comparison_and_the_init_is_found_by_the_comparison_after_it(
    world: OneShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the init has fenced the rightful owner: both stop, but nothing is lost or doubled."""
    first = world.open()
    world.commit(first, b"first", 1)
    first._suspect("a test")
    init = first._init
    rivals: list[ShardProducer] = []

    def init_behind_a_rival(reason: str) -> None:
        rivals.append(world.open())
        world.commit(rivals[0], b"second", 2)
        init(reason)

    monkeypatch.setattr(first, "_init", init_behind_a_rival)
    with pytest.raises(FencedError, match="offset 2"):
        world.commit(first, b"of the zombie", 2)
    assert_fenced_for_good(first)
    with pytest.raises(FencedError):
        world.commit(rivals[0], b"third", 3)
    assert world.visible == [b"first", b"second"]
    assert world.offset == 2


def test_suspect_owner_keeps_the_shard_from_a_rival_that_has_committed_nothing(world: OneShard) -> None:
    """The bound of the comparison: without a commit there is no trace. One of the two goes on, exactly."""
    first = world.open()
    world.commit(first, b"first", 1)
    rival = world.open()
    first._suspect("a test")
    world.commit(first, b"second", 2)
    with pytest.raises(FencedError):
        world.commit(rival, b"of the rival", 2)
    assert_fenced_for_good(rival)
    world.commit(first, b"third", 3)
    assert world.visible == [b"first", b"second", b"third"]
    assert world.offset == 3


def test_suspect_producer_of_output_alone_reopens_where_its_epoch_shows_no_rival(world: OneShard) -> None:
    owner = world.open()
    for value in (b"1", b"2", b"3"):
        world.commit(owner, value)
        owner._suspect("a test")
    world.commit(owner, b"4")
    assert world.visible == [b"1", b"2", b"3", b"4"]


def test_suspect_producer_of_output_alone_finds_a_rival_by_the_epoch(world: OneShard) -> None:
    """Its init comes before it can know, so the rival is fenced too: both stop, nothing of the zombie is visible."""
    first = world.open()
    world.commit(first, b"first")
    second = world.open()
    world.commit(second, b"second")
    first._suspect("a test")
    with pytest.raises(FencedError, match="epoch"):
        world.commit(first, b"of the zombie")
    assert_fenced_for_good(first)
    with pytest.raises(FencedError):
        world.commit(second, b"third")
    assert world.visible == [b"first", b"second"]
