"""The exception of a signal handler leaves a call inside a block, and is caught there: no record is written twice or left out.

Each record is produced again where its call was left. The handler's exception comes at chosen steps of the call.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from confluent_kafka import Consumer

from eos import (
    AbortableError,
    EosError,
    OffsetVector,
    OutputRecord,
    Partition,
    RecordRefusedError,
    Session,
    TransactionalProducer,
    UsageError,
)
from eos.core.block import Transaction
from eos.core.producer import ShardProducer
from eos.core.topics_used import TopicsUsed
from eos.core.transaction import ShardTransaction
from eos.kafka.group_offsets import GroupMetadata
from eos.kafka.producer import TransactionalClient
from eos.shards import OrdinalShard
from tests.support.jobs_for_faults import settings_for
from tests.support.observer import (
    PlainRecord,
    assert_copied,
    create_topics,
    produce_plain,
    read_committed,
    unique,
)
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker

RECORDS = 200
STEPS: dict[str, tuple[type, str, bool]] = {
    "before the topic is asked for": (TopicsUsed, "write", False),
    "the topic is known": (TopicsUsed, "write", True),
    "before the record is queued": (TransactionalClient, "produce", False),
    "the record is queued": (TransactionalClient, "produce", True),
    "before callbacks are served": (TransactionalClient, "poll_now_and_then", False),
    "callbacks are served": (TransactionalClient, "poll_now_and_then", True),
}
CALLS: dict[str, Callable[[Transaction, str], None]] = {
    "produce": lambda txn, out: txn.produce(out, b"v"),
    "produce_batch": lambda txn, out: txn.produce_batch(out, [{"value": b"v"}]),
    "produce_records": lambda txn, out: txn.produce_records([OutputRecord(out, b"v")]),
}


class Interrupted(Exception):  # noqa: N818 - as KeyboardInterrupt
    """What the handler raises."""


@contextmanager
def interrupting(owner: type, name: str, *, behind: bool) -> Iterator[None]:
    """An exception in front of the next call of this method, or behind it."""
    original: Callable[..., Any] = getattr(owner, name)

    def interrupted(*args: Any, **kwargs: Any) -> None:
        setattr(owner, name, original)
        if behind:
            original(*args, **kwargs)
        raise Interrupted

    setattr(owner, name, interrupted)
    try:
        yield
    finally:
        setattr(owner, name, original)


@pytest.fixture
def out(bootstrap: str) -> str:
    name = unique("out")
    create_topics(bootstrap, {name: 1})
    return name


@pytest.fixture
def producer(bootstrap: str) -> Iterator[TransactionalProducer]:
    with TransactionalProducer(settings_for(bootstrap), app=unique("left")) as one:
        yield one


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("step", STEPS)
def test_record_whose_call_was_left_is_not_written_twice_by_the_block_that_goes_on(
    producer: TransactionalProducer, bootstrap: str, out: str, step: str, call: str
) -> None:
    owner, name, behind = STEPS[step]
    with (
        pytest.raises(AbortableError, match=rf"{call}\(\) was left by Interrupted.*Fix: "),
        producer.transaction() as txn,
        interrupting(owner, name, behind=behind),
    ):
        try:
            CALLS[call](txn, out)
        except Interrupted:
            CALLS[call](txn, out)
    with (
        pytest.raises(AbortableError, match=r"was left by Interrupted"),
        producer.transaction() as txn,
        interrupting(TransactionalClient, "produce", behind=True),
        contextlib.suppress(Interrupted),
    ):
        CALLS[call](txn, out)
    with producer.transaction() as txn:
        CALLS[call](txn, out)
    assert [record.value for record in read_committed(bootstrap, out)] == [b"v"]


def test_offsets_whose_call_was_left_are_not_left_out_of_the_transaction(bootstrap: str, out: str) -> None:
    group = unique("left")
    member = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    metadata = GroupMetadata(group, member.consumer_group_metadata())
    with (
        ShardProducer(settings_for(bootstrap), OrdinalShard(unique("left"), group, 0)) as producer,
        pytest.raises(AbortableError, match=r"add_offsets\(\) was left by Interrupted"),
        producer.transaction() as txn,
    ):
        txn.produce(out, b"never")
        with interrupting(ShardTransaction, "_add_offsets", behind=False), contextlib.suppress(Interrupted):
            txn.add_offsets(OffsetVector({Partition(out, 0): 1}), metadata)
    member.close()
    assert read_committed(bootstrap, out) == []


def test_part_of_produce_records_is_not_written_twice_where_the_rest_was_refused(
    producer: TransactionalProducer, bootstrap: str, out: str
) -> None:
    other = unique("other")
    create_topics(bootstrap, {other: 1})
    records = [OutputRecord(out, b"first"), OutputRecord(other, b"refused", partition=-1)]
    with (
        pytest.raises(AbortableError, match=r"produce_records\(\) was left by RecordRefusedError"),
        producer.transaction() as txn,
    ):
        with pytest.raises(RecordRefusedError):
            txn.produce_records(records)
        txn.produce(out, b"first")
    assert read_committed(bootstrap, out, other) == []


def test_single_record_that_was_refused_may_be_left_out(
    producer: TransactionalProducer, bootstrap: str, out: str
) -> None:
    with producer.transaction() as txn:
        txn.produce(out, b"one")
        with pytest.raises(RecordRefusedError):
            txn.produce(out, b"refused", partition=-1)
        with pytest.raises(RecordRefusedError):
            txn.produce(out, b"x" * 2_000_000)
        with pytest.raises(UsageError):
            txn.produce(out, 5)  # type: ignore[arg-type] # what is tried
        txn.produce(out, b"two")
    assert [record.value for record in read_committed(bootstrap, out)] == [b"one", b"two"]


def test_block_that_is_left_at_its_beginning_keeps_no_other_from_beginning(
    producer: TransactionalProducer, bootstrap: str, out: str
) -> None:
    with (
        pytest.raises(Interrupted),
        interrupting(ShardTransaction, "begin", behind=True),
        producer.transaction(),
    ):
        pass
    with producer.transaction() as txn:
        txn.produce(out, b"v")
    assert [record.value for record in read_committed(bootstrap, out)] == [b"v"]


def test_copy_under_a_timer_that_goes_on_where_produce_was_left_is_exact(bootstrap: str, out: str) -> None:
    """As a program may that bounds its calls by an alarm: the exception is caught in the block, the record produced again."""
    source, group = unique("in"), unique("timer")
    create_topics(bootstrap, {source: 1})
    produce_plain(bootstrap, source, [PlainRecord(b"%d" % n) for n in range(RECORDS)])
    left, tried, armed = 0, 0, [True]

    def handler(_: int, frame: FrameType | None) -> None:
        at = frame
        while at is not None and at.f_code is not Transaction.produce.__code__:
            at = at.f_back
        # Hypothesis looks on at garbage collections; what is raised inside such a look, Python drops with a warning.
        in_a_look = frame is not None and frame.f_code.co_name == "gc_callback"
        if at is not None and armed[0] and not in_a_look:
            raise Interrupted

    before = signal.signal(signal.SIGALRM, handler)
    try:
        settings = settings_for(bootstrap, group=group, input__fetch_records=20)
        with Session(settings, app="timer", inputs=[source], outputs=[out]) as session:
            deadline = time.monotonic() + PATIENCE_S
            while session.committed_offsets.get(Partition(source, 0), 0) < RECORDS:
                assert time.monotonic() < deadline
                batch = session.fetch(20, 0.5)
                with session.transaction(batch) as txn:
                    for record in batch:
                        # Until something was left often enough; then the copy is to come to its end.
                        if left < 30:
                            # Another time at each try: how soon the call is entered depends on the machine.
                            tried += 1
                            signal.setitimer(signal.ITIMER_REAL, 0.00001 * (tried % 20 + 1))
                        try:
                            txn.produce(out, record.value)
                        except Interrupted:
                            left += 1
                            txn.produce(out, record.value)
                        signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        armed[0] = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert left > 0
    assert_copied(bootstrap, group, source, out)


def test_producer_shared_by_threads_refuses_the_second_block_and_fences_nobody(
    producer: TransactionalProducer, bootstrap: str, out: str
) -> None:
    outcomes: list[str] = []
    begins, refused = threading.Barrier(4), threading.Barrier(4)

    def write(name: bytes) -> None:
        for number in range(25):
            begins.wait(PATIENCE_S)
            try:
                with producer.transaction() as txn:
                    txn.produce(out, b"%s %d" % (name, number))
                    if number == 0:  # the other rounds are left to chance
                        refused.wait(PATIENCE_S)
            except UsageError as error:
                if number == 0:
                    refused.wait(PATIENCE_S)
                outcomes.append(
                    "refused" if "in several threads a producer for each" in str(error) else repr(error)
                )
            except EosError as error:
                outcomes.append(repr(error))
            else:
                outcomes.append(f"{name.decode()} {number}")

    threads = [threading.Thread(target=write, args=(b"t%d" % n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    written = sorted(one for one in outcomes if one != "refused")
    assert sorted((record.value or b"").decode() for record in read_committed(bootstrap, out)) == written
    assert len(outcomes) == 100
    assert "refused" in outcomes
