"""A copy of the owner's own InitProducerId arrives late, in or between its transactions.

librdkafka sends the request again after a disconnect or a timeout inside init_transactions, and the coordinator cannot
tell a copy from a new request: it aborts the open transaction and raises the epoch. To the owner that looks like a fence by
another owner. Only the committed offsets tell the two apart.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from eos import FencedError, Job, OutputRecord, ReopenError, Settings
from eos.core.producer import ShardProducer
from eos.errors import UnprovenFenceError
from eos.events import Event, Fenced, ProducerOpened, TransactionEnded, ignore_event
from eos.kafka.producer import TransactionalClient
from eos.ops.check.transactions import TransactionsView
from eos.runner.at_work import AtWork
from eos.runner.loop import Loop
from eos.shards import OrdinalShard, Shard
from eos.testing.proxy.frames import ApiKey, Frame
from eos.testing.proxy.hold_proxy import Edge, Hold, HoldProxy
from tests.support.observer import assert_copied, produce_plain, unique
from tests.support.one_shard import OneShard
from tests.support.patience import PATIENCE_S
from tests.support.sessions import commit, fill, session_for, wait_delivered
from tests.support.settings import owning, settings_of, shard_of

if TYPE_CHECKING:
    from tests.conftest import NewTopic

pytestmark = pytest.mark.broker

ABORTED = 51  # CONCURRENT_TRANSACTIONS: the open transaction is being aborted
INPUT = 40  # records; `fill` takes ten at a time


def hold_init(proxy: HoldProxy, shard: Shard) -> Hold:
    """Hold the next init of the shard; the client's connection is reset, so it sends another one."""

    def is_ours(frame: Frame) -> bool:
        return frame.transactional_id == shard.transactional_id

    return proxy.hold(ApiKey.INIT_PRODUCER_ID, where=is_ours, reset_client=True)


def wait_ended(settings: Settings, shard: Shard, state: str) -> None:
    """Until the coordinator has written the markers: before that, it turns an init away."""
    name, deadline = shard.transactional_id, time.monotonic() + PATIENCE_S
    with TransactionsView(settings) as view:
        while view.describe([name])[name].state != state:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.parametrize("mode", ["partition", "group"])
@pytest.mark.parametrize("when", ["inside a transaction", "between transactions"])
def test_session_goes_on_after_a_late_copy_of_its_own_init(
    proxy: HoldProxy, bootstrap: str, topic: NewTopic, mode: str, when: str
) -> None:
    source, out, group = topic("in"), topic("out", 3), unique("lateinit")
    produce_plain(bootstrap, source, [b"%d" % n for n in range(INPUT)])
    heard: list[Event] = []
    shard = shard_of(mode, "lateinit", group, source)
    late = hold_init(proxy, shard)
    settings = settings_of(proxy.bootstrap_servers, input__start="earliest", **owning(mode, source))
    with session_for(settings, shard, [source], listener=heard.append) as session:
        fill(session, out, partitions=3)
        if when == "between transactions":
            commit(session)
            wait_ended(settings, shard, "CompleteCommit")
            assert late.deliver(PATIENCE_S) == 0
        else:
            assert late.deliver(PATIENCE_S) == ABORTED
        with pytest.raises(UnprovenFenceError) as fence:
            if when == "between transactions":
                fill(session, out, partitions=3)
            commit(session)
        session.owner.recover(fence.value)
        for _ in range(3 if when == "between transactions" else 4):
            fill(session, out, partitions=3)
            commit(session)
    assert len([event for event in heard if isinstance(event, ProducerOpened)]) >= 2
    assert not [event for event in heard if isinstance(event, Fenced)]
    assert_copied(bootstrap, group, source, out, INPUT)


def test_job_goes_on_after_a_late_copy_of_its_own_init(
    proxy: HoldProxy, bootstrap: str, topic: NewTopic
) -> None:
    source, out, group = topic("in"), topic("out"), unique("lateinit")
    produce_plain(bootstrap, source, [b"%d" % n for n in range(INPUT)])
    shard = shard_of("group", "lateinit", group, source)
    late = hold_init(proxy, shard)
    released = threading.Event()

    def release(frame: Frame, edge: Edge) -> None:
        """At the end of the first transaction, which the copy so overtakes."""
        ends = frame.end_txn()
        if edge is Edge.REQUEST and ends is not None and ends.transactional_id == shard.transactional_id:
            late.release()
            released.set()

    proxy.on_frame(release)
    # The end of the first transaction waits for the copy's answer.
    end = proxy.hold(ApiKey.END_TXN, where=lambda frame: frame.transactional_id == shard.transactional_id)

    def let_the_end_go() -> None:
        released.wait(PATIENCE_S)
        late.wait_answer(PATIENCE_S)
        end.release()

    job = Job(
        name="lateinit", inputs=[source], outputs=[out], transform=lambda r: [OutputRecord(out, r.value)]
    )
    settings = settings_of(proxy.bootstrap_servers, input__start="earliest", **owning("group", source))
    heard: list[Event] = []
    loop = Loop(
        job.bound(),
        session_for(settings, shard, [source], listener=heard.append, until_caught_up=True),
        settings,
        AtWork(ignore_event),
        listener=ignore_event,
    )
    thread = threading.Thread(target=let_the_end_go)
    thread.start()
    loop.run()
    thread.join(PATIENCE_S)
    assert [event for event in heard if isinstance(event, TransactionEnded) and event.outcome == "unresolved"]
    assert_copied(bootstrap, group, source, out, INPUT)


def test_transaction_that_the_coordinator_ended_before_its_time_is_redone(
    bootstrap: str, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when its clock runs ahead, or jumps, or ours stood still: by our clock there was time."""
    source, out, group = topic("in"), topic("out", 3), unique("lateinit")
    produce_plain(bootstrap, source, [b"%d" % n for n in range(INPUT)])
    settings = settings_of(
        bootstrap, input__start="earliest", ownership__ordinal=0, transaction__timeout_ms=6_000
    )
    monkeypatch.setattr(TransactionalClient, "expired", False)
    with session_for(settings, OrdinalShard("ahead", group, 0), [source]) as session:
        fill(session, out, partitions=3)
        commit(session)
        fill(session, out, partitions=3)
        wait_ended(settings, session.owner.shard, "CompleteAbort")
        with pytest.raises(UnprovenFenceError) as fence:
            commit(session)
        session.owner.recover(fence.value)
        for _ in range(3):
            fill(session, out, partitions=3)
            commit(session)
    assert_copied(bootstrap, group, source, out, INPUT)


# --- producers by themselves --------------------------------------------------------------------------------


@pytest.fixture
def shard() -> Shard:
    return OrdinalShard(unique("lateinit"), "g", 0)


@pytest.fixture
def world(bootstrap: str, topic: NewTopic, shard: Shard) -> Iterator[OneShard]:
    with OneShard(bootstrap, topic("in"), topic("out", 3), shard) as world:
        yield world


def test_producer_whose_init_was_sent_again_compares_instead_of_believing_the_fence(
    proxy: HoldProxy, world: OneShard, shard: Shard
) -> None:
    late = hold_init(proxy, shard)
    owner = world.open(proxy.bootstrap_servers)
    world.commit(owner, b"first", 1)
    with pytest.raises(UnprovenFenceError, match="copy of its own init"), owner.transaction() as txn:
        txn.produce(world.out, b"aborted")
        wait_delivered(owner._client)
        assert late.deliver(PATIENCE_S) == ABORTED
        txn.add_offsets(world.offsets(2), world.metadata)
    world.commit(owner, b"second", 2)
    assert sorted(map(bytes, filter(None, world.visible))) == [b"first", b"second"]
    assert world.offset == 2


def test_producer_whose_init_was_sent_again_is_still_fenced_by_an_owner_that_has_committed(
    proxy: HoldProxy, world: OneShard, shard: Shard
) -> None:
    late = hold_init(proxy, shard)
    owner = world.open(proxy.bootstrap_servers)
    world.commit(owner, b"first", 1)
    rival = world.open()
    world.commit(rival, b"second", 2)
    with pytest.raises(UnprovenFenceError):
        world.commit(owner, b"of the zombie", 2)
    with pytest.raises(FencedError, match="offset 2"):
        world.commit(owner, b"of the zombie", 2)
    world.commit(rival, b"third", 3)  # not fenced by it
    late.release()
    assert sorted(map(bytes, filter(None, world.visible))) == [b"first", b"second", b"third"]
    assert world.offset == 3


@pytest.mark.parametrize("edge", [Edge.REQUEST, Edge.REPLY], ids=["request lost", "answer lost"])
def test_producer_of_output_alone_says_that_nothing_shows_whose_epoch_it_is(
    proxy: HoldProxy, bootstrap: str, world: OneShard, shard: Shard, edge: Edge
) -> None:
    """Two inits of one reopen raise the epoch by two, as those of two owners do."""
    owner = world.open(proxy.bootstrap_servers)
    world.commit(owner, b"first")
    wait_ended(settings_of(bootstrap), shard, "CompleteCommit")  # else the lost answer may be a refusal
    owner._suspect("a test")
    proxy.cut(
        ApiKey.INIT_PRODUCER_ID, edge, where=lambda frame: frame.transactional_id == shard.transactional_id
    )
    if edge is Edge.REQUEST:  # the coordinator has seen one only
        world.commit(owner, b"second")
        assert sorted(map(bytes, filter(None, world.visible))) == [b"first", b"second"]
        return
    with pytest.raises(ReopenError, match=r"copy of its own init.*nothing shows which") as raised:
        world.commit(owner, b"second")
    assert type(raised.value) is ReopenError
    fresh = world.open()
    world.commit(fresh, b"of a new producer")
    assert sorted(map(bytes, filter(None, world.visible))) == [b"first", b"of a new producer"]


def test_two_owners_that_live_do_not_fence_each_other_without_end(
    bootstrap: str, topic: NewTopic, shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither commits an offset, so no comparison finds the other; the fourth fence in ten minutes is believed."""
    monkeypatch.setattr("eos.core.own_offsets._RIVAL_SHOWS_S", 0.0)
    out = topic("out")
    settings = settings_of(bootstrap)
    heard: list[Event] = []
    owners = [
        ShardProducer(settings, shard, listener=heard.append, compare_when_fenced=True) for _ in range(2)
    ]
    for owner in owners:
        owner.ledger_of("g")
        owner.open()
    fences = 0
    with pytest.raises(FencedError):
        for owner in owners * 20:
            try:
                with owner.transaction() as txn:
                    txn.produce(out, b"output alone")
            except UnprovenFenceError:
                fences += 1
    assert fences == 6
    assert len([event for event in heard if isinstance(event, ProducerOpened)]) <= 8
    for owner in owners:
        owner.close()
