"""An unanswered commit, and what a reopen proves: outcomes are read back, never guessed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, Message

from eos import (
    AbortableError,
    AbortTransaction,
    CommitOutcomeUnknownError,
    FencedError,
    OutputBatch,
    RecordRefusedError,
    ReopenError,
    TransactionalProducer,
    UnavailableError,
    UsageError,
)
from eos.base.calls import Call
from eos.base.deadline import Deadline
from eos.core.ledger import Outcome
from eos.core.producer import ProducerState, ShardProducer
from eos.core.transaction import TransactionState
from eos.events import ProducerOpened, ProducerSuspect
from eos.kafka.late_copies import ResendWatch
from eos.kafka.producer import TransactionalClient
from eos.ops.check.transactions import TransactionsView
from eos.shards import OrdinalShard, Shard
from eos.testing.proxy.frames import ApiKey, Frame
from eos.testing.proxy.hold_proxy import Edge, HoldProxy, ends_with
from tests.support.observer import create_topics, read_committed, unique
from tests.support.one_shard import OneShard
from tests.support.patience import PATIENCE_S
from tests.support.sessions import wait_delivered
from tests.support.settings import settings_of

if TYPE_CHECKING:
    from tests.conftest import NewTopic

pytestmark = pytest.mark.broker


@pytest.fixture
def shard() -> Shard:
    return OrdinalShard(unique("reopen"), "group", 0)


@pytest.fixture
def world(bootstrap: str, topic: NewTopic, shard: Shard) -> Iterator[OneShard]:
    with OneShard(bootstrap, topic("in"), topic("out"), shard) as world:
        yield world


def lose_commits(proxy: HoldProxy, edge: Edge) -> None:
    """Each commit, or its answer, is lost."""
    if edge is Edge.REPLY:
        proxy.drop_reply(ApiKey.END_TXN, where=ends_with(committed=True), times=100)
    else:
        proxy.cut(ApiKey.END_TXN, edge, where=ends_with(committed=True), times=100)


@pytest.mark.parametrize("edge", [Edge.REPLY, Edge.REQUEST], ids=["answer lost", "request lost"])
def test_commit_without_an_answer_is_unknown_and_the_reopen_says_which(
    proxy: HoldProxy, world: OneShard, edge: Edge
) -> None:
    producer = world.open(proxy.bootstrap_servers, commit_deadline_ms=700)
    world.commit(producer, b"first", 1)
    lose_commits(proxy, edge)
    with pytest.raises(CommitOutcomeUnknownError):
        world.commit(producer, b"second", 2)
    assert producer.state is ProducerState.OVER

    # Until the old instance is gone, it goes on to send the commit again.
    happened = edge is Edge.REPLY
    assert producer.reopen() is (Outcome.COMMITTED if happened else Outcome.ABORTED)
    proxy.clear_rules()
    assert world.offset == (2 if happened else 1)
    assert world.visible == ([b"first", b"second"] if happened else [b"first"])

    world.commit(producer, b"third", 3)
    assert world.visible[-1] == b"third"
    assert world.offset == 3


def test_commit_without_an_answer_that_has_happened_is_not_passed_over(
    proxy: HoldProxy, world: OneShard
) -> None:
    """Who simply begins anew would produce the same again."""
    producer = world.open(proxy.bootstrap_servers, commit_deadline_ms=700)
    lose_commits(proxy, Edge.REPLY)
    with pytest.raises(CommitOutcomeUnknownError):
        world.commit(producer, b"first", 1)
    proxy.clear_rules()
    for _ in range(2):
        with pytest.raises(UsageError, match=r"it has happened.*Fix: call reopen"):
            world.commit(producer, b"first", 1)
    assert producer.reopen() is Outcome.COMMITTED
    assert producer.reopen() is Outcome.ABORTED  # of what came after it: nothing
    assert world.visible == [b"first"]
    world.commit(producer, b"second", 2)
    assert world.visible == [b"first", b"second"]
    assert world.offset == 2


@pytest.mark.parametrize("edge", [Edge.REPLY, Edge.REQUEST], ids=["answer lost", "request lost"])
def test_commit_of_output_alone_without_an_answer_stays_unknown(
    proxy: HoldProxy, world: OneShard, edge: Edge
) -> None:
    """Offsets of earlier transactions prove that the shard is ours, but not what became of this one."""
    producer = world.open(proxy.bootstrap_servers, commit_deadline_ms=700)
    world.commit(producer, b"first", 1)
    lose_commits(proxy, edge)
    with pytest.raises(CommitOutcomeUnknownError), producer.transaction() as txn:
        txn.produce(world.out, b"output alone")
    assert producer.reopen() is Outcome.UNKNOWN
    proxy.clear_rules()
    world.commit(producer, b"next", 2)
    seen = world.visible
    assert seen == [b"first", *([b"output alone"] if edge is Edge.REPLY else []), b"next"]


def test_producer_of_output_alone_gives_up_after_an_unanswered_commit(
    proxy: HoldProxy, world: OneShard
) -> None:
    producer = world.open(proxy.bootstrap_servers, commit_deadline_ms=700)
    proxy.drop_reply(ApiKey.END_TXN, times=100)
    with pytest.raises(CommitOutcomeUnknownError), producer.transaction() as txn:
        txn.produce(world.out, b"maybe")
    proxy.clear_rules()
    with pytest.raises(ReopenError, match="carried no offsets"):
        producer.transaction()
    with pytest.raises(UsageError, match="closed"):
        producer.transaction()


def test_record_that_was_not_delivered_leaves_the_next_transaction_to_a_fresh_instance(
    bootstrap: str, world: OneShard
) -> None:
    """The client misses the sequence number of a refused record: it would fail the next transaction."""
    out = unique("small")
    create_topics(bootstrap, {out: 1}, config={"max.message.bytes": "5000"})
    producer = world.open()
    with pytest.raises(RecordRefusedError), producer.transaction() as txn:
        txn.produce(out, b"x" * 6000)
    assert txn.state is TransactionState.ABORTED
    assert world.heard(ProducerSuspect)
    for value in (b"next", b"and next"):
        with producer.transaction() as txn:
            txn.produce(out, value)
    assert [record.value for record in read_committed(bootstrap, out)] == [b"next", b"and next"]


def test_aborts_with_records_in_flight_never_harm_the_next_transaction(world: OneShard) -> None:
    producer = world.open()
    for turn in range(15):
        with pytest.raises(ZeroDivisionError), producer.transaction() as txn:
            for _ in range(turn * 20):
                txn.produce(world.out, b"never" * 50)
            raise ZeroDivisionError
        world.commit(producer, b"%d" % turn, turn + 1)
    assert world.visible == [b"%d" % turn for turn in range(15)]
    assert world.offset == 15


def test_reopen_that_cannot_compare_is_made_again_before_the_next_begin(
    world: OneShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The init alone proves nothing: without the comparison behind it, nothing may begin."""
    producer = world.open()
    world.commit(producer, b"first", 1)
    producer._suspect("a test")
    stored, calls = producer._offsets.stored, 0

    def fails_after_the_init(*arguments: Any, stable: bool) -> Any:
        nonlocal calls
        calls += stable
        if stable and calls == 1:
            raise UnavailableError("no answer")
        return stored(*arguments, stable=stable)

    monkeypatch.setattr(producer._offsets, "stored", fails_after_the_init)
    with pytest.raises(UnavailableError):
        producer.transaction()
    assert producer.state is ProducerState.OVER
    world.commit(producer, b"second", 2)
    assert calls == 2
    assert len(world.heard(ProducerOpened)) == 3
    assert world.visible == [b"first", b"second"]


def test_epoch_that_a_late_copy_of_its_own_request_has_raised_is_not_said_to_be_another_owners(
    proxy: HoldProxy, topic: NewTopic
) -> None:
    """The copy opens a transaction in which nothing is, and the init that ends it raises the epoch once more."""
    out = topic("out")
    with TransactionalProducer(settings_of(proxy.bootstrap_servers), app=unique("alone")) as producer:
        with producer.transaction() as txn:
            txn.produce(out, b"before")
        late = proxy.hold(ApiKey.ADD_PARTITIONS_TO_TXN, reset_client=True)
        with producer.transaction() as txn:
            txn.produce(out, b"sent again")
        with TransactionsView(settings_of(proxy.bootstrap_servers)) as view:
            name = producer.transactional_id
            ended = Deadline(PATIENCE_S).wait_for(lambda: not view.describe([name])[name].is_open)
            assert ended
            late.release()
            assert Deadline(PATIENCE_S).wait_for(lambda: view.describe([name])[name].is_open)
        with pytest.raises(
            ReopenError, match="or it comes from a copy of a request of its own that arrived late"
        ):
            producer.transaction()
        with pytest.raises(UsageError, match="closed"):
            producer.transaction()
    assert [record.value for record in read_committed(proxy.bootstrap_servers, out)] == [
        b"before",
        b"sent again",
    ]


def test_fence_every_transaction_gives_each_one_an_epoch_of_its_own(world: OneShard) -> None:
    producer = world.open(fence_every="transaction")
    for n in range(3):
        world.commit(producer, b"%d" % n, n + 1)
    assert len(world.heard(ProducerSuspect)) == 2
    assert len(world.heard(ProducerOpened)) == 3
    assert world.visible == [b"0", b"1", b"2"]
    assert world.offset == 3


def test_asked_reopen_of_an_undisturbed_producer_changes_nothing(world: OneShard) -> None:
    producer = world.open()
    world.commit(producer, b"first", 1)
    assert producer.reopen() is Outcome.ABORTED
    world.commit(producer, b"second", 2)
    assert world.visible == [b"first", b"second"]


def test_producer_that_was_never_open_cannot_be_reopened(bootstrap: str, shard: Shard) -> None:
    with pytest.raises(UsageError, match="not open"):
        ShardProducer(settings_of(bootstrap), shard).reopen()


def test_fenced_producer_cannot_be_reopened_over_the_new_owner(world: OneShard) -> None:
    """The new owner may have committed nothing yet, so a comparison would find nothing."""
    old = world.open()
    world.commit(old, b"old", 1)
    old.reopen()  # a commit that took long, as on a busy machine, would be settled behind the new owner's init
    new = world.open()
    with pytest.raises(FencedError):
        world.commit(old, b"zombie", 2)
    for use in (old.reopen, old.transaction):
        with pytest.raises(FencedError):
            use()
    world.commit(new, b"new", 2)
    assert world.visible == [b"old", b"new"]
    assert world.offset == 2


def test_offsets_call_that_never_returns_is_given_up_with_its_instance(
    world: OneShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a timeout of its own, which librdkafka does not always keep (issue 5511)."""
    monkeypatch.setattr("eos.core.uninterrupted._OVERDUE_S", 0.2)
    producer = world.open(timeout_ms=6_000)
    world.commit(producer, b"first", 1)
    hung, client = threading.Event(), producer._client
    monkeypatch.setattr(client, "send_offsets", lambda *_: hung.wait(PATIENCE_S))
    began = time.monotonic()
    with pytest.raises(ReopenError, match="send offsets"):
        world.commit(producer, b"never", 2)
    assert time.monotonic() - began < PATIENCE_S / 2
    hung.set()
    world.commit(producer, b"second", 2)
    assert world.visible == [b"first", b"second"]
    assert world.offset == 2


def test_loss_of_all_connections_between_transactions_is_survived(proxy: HoldProxy, world: OneShard) -> None:
    producer = world.open(proxy.bootstrap_servers)
    for n in range(4):
        world.commit(producer, b"%d" % n, n + 1)
        for task in list(proxy._connections):
            proxy._loop.call_soon_threadsafe(task.cancel)
        time.sleep(0.1)
    assert world.visible == [b"0", b"1", b"2", b"3"]
    assert world.offset == 4


@pytest.mark.parametrize("pause_s", [0.0, 1.0])
def test_zombie_whose_abort_got_no_answer_does_not_take_the_id_back_from_its_owner(
    bootstrap: str, proxy: HoldProxy, topic: NewTopic, pause_s: float
) -> None:
    """Without offsets only the epoch could show the owner, and the abort may have raised it or not."""
    out, app = topic("out"), unique("reopen")
    settings = settings_of(proxy.bootstrap_servers, transaction__timeout_ms=10_000)
    with TransactionalProducer(settings, app=app) as zombie:
        with zombie.transaction() as txn:
            txn.produce(out, b"never")
            wait_delivered(zombie._producer._client)
            proxy.drop_reply(ApiKey.END_TXN, times=100)
            raise AbortTransaction
        assert txn.state is TransactionState.UNRESOLVED
        proxy.clear_rules()
        with TransactionalProducer(settings_of(bootstrap), app=app) as owner:
            with owner.transaction() as theirs:
                theirs.produce(out, b"first")
            time.sleep(pause_s)  # lines of the zombie's log gather meanwhile
            with pytest.raises(ReopenError, match="nothing shows whether another owner came"):
                zombie.transaction()
            with owner.transaction() as theirs:
                theirs.produce(out, b"second")
    assert [record.value for record in read_committed(bootstrap, out)] == [b"first", b"second"]


def test_commit_whose_result_is_lost_by_a_line_of_the_log_that_is_no_text_is_unknown(
    bootstrap: str, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client could not call the logger, and raised in place of the commit's success: the same commit was made again and refused."""
    out, log, awaited = topic("out"), ResendWatch.log, list[str]()

    def lose(watch: ResendWatch, level: int, template: str, *args: object) -> None:
        if awaited and args[0] == awaited[0]:
            del awaited[0]
            if not awaited:
                b"\xff".decode()
        log(watch, level, template, *args)

    monkeypatch.setattr(ResendWatch, "log", lose)
    with TransactionalProducer(settings_of(bootstrap), app=unique("reopen")) as producer:
        with producer.transaction() as txn:
            txn.produce(out, b"first")
        with pytest.raises(CommitOutcomeUnknownError), producer.transaction() as txn:
            txn.produce(out, b"second")
            wait_delivered(producer._producer._client)
            awaited += ["TXNCOMMIT", "WAKEUP"]  # of the flush inside the commit, which goes on
        assert not awaited
    assert [record.value for record in read_committed(bootstrap, out)] == [b"first", b"second"]


def test_time_that_an_abort_takes_to_throw_records_away_is_no_sign_of_a_resend(
    bootstrap: str, topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100,000 of them took longer than the half second that makes a call suspect, and cost a rebuild each time."""
    out, purge_s, told = topic("out"), 4.0, list[tuple[Call, float]]()
    reported, took = TransactionalClient._on_failed_delivery, ResendWatch.took

    def slowly(self: TransactionalClient, error: KafkaError | None, message: Message) -> None:
        time.sleep(purge_s / 1_000)
        reported(self, error, message)

    def heard(self: ResendWatch, call: Call, seconds: float) -> None:
        told.append((call, seconds))
        took(self, call, seconds)

    monkeypatch.setattr(TransactionalClient, "_on_failed_delivery", slowly)
    monkeypatch.setattr(ResendWatch, "took", heard)
    settings = settings_of(bootstrap, kafka__producer={"linger.ms": 30_000})
    with TransactionalProducer(settings, app=unique("reopen")) as producer:
        with producer.transaction() as txn:
            txn.produce_batch(out, OutputBatch(out, [b"never"] * 1_000))
            raise AbortTransaction
        assert txn.state is TransactionState.ABORTED
        assert 0 < sum(seconds for call, seconds in told if call is Call.ABORT) < purge_s / 2
        with producer.transaction() as again:
            again.produce(out, b"next")
    assert [record.value for record in read_committed(bootstrap, out)] == [b"next"]


@pytest.mark.parametrize("late", [False, True], ids=["in time", "behind the transaction's timeout"])
def test_commit_that_was_carried_out_and_then_refused_is_not_called_refused(
    proxy: HoldProxy, bootstrap: str, topic: NewTopic, monkeypatch: pytest.MonkeyPatch, *, late: bool
) -> None:
    """librdkafka sent it again, to a coordinator that has a newer owner by then: "another owner has the shard" alone was believed."""
    app, out = unique("reopen"), topic("out")
    monkeypatch.setattr(TransactionalClient, "expired", late)
    owner = TransactionalProducer(settings_of(bootstrap), app=app)

    def replaced(_: Frame) -> None:
        opening = threading.Thread(target=owner.open)
        opening.start()
        opening.join(PATIENCE_S)

    with closing(owner), TransactionalProducer(settings_of(proxy.bootstrap_servers), app=app) as producer:
        proxy.cut(ApiKey.END_TXN, Edge.REPLY, then=replaced)
        with (
            pytest.raises(CommitOutcomeUnknownError, match=r"_FENCED.* and have happened before this answer"),
            producer.transaction() as txn,
        ):
            txn.produce(out, b"there")
        with pytest.raises(ReopenError if late else FencedError), producer.transaction() as txn:
            txn.produce(out, b"never")
    assert [record.value for record in read_committed(bootstrap, out)] == [b"there"]


def test_commit_that_was_sent_once_is_refused_also_where_a_connection_broke_before_it(
    proxy: HoldProxy, bootstrap: str, topic: NewTopic
) -> None:
    """It was said to be sent more than once, and its outcome to be unknown: 8 of 8."""
    app, out = unique("reopen"), topic("out")
    with TransactionalProducer(settings_of(proxy.bootstrap_servers), app=app) as producer:
        proxy.cut(ApiKey.ADD_PARTITIONS_TO_TXN, Edge.REPLY)
        with pytest.raises(FencedError), producer.transaction() as txn:
            txn.produce(out, b"never")
            wait_delivered(producer._producer._client)
            with TransactionalProducer(settings_of(bootstrap), app=app):
                pass
    assert read_committed(bootstrap, out) == []


@pytest.mark.parametrize("broken", [False, True], ids=["connected", "behind a broken connection"])
def test_transaction_that_has_failed_before_its_commit_is_not_called_unknown(
    proxy: HoldProxy, bootstrap: str, topic: NewTopic, *, broken: bool
) -> None:
    """The broker knew of no transaction, and refused the abort too: 16 of 16 said that the commit may have happened."""
    out = topic("out")
    with TransactionalProducer(settings_of(proxy.bootstrap_servers), app=unique("reopen")) as producer:
        if broken:
            proxy.cut(ApiKey.ADD_PARTITIONS_TO_TXN, Edge.REQUEST)
        proxy.refuse(ApiKey.ADD_PARTITIONS_TO_TXN, KafkaError.UNKNOWN)
        with pytest.raises(AbortableError), producer.transaction() as txn:
            txn.produce(out, b"never")
    assert read_committed(bootstrap, out) == []
