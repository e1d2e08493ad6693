"""A loop of one's own over ReadCommittedConsumer.transaction: exact whatever ends a transaction."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from eos import (
    AbortTransaction,
    CommitOutcomeUnknownError,
    OffsetVector,
    OrdinalShard,
    Partition,
    ReadCommittedConsumer,
    RebalancedError,
    Transaction,
    TransactionalProducer,
    UsageError,
)
from tests.support.exactly_once import Output, SeenRecord
from tests.support.hold_proxy import Edge, HoldProxy, ends_with
from tests.support.jobs_for_faults import settings_for
from tests.support.kafka_frames import ApiKey
from tests.support.observer import PlainRecord, assert_exactly_once, produce_plain, unique

if TYPE_CHECKING:
    from tests.conftest import NewTopic

pytestmark = pytest.mark.broker

RECORDS = 300
WAIT_S = 30.0


class Relay:
    """A loop that copies ``source`` to ``out``, 20 records at a time."""

    def __init__(self, bootstrap: str, source: str, out: str) -> None:
        self.source, self.out, self.group = source, out, unique("relay")
        self._bootstrap = bootstrap
        produce_plain(bootstrap, source, [PlainRecord(b"%d" % n, partition=n % 2) for n in range(RECORDS)])

    @contextmanager
    def open(
        self, address: str = "", **changes: object
    ) -> Iterator[tuple[TransactionalProducer, ReadCommittedConsumer]]:
        settings = settings_for(address or self._bootstrap, **changes)
        shard = OrdinalShard("relay", self.group, 0)
        with (
            TransactionalProducer(settings, shard) as producer,
            ReadCommittedConsumer(settings, [self.source], group=self.group, ordinal=0) as consumer,
        ):
            yield producer, consumer

    def run(
        self,
        producer: TransactionalProducer,
        consumer: ReadCommittedConsumer,
        end_badly: Callable[[int, Transaction], None] = lambda _nth, _txn: None,
        goes_on: tuple[type[BaseException], ...] = (),
    ) -> None:
        """Until all is committed; ``end_badly`` is called at the end of each block with its number."""
        nth = 0
        deadline = time.monotonic() + WAIT_S
        while sum(consumer.resume_positions.values()) < RECORDS:
            assert time.monotonic() < deadline
            batch = consumer.fetch(20, 0.5)
            nth += bool(batch)
            with suppress(*goes_on), consumer.transaction(producer, batch) as txn:
                for record in batch:
                    txn.produce(self.out, record.value, key=record.key)
                if batch:
                    end_badly(nth, txn)

    def check(self) -> None:
        def copied(record: SeenRecord) -> list[Output]:
            return [(self.out, record.key, record.value)]

        seen = assert_exactly_once(self._bootstrap, self.group, [self.source], [self.out], copied)
        assert seen.processed == RECORDS


@pytest.fixture
def relay(bootstrap: str, topic: NewTopic) -> Relay:
    return Relay(bootstrap, topic("in", 2), topic("out"))


def test_blocks_that_are_aborted_by_request_are_made_again(relay: Relay) -> None:
    def every_third(nth: int, _txn: Transaction) -> None:
        if nth % 3 == 0:
            raise AbortTransaction

    with relay.open() as (producer, consumer):
        relay.run(producer, consumer, every_third)
    relay.check()


def test_blocks_that_raise_are_made_again(relay: Relay) -> None:
    def every_third(nth: int, _txn: Transaction) -> None:
        if nth % 3 == 0:
            raise ValueError(nth)

    with relay.open() as (producer, consumer):
        relay.run(producer, consumer, every_third, goes_on=(ValueError,))
    relay.check()


@pytest.mark.parametrize("edge", [Edge.REPLY, Edge.REQUEST], ids=["happened", "did not"])
def test_commit_without_an_answer_is_settled(relay: Relay, proxy: HoldProxy, edge: Edge) -> None:
    def lose_the_third(nth: int, _txn: Transaction) -> None:
        proxy.clear_rules()
        if nth == 3 and edge is Edge.REPLY:
            proxy.drop_reply(ApiKey.END_TXN, where=ends_with(committed=True), times=100)
        elif nth == 3:
            proxy.cut(ApiKey.END_TXN, edge, where=ends_with(committed=True), times=100)

    with relay.open(proxy.bootstrap_servers, transaction__commit_deadline_ms=700) as (producer, consumer):
        relay.run(producer, consumer, lose_the_third, goes_on=(CommitOutcomeUnknownError,))
    relay.check()


def test_batch_of_partitions_that_are_gone_is_not_produced(relay: Relay) -> None:
    with relay.open() as (producer, consumer):
        batch = consumer.fetch(20, WAIT_S)
        consumer._resume.clear()  # as a rebalance inside that fetch does
        with (
            pytest.raises(RebalancedError, match="not ours any more"),
            consumer.transaction(producer, batch) as txn,
        ):
            txn.produce(relay.out, b"of nobody")


def test_offsets_behind_the_own_last_commit_are_refused(relay: Relay) -> None:
    """A rewind without a word of the last commit goes back to the start: all of it would be made twice."""
    with relay.open() as (producer, consumer):
        for _ in range(2):
            consumer.fetch(20, WAIT_S)
            with producer.transaction() as txn:
                txn.add_offsets(consumer.positions(), consumer.group_metadata())
        consumer.rewind()
        batch = consumer.fetch(1, WAIT_S)
        assert batch
        with (
            pytest.raises(UsageError, match=r"would be processed again\. Fix: "),
            producer.transaction() as txn,
        ):
            txn.add_offsets(consumer.positions(), consumer.group_metadata())


@pytest.mark.parametrize(
    ("offsets", "says"),
    [({"in": 3}, "got dict"), (OffsetVector({("in", 0): 3}), r"no eos\.Partition")],  # type: ignore[dict-item]
    ids=["dict", "pairs"],
)
def test_offsets_that_are_none_are_refused(relay: Relay, offsets: OffsetVector, says: str) -> None:
    with relay.open() as (producer, consumer):
        with pytest.raises(UsageError, match=says), producer.transaction() as txn:
            txn.add_offsets(offsets, consumer.group_metadata())
        with pytest.raises(UsageError, match="NoneType"), producer.transaction() as txn:
            txn.add_offsets(OffsetVector({Partition(relay.source, 0): 1}), None)  # type: ignore[arg-type]


def test_loop_of_the_documentation_is_exact(relay: Relay, bootstrap: str) -> None:
    relay.group = f"relay-{relay.source}"
    example = Path(__file__).parents[2] / "docs/examples/own_loop.py"
    ended = subprocess.run(
        [sys.executable, str(example), bootstrap, relay.source, relay.out, "8"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    relay.check()
