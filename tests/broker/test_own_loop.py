"""A loop of one's own over eos.Session: exact whatever ends a transaction."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError

from eos import (
    AbortTransaction,
    CommitOutcomeUnknownError,
    InputBatch,
    OffsetVector,
    Partition,
    RecordRefusedError,
    RetriableError,
    Session,
    Transaction,
    UsageError,
)
from eos.core.consumer import ShardConsumer
from eos.core.producer import ShardProducer
from eos.events import Event, Listener, TransactionEnded, ignore_event
from eos.faces.surroundings import SURROUNDINGS
from eos.shards import OrdinalShard
from eos.testing.proxy.frames import ApiKey
from eos.testing.proxy.hold_proxy import Edge, HoldProxy, ends_with
from tests.support.jobs_for_faults import settings_for
from tests.support.observer import (
    PlainRecord,
    assert_copied,
    committed_offsets,
    produce_plain,
    read_committed,
    unique,
)
from tests.support.patience import PATIENCE_S

if TYPE_CHECKING:
    from tests.conftest import NewTopic

pytestmark = pytest.mark.broker

RECORDS = 300


class Relay:
    """A loop that copies ``source`` to ``out``, 20 records at a time."""

    def __init__(self, bootstrap: str, source: str, out: str) -> None:
        self.source, self.out, self.group = source, out, unique("relay")
        self._bootstrap = bootstrap
        produce_plain(bootstrap, source, [PlainRecord(b"%d" % n, partition=n % 2) for n in range(RECORDS)])

    def session(self, address: str = "", *, listener: Listener = ignore_event, **changes: object) -> Session:
        changes = {"group": self.group, "input__fetch_records": 20} | changes
        return Session(
            settings_for(address or self._bootstrap, **changes),
            app="relay",
            inputs=[self.source],
            outputs=[self.out],
            until_caught_up=True,
            listener=listener,
        )

    def run(
        self,
        session: Session,
        end_badly: Callable[[int, Transaction], None] = lambda _nth, _txn: None,
        goes_on: tuple[type[BaseException], ...] = (),
    ) -> None:
        """Until all is committed; ``end_badly`` is called at the end of each block with its number."""
        deadline = time.monotonic() + PATIENCE_S
        for nth, batch in enumerate(session, 1):
            assert time.monotonic() < deadline
            with suppress(*goes_on), session.transaction(batch) as txn:
                self.copy(batch, txn)
                end_badly(nth, txn)

    def copy(self, batch: InputBatch, txn: Transaction) -> None:
        for record in batch:
            txn.produce(self.out, record.value, key=record.key)

    def check(self) -> None:
        assert_copied(self._bootstrap, self.group, self.source, self.out, RECORDS)


@pytest.fixture
def relay(bootstrap: str, topic: NewTopic) -> Relay:
    return Relay(bootstrap, topic("in", 2), topic("out"))


def first_batch(session: Session) -> InputBatch:
    deadline = time.monotonic() + PATIENCE_S
    while not (batch := session.fetch(20, 0.5)):
        assert time.monotonic() < deadline
    return batch


def test_blocks_that_are_aborted_by_request_are_made_again(relay: Relay) -> None:
    def every_third(nth: int, _txn: Transaction) -> None:
        if nth % 3 == 0:
            raise AbortTransaction

    with relay.session() as session:
        relay.run(session, every_third)
    relay.check()


def test_blocks_that_raise_are_made_again(relay: Relay) -> None:
    def every_third(nth: int, _txn: Transaction) -> None:
        if nth % 3 == 0:
            raise ValueError(nth)

    with relay.session() as session:
        relay.run(session, every_third, goes_on=(ValueError,))
    relay.check()


def test_error_of_eos_that_the_block_raises_itself_is_not_taken_for_the_transactions_own(
    relay: Relay,
) -> None:
    def once(nth: int, _txn: Transaction) -> None:
        if nth == 3:
            raise RetriableError("of the caller's own code")

    with relay.session() as session, pytest.raises(RetriableError, match="caller's own"):
        relay.run(session, once)


@pytest.mark.parametrize("edge", [Edge.REPLY, Edge.REQUEST], ids=["happened", "did not"])
def test_commit_without_an_answer_is_settled(relay: Relay, proxy: HoldProxy, edge: Edge) -> None:
    def lose_the_third(nth: int, _txn: Transaction) -> None:
        proxy.clear_rules()
        if nth == 3 and edge is Edge.REPLY:
            proxy.drop_reply(ApiKey.END_TXN, where=ends_with(committed=True), times=100)
        elif nth == 3:
            proxy.cut(ApiKey.END_TXN, edge, where=ends_with(committed=True), times=100)

    with relay.session(proxy.bootstrap_servers, transaction__commit_deadline_ms=700) as session:
        relay.run(session, lose_the_third)
    relay.check()


@pytest.mark.parametrize("then", ["refused", "no answer", "no answer, and its partitions are lost"])
def test_block_whose_commit_has_happened_without_an_answer_says_that_it_is_committed(
    relay: Relay, proxy: HoldProxy, then: str
) -> None:
    """The batch does not come again: a caller that counts by ``committed`` counted 9 of 12 records.

    In an outage that outlasts the session's timeout the member loses its partitions, though nobody else has them.
    """
    told: list[tuple[int, bool]] = []

    def lose_all(event: Event) -> None:
        if isinstance(event, TransactionEnded) and then.endswith("lost"):
            session._owner.consumer.lose_all()

    with relay.session(
        proxy.bootstrap_servers, listener=lose_all, transaction__commit_deadline_ms=700
    ) as session:
        for nth in range(3):
            batch = first_batch(session)
            with session.transaction(batch) as txn:
                txn.produce_batch(relay.out, [{"value": record.value} for record in batch])
                if nth == 1 and then == "refused":
                    proxy.cut(ApiKey.END_TXN, Edge.REPLY, where=ends_with(committed=True))
                    proxy.refuse(ApiKey.END_TXN, KafkaError.INVALID_TXN_STATE)
                elif nth == 1:
                    proxy.drop_reply(ApiKey.END_TXN, where=ends_with(committed=True), times=100)
            proxy.clear_rules()
            told.append((len(batch), txn.committed))
            if nth == 1 and then.endswith("lost"):
                break
    assert all(committed for _, committed in told)
    assert len(read_committed(relay._bootstrap, relay.out)) == sum(records for records, _ in told)


def test_commit_without_an_answer_of_a_block_without_input_is_not_passed_over(
    relay: Relay, proxy: HoldProxy
) -> None:
    """No offset shows whether it has happened: a caller that was told nothing would make it again, and have it twice."""
    with relay.session(proxy.bootstrap_servers, transaction__commit_deadline_ms=700) as session:
        first_batch(session)
        proxy.drop_reply(ApiKey.END_TXN, where=ends_with(committed=True), times=100)
        with (
            pytest.raises(CommitOutcomeUnknownError, match="no input"),
            session.transaction(InputBatch([])) as txn,
        ):
            txn.produce(relay.out, b"of nothing")
        proxy.clear_rules()
        relay.run(session, lambda *_: None)  # and goes on


def test_record_that_the_cluster_refuses_ends_the_loop_and_nothing_of_its_batch_is_visible(
    relay: Relay, bootstrap: str
) -> None:
    """Made again it would be refused again, for ever."""

    def too_large(nth: int, txn: Transaction) -> None:
        if nth == 3:
            txn.produce(relay.out, bytes(3_000_000))

    with relay.session() as session, pytest.raises(RecordRefusedError):
        relay.run(session, too_large)
    partitions = [(relay.source, n) for n in range(2)]
    offsets = committed_offsets(bootstrap, relay.group, partitions)
    assert sum(offsets[p][0] or 0 for p in partitions) == len(read_committed(bootstrap, relay.out)) <= 40


def test_batch_of_partitions_that_are_gone_is_not_produced(relay: Relay, bootstrap: str) -> None:
    with relay.session() as session:
        batch = first_batch(session)
        session._owner.ledger.revoked(
            session._owner.consumer.assignment
        )  # as a rebalance inside that fetch does
        with session.transaction(batch) as txn:
            txn.produce(relay.out, b"of nobody")
        assert not txn.committed
    assert read_committed(bootstrap, relay.out) == []


def test_session_that_never_fetched_closes_at_once(relay: Relay) -> None:
    """Its assignment waits to be served, and is served inside close(): it must not be taken up then."""
    with relay.session() as session:
        time.sleep(3.0)
        began = time.monotonic()
        session.close()
        assert time.monotonic() - began < PATIENCE_S / 4


def test_session_is_opened_once_and_not_used_after_its_close(relay: Relay) -> None:
    with relay.session() as session:
        with pytest.raises(UsageError, match="open already"):
            session.open()
        batch = first_batch(session)
    for late in (session.fetch, lambda: session.transaction(batch).__enter__()):
        with pytest.raises(UsageError, match="not open"):
            late()


def test_topic_that_was_not_declared_is_refused(relay: Relay) -> None:
    with relay.session() as session:
        batch = first_batch(session)
        with pytest.raises(UsageError, match="not one of the outputs"), session.transaction(batch) as txn:
            txn.produce("elsewhere", b"v")


@pytest.mark.parametrize(
    "by_hand",
    [
        lambda txn: txn.commit(),
        lambda txn: txn.abort(),
        lambda txn: txn.begin(),
        lambda txn: txn.__enter__(),
        lambda txn: txn.add_offsets(OffsetVector(), None),
    ],
    ids=["commit", "abort", "begin", "with", "add_offsets"],
)
def test_transaction_that_is_ended_by_hand_inside_its_block_is_refused_and_made_again(
    relay: Relay, by_hand: Callable[[Transaction], object]
) -> None:
    """A commit by hand would make the output visible without the offsets of its input: it would be made twice."""
    with relay.session() as session:
        batch = first_batch(session)
        with (
            pytest.raises(
                (UsageError, AttributeError),
                match=r"the session ends its transactions itself|has no attribute",
            ),
            session.transaction(batch) as txn,
        ):
            relay.copy(batch, txn)
            by_hand(txn)
        relay.run(session)
    relay.check()


@pytest.mark.parametrize("what", ["fetch", "transaction"])
def test_block_inside_a_block_is_refused_and_the_outer_one_is_made_again(relay: Relay, what: str) -> None:
    with relay.session() as session:
        batch = first_batch(session)
        with pytest.raises(UsageError, match="leave it first"), session.transaction(batch):
            if what == "fetch":
                session.fetch()
            else:
                with session.transaction(batch):
                    pass
        relay.run(session)
    relay.check()


def test_block_that_raises_beside_an_error_event_is_made_again(relay: Relay) -> None:
    """The fetch after it raises the event before it goes back: what the loop does then must not commit the lost records."""
    hit = 0

    def every_third(nth: int, _txn: Transaction) -> None:
        nonlocal hit
        if nth % 3 == 0:
            hit += 1
            session._owner.consumer._require_client()._error_event = RetriableError(
                "a broker went away", code="_TRANSPORT"
            )
            raise ValueError(nth)

    with relay.session() as session:
        relay.run(session, every_third, goes_on=(ValueError,))
    assert hit
    relay.check()


def test_empty_batch_after_a_block_that_raised_commits_nothing(relay: Relay) -> None:
    with relay.session() as session:
        batch = first_batch(session)
        with pytest.raises(ValueError, match="once"), session.transaction(batch):
            raise ValueError("once")
        with session.transaction(InputBatch([])) as txn:
            pass
        assert txn._begun().offsets == {}
        relay.run(session)
    relay.check()


@pytest.mark.parametrize("void", ["aborted", "rewound"])
def test_batch_that_is_read_again_is_not_committed(relay: Relay, void: str) -> None:
    with relay.session() as session:
        batch = first_batch(session)
        if void == "rewound":
            session._owner.consumer.rewind_later()
        else:
            with session.transaction(batch):
                raise AbortTransaction
        with session.transaction(batch) as txn:
            txn.produce(relay.out, b"twice")
        assert not txn.committed
        relay.run(session)
    relay.check()


def test_batch_that_was_committed_is_not_committed_again(relay: Relay) -> None:
    with relay.session() as session:
        batch = first_batch(session)
        committed = []
        for _ in range(2):
            with session.transaction(batch) as txn:
                relay.copy(batch, txn)
            committed.append(txn.committed)
        assert committed == [True, False]
        relay.run(session)
    relay.check()


def test_batch_behind_one_that_was_dropped_is_refused_and_both_are_read_again(relay: Relay) -> None:
    """A timeout around a fetch may come after it has returned: the loop then goes on without its batch."""
    with relay.session() as session:
        _kept = first_batch(session)
        batch = first_batch(session)
        with session.transaction(batch) as txn:
            pass
        assert not txn.committed
        relay.run(session)
    relay.check()


def test_last_batch_that_was_dropped_is_read_again(relay: Relay) -> None:
    """What its caller had of it is gone, and no further input comes: until_caught_up never ended."""
    with relay.session() as session:
        held: list[InputBatch] = []
        while sum(map(len, held)) < RECORDS:
            held.append(first_batch(session))
        held.clear()
        while not session.ended:
            batch = session.fetch()
            with session.transaction(batch) as txn:
                relay.copy(batch, txn)
    relay.check()


def test_last_batch_of_an_iteration_that_was_left_is_read_again(relay: Relay) -> None:
    """The variable of the caller's loop still holds it: Ctrl-C in a notebook, and the cell is run again."""
    with relay.session() as session:
        read = 0
        for batch in session:
            read += len(batch)
            if read == RECORDS:
                break
        for batch in session:
            with session.transaction(batch) as txn:
                relay.copy(batch, txn)
    relay.check()


def test_session_whose_batches_were_refused_goes_on_with_those_that_are_read_again(relay: Relay) -> None:
    """The third refusal in a row ended the loop, and no later batch was taken."""
    with relay.session() as session:
        held = []
        for nth in range(5):
            held += [first_batch(session), first_batch(session)]
            told = pytest.raises(UsageError, match="a transaction for each") if nth >= 2 else nullcontext()
            with told, session.transaction(held[-1]):
                pass
        relay.run(session)
    relay.check()


def test_dropped_batch_is_not_committed_as_passed_control_records(relay: Relay, bootstrap: str) -> None:
    with relay.session() as session:
        first_batch(session)
        session._owner.ledger._passed_at = 0.0
        for _ in range(3):
            session.fetch(20, 0.5)
    offsets = committed_offsets(bootstrap, relay.group, [(relay.source, 0), (relay.source, 1)])
    assert {offset for offset, _ in offsets.values()} <= {0, None}


def test_loop_that_always_drops_a_batch_is_told_so(relay: Relay) -> None:
    with relay.session() as session:

        def fetch_twice() -> None:
            for _ in range(10):
                _left_out, batch = first_batch(session), first_batch(session)
                with session.transaction(batch):
                    pass

        with pytest.raises(UsageError, match="a transaction for each batch"):
            fetch_twice()


def test_batch_that_no_fetch_returned_is_refused(relay: Relay) -> None:
    with relay.session() as session:
        batch = InputBatch.of(list(first_batch(session)))
        with pytest.raises(UsageError, match="not returned by fetch"), session.transaction(batch):
            pass


def test_stop_ends_the_iteration_after_the_block(relay: Relay, bootstrap: str) -> None:
    with relay.session() as session:
        for batch in session:
            session.stop()
            with session.transaction(batch) as txn:
                relay.copy(batch, txn)
            assert txn.committed
    assert 0 < len(read_committed(bootstrap, relay.out)) <= 20


# --- offsets by hand, below the session ----------------------------------------------------------------------


def fetched(consumer: ShardConsumer) -> InputBatch:
    """The next records; a fetch in which partitions come has none."""
    deadline = time.monotonic() + PATIENCE_S
    while not (batch := consumer.fetch(20, 1.0)):
        assert time.monotonic() < deadline
    return batch


def test_offsets_behind_the_own_last_commit_are_refused(relay: Relay, bootstrap: str) -> None:
    """A rewind without a word of the last commit goes back to the start: all of it would be made twice."""
    settings = settings_for(bootstrap)
    with ShardProducer(settings, OrdinalShard("relay", relay.group, 0)) as producer:
        consumer = ShardConsumer(
            settings, [relay.source], group=relay.group, ordinal=0, surroundings=SURROUNDINGS
        )
        consumer.open()
        for _ in range(2):
            batch = fetched(consumer)
            with producer.transaction() as txn:
                txn.add_offsets(consumer.taken(batch).ends, consumer.group_metadata())
        consumer.rewind()
        batch = consumer.fetch(1, PATIENCE_S)
        assert batch
        with pytest.raises(UsageError, match=r"would be processed again"), producer.transaction() as txn:
            txn.add_offsets(consumer.taken(batch).ends, consumer.group_metadata())
        consumer.close()


@pytest.mark.parametrize(
    ("offsets", "says"),
    [({"in": 3}, "got dict"), (OffsetVector({("in", 0): 3}), r"no eos\.Partition")],  # type: ignore[dict-item]
    ids=["dict", "pairs"],
)
def test_offsets_that_are_none_are_refused(
    relay: Relay, bootstrap: str, offsets: OffsetVector, says: str
) -> None:
    settings = settings_for(bootstrap)
    with ShardProducer(settings, OrdinalShard("relay", relay.group, 0)) as producer:
        consumer = ShardConsumer(
            settings, [relay.source], group=relay.group, ordinal=0, surroundings=SURROUNDINGS
        )
        consumer.open()
        assert fetched(consumer)  # only a member has metadata to commit with
        with pytest.raises(UsageError, match=says), producer.transaction() as txn:
            txn.add_offsets(offsets, consumer.group_metadata())
        with pytest.raises(UsageError, match="NoneType"), producer.transaction() as txn:
            txn.add_offsets(OffsetVector({Partition(relay.source, 0): 1}), None)  # type: ignore[arg-type]
        consumer.close()


# --- the documented loop ---------------------------------------------------------------------------------------


def test_loop_of_the_documentation_is_exact(relay: Relay, bootstrap: str) -> None:
    relay.group = f"relay-{relay.source}"
    example = Path(__file__).parents[2] / "docs/examples/own_loop.py"
    with subprocess.Popen(
        [sys.executable, str(example), bootstrap, relay.source, relay.out],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            deadline = time.monotonic() + PATIENCE_S
            while len(read_committed(bootstrap, relay.out)) < RECORDS:
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.2)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert (process.returncode, out) == (0, ""), err
    relay.check()
