"""A request that librdkafka sent twice arrives late, inside the next transaction of the same producer.

librdkafka speaks EndTxn v1: two transactions of one instance share an epoch, so the coordinator takes the
late copy for the next transaction's. A producer for which a resend cannot be excluded is therefore
rebuilt before the next begin, and the late copy, of an older epoch, is refused. Each scenario is run a
second time with that rule switched off: then it must do its harm, or the test would show nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer

from eos import AbortableError, AbortTransaction, OffsetVector, Partition, ReopenError, Transaction
from eos.core.ledger import Outcome
from eos.core.producer import ShardProducer
from eos.events import Event, ProducerOpened, ProducerSuspect
from eos.kafka.group_offsets import GroupMetadata
from eos.kafka.late_copies import ResendWatch
from eos.shards import PartitionShard
from eos.testing.proxy.frames import ApiKey
from eos.testing.proxy.hold_proxy import Edge, Hold, HoldProxy, ends_with
from tests.support.observer import broker_config, committed_offsets, read_committed, unique
from tests.support.patience import PATIENCE_S
from tests.support.sessions import wait_delivered
from tests.support.settings import settings_of

if TYPE_CHECKING:
    from tests.conftest import NewTopic

pytestmark = pytest.mark.broker

INVALID_PRODUCER_EPOCH = 47


class Owner:
    """A producer behind the proxy, and what an outside reader sees of it."""

    def __init__(self, proxy: HoldProxy, bootstrap: str, source: str, out: str, timeout_ms: int) -> None:
        self._bootstrap = bootstrap
        self._source = source
        self.out = out
        self.told: list[Event] = []
        self.group = unique("late")
        shard = PartitionShard(unique("late"), self.group, Partition(source, 0))
        settings = settings_of(
            proxy.bootstrap_servers,
            transaction__timeout_ms=timeout_ms,
            transaction__commit_deadline_ms=60_000,
        )
        self.producer = ShardProducer(settings, shard, listener=self.told.append)
        self.member = Consumer({"bootstrap.servers": bootstrap, "group.id": self.group, "log_level": 0})

    def write(self, txn: Transaction, partition: int, value: bytes) -> None:
        """Produce one record, and wait until the broker has it."""
        txn.produce(self.out, value, partition=partition)
        wait_delivered(self.producer._client)

    def add_offset(self, txn: Transaction, offset: int) -> None:
        metadata = GroupMetadata(self.group, self.member.consumer_group_metadata())
        txn.add_offsets(OffsetVector({Partition(self._source, 0): offset}), metadata)

    def commit_one(self, value: bytes, offset: int) -> None:
        """Commit a record and an offset; redo what is known not to have happened, as a loop does."""
        for _ in range(5):
            try:
                with self.producer.transaction() as txn:
                    self.write(txn, 0, value)
                    self.add_offset(txn, offset)
            except ReopenError:
                if self.producer.reopen() is Outcome.COMMITTED:
                    return
            except AbortableError:
                continue
            else:
                return
        pytest.fail("five tries were not enough")

    def end_one(self, value: bytes, offset: int, *, committed: bool) -> None:
        """Commit a record and an offset, or abort another record."""
        if committed:
            self.commit_one(value, offset)
            return
        with self.producer.transaction() as txn:
            self.write(txn, 0, b"aborted")
            raise AbortTransaction

    def commit_around(self, late: Hold, offset: int) -> int | None:
        """Commit two records and an offset. A held request arrives between the records; returns the error it gets."""
        with self.producer.transaction() as txn:
            self.write(txn, 0, b"a")
            error = late.deliver(PATIENCE_S)
            self.write(txn, 1, b"b")
            self.add_offset(txn, offset)
        return error

    def count(self, kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in self.told)

    def seen(self) -> tuple[list[tuple[int, bytes | None]], int | None]:
        """What is visible as (partition, value), and the group's offset."""
        records = read_committed(self._bootstrap, self.out)
        offsets = committed_offsets(self._bootstrap, self.group, [(self._source, 0)])
        return [(r.partition, r.value) for r in records], offsets[self._source, 0][0]


@pytest.fixture
def source(topic: NewTopic) -> str:
    return topic("in")


@pytest.fixture
def out(topic: NewTopic) -> str:
    return topic("out", partitions=2)


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """No log line of librdkafka is heard, as if it had stopped to log, or logged otherwise."""
    monkeypatch.setattr(ResendWatch, "log", lambda *_: None)


@pytest.fixture
def owner(
    request: pytest.FixtureRequest, proxy: HoldProxy, bootstrap: str, source: str, out: str
) -> Iterator[Owner]:
    one = Owner(proxy, bootstrap, source, out, getattr(request, "param", 60_000))
    one.producer.open()
    yield one
    proxy.clear_rules()
    one.producer.close()
    one.member.close()


@pytest.fixture(params=[True, False], ids=["rebuilt", "not rebuilt"])
def rebuilt(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether suspect producers are rebuilt, as they should be."""
    if not request.param:
        monkeypatch.setattr(ShardProducer, "_suspect", lambda *_: None)
    return bool(request.param)


def test_late_abort_loses_no_record_of_the_next_transaction(
    proxy: HoldProxy, owner: Owner, *, rebuilt: bool
) -> None:
    owner.commit_one(b"before", 1)
    late = proxy.hold(ApiKey.END_TXN, where=ends_with(committed=False), reset_client=True)
    owner.end_one(b"", 0, committed=False)
    error = owner.commit_around(late, 2)
    seen, offset = owner.seen()
    if rebuilt:
        assert error == INVALID_PRODUCER_EPOCH
        assert seen == [(0, b"before"), (0, b"a"), (1, b"b")]
        assert owner.count(ProducerOpened) >= 2
    else:
        assert error == 0
        assert seen == [(0, b"before"), (1, b"b")]  # "a" is lost, and nobody was told
    assert offset == 2


@pytest.mark.usefixtures("deaf")
def test_late_abort_loses_no_record_of_a_producer_that_hears_no_log_lines(
    proxy: HoldProxy, owner: Owner
) -> None:
    """The resend takes less than the bound for slow calls, so nothing shows it: each transaction gets an instance."""
    owner.commit_one(b"before", 1)
    late = proxy.hold(ApiKey.END_TXN, where=ends_with(committed=False), reset_client=True)
    owner.end_one(b"", 0, committed=False)
    assert owner.commit_around(late, 2) == INVALID_PRODUCER_EPOCH
    assert owner.seen() == ([(0, b"before"), (0, b"a"), (1, b"b")], 2)
    assert owner.count(ProducerOpened) >= 3


def test_late_commit_tears_no_transaction_that_is_aborted(
    proxy: HoldProxy, owner: Owner, *, rebuilt: bool
) -> None:
    late = proxy.hold(ApiKey.END_TXN, where=ends_with(committed=True), reset_client=True)
    with owner.producer.transaction() as txn:
        owner.write(txn, 0, b"first")
        owner.add_offset(txn, 1)
    with owner.producer.transaction() as txn:
        owner.write(txn, 0, b"a")
        error = late.deliver(PATIENCE_S)
        owner.write(txn, 1, b"b")
        raise AbortTransaction
    seen, offset = owner.seen()
    assert error == (INVALID_PRODUCER_EPOCH if rebuilt else 0)
    assert seen == ([(0, b"first")] if rebuilt else [(0, b"first"), (0, b"a")])
    assert offset == 1


def test_late_offsets_do_not_overwrite_those_of_the_next_transaction(
    proxy: HoldProxy, owner: Owner, *, rebuilt: bool
) -> None:
    late = proxy.hold(ApiKey.TXN_OFFSET_COMMIT, reset_client=True)
    owner.commit_one(b"first", 10)
    assert bool(owner.count(ProducerSuspect)) is rebuilt
    # The late offsets arrive behind those of the second transaction and before its end.
    end = proxy.hold(ApiKey.END_TXN, where=ends_with(committed=True))

    def between_offsets_and_end() -> None:
        try:
            end.wait_held(PATIENCE_S)
            late.release()
            late.wait_answer(PATIENCE_S)
        finally:
            end.release()

    thread = threading.Thread(target=between_offsets_and_end)
    thread.start()
    with owner.producer.transaction() as txn:
        owner.write(txn, 0, b"second")
        owner.add_offset(txn, 20)
    thread.join(PATIENCE_S)
    seen, offset = owner.seen()
    assert seen == [(0, b"first"), (0, b"second")]
    assert offset == (20 if rebuilt else 10)  # 10: the second record's input would be read again


@pytest.mark.parametrize("verified", [True, False], ids=["verified", "not verified"])
def test_late_record_of_an_aborted_transaction_is_refused_by_a_broker_that_verifies(
    proxy: HoldProxy, bootstrap: str, owner: Owner, *, verified: bool
) -> None:
    """A leader that has not seen the next epoch yet takes the old one's record, unless it asks the coordinator (KIP-890).

    What the next transaction commits is whatever its producer id has written to the partition by then.
    """
    with broker_config(bootstrap, "transaction.partition.verification.enable", str(verified).lower()):
        late = proxy.hold(ApiKey.PRODUCE, reset_client=True)
        with owner.producer.transaction() as txn:
            txn.produce(owner.out, b"aborted", partition=0)
            late.wait_held(PATIENCE_S)
            proxy.cut(ApiKey.PRODUCE, Edge.REQUEST, times=1000)
            raise AbortTransaction
        proxy.clear_rules()
        with owner.producer.transaction() as txn:
            owner.write(txn, 1, b"b")
            late.release()
            late.wait_answer(PATIENCE_S)
            owner.write(txn, 0, b"a")
            owner.add_offset(txn, 1)
        assert owner.count(ProducerOpened) >= 2
    seen, offset = owner.seen()
    assert seen == [*([] if verified else [(0, b"aborted")]), (0, b"a"), (1, b"b")]
    assert offset == 1


@pytest.mark.parametrize("owner", [6_000], indirect=True)
@pytest.mark.parametrize(
    "committed", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["commit", "abort"]
)
def test_end_that_was_sent_again_after_a_request_timeout_is_noticed(
    proxy: HoldProxy, owner: Owner, *, committed: bool
) -> None:
    """A client waits transaction.timeout.ms - 100 ms for the answer, so the transaction may expire as well."""
    owner.commit_one(b"before", 1)
    late = proxy.hold(ApiKey.END_TXN, where=ends_with(committed=committed))
    owner.end_one(b"first", 2, committed=committed)
    assert owner.commit_around(late, 3) == INVALID_PRODUCER_EPOCH
    assert owner.count(ProducerOpened) >= 2
    first = [(0, b"first")] if committed else []
    assert owner.seen() == ([(0, b"before"), *first, (0, b"a"), (1, b"b")], 3)


@pytest.mark.parametrize("committed", [True, False], ids=["commit", "abort"])
def test_fourth_disconnect_within_30_s_is_noticed_although_its_log_line_may_be_suppressed(
    proxy: HoldProxy, owner: Owner, *, committed: bool
) -> None:
    """A repeated disconnect is logged only every 30 s, unless debug=broker is set."""
    for n in range(3):
        owner.commit_one(b"%d" % n, n + 1)
        cut_all(proxy)  # between transactions: no request of one can be in flight, so nothing is suspect
        time.sleep(0.2)
    rebuilds = owner.count(ProducerOpened)
    late = proxy.hold(ApiKey.END_TXN, where=ends_with(committed=committed), reset_client=True)
    owner.end_one(b"3", 4, committed=committed)
    assert owner.commit_around(late, 5) == INVALID_PRODUCER_EPOCH
    assert owner.count(ProducerOpened) > rebuilds
    third = [(0, b"3")] if committed else []
    assert owner.seen() == ([(0, b"0"), (0, b"1"), (0, b"2"), *third, (0, b"a"), (1, b"b")], 5)


def test_four_disconnects_in_a_row_at_the_end_of_one_transaction_are_noticed_each_time(
    proxy: HoldProxy, owner: Owner
) -> None:
    for n in range(4):
        late = proxy.hold(ApiKey.END_TXN, where=ends_with(committed=True), reset_client=True)
        noticed = owner.count(ProducerSuspect)
        owner.commit_one(b"%d" % n, n + 1)
        assert owner.count(ProducerSuspect) > noticed
        with owner.producer.transaction() as txn:
            owner.write(txn, 1, b"a%d" % n)
            assert late.deliver(PATIENCE_S) == INVALID_PRODUCER_EPOCH
            owner.write(txn, 1, b"b%d" % n)
    seen, offset = owner.seen()
    assert [v for p, v in seen if p == 0] == [b"%d" % n for n in range(4)]
    assert [v for p, v in seen if p == 1] == [b"%s%d" % (x, n) for n in range(4) for x in (b"a", b"b")]
    assert offset == 4


def test_undisturbed_transactions_are_never_suspect(proxy: HoldProxy, owner: Owner) -> None:
    """A false alarm costs a rebuild, so it must be rare."""
    for n in range(30):
        owner.commit_one(b"%d" % n, n + 1)
    assert owner.count(ProducerSuspect) <= 1
    seen, offset = owner.seen()
    assert [v for _, v in seen] == [b"%d" % n for n in range(30)]
    assert offset == 30


def cut_all(proxy: HoldProxy) -> None:
    """Reset every connection through the proxy."""
    done = threading.Event()

    def cancel() -> None:
        for task in list(proxy._connections):
            task.cancel()
        done.set()

    proxy._loop.call_soon_threadsafe(cancel)
    assert done.wait(PATIENCE_S)
