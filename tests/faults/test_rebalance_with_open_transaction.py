"""Partitions that leave in the middle of a transaction: its output and its offsets go together or not at all.

Kafka accepts offsets of a partition that another live member owns, so no fence catches a loop that goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from eos.events import (
    Event,
    PartitionsAssigned,
    PartitionsRevoked,
    Rewound,
    Sampled,
    TransactionCommitted,
    TransactionEnded,
)
from eos.exits import ExitCode
from eos.offsets import Partition
from eos.testing.proxy.frames import ApiKey
from eos.testing.proxy.hold_proxy import HoldProxy
from tests.support.jobs_for_faults import FaultJob, Running, fault_job, in_process, in_thread, settings_for
from tests.support.observer import (
    PlainRecord,
    produce_plain,
    read_committed,
    read_uncommitted,
    unique,
)
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker

# Of these transactions none is to end by its time.
LONG: dict[str, Any] = {"transaction__interval_ms": 50_000, "transaction__timeout_ms": 120_000}
PROTOCOLS = ["cooperative", pytest.param("consumer", marks=pytest.mark.slow)]


def wait_until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def produced(bootstrap: str, job: FaultJob, count: int) -> Callable[[], bool]:
    return lambda: len(read_uncommitted(bootstrap, job.audit)) >= count


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_partitions_revoked_with_their_output_produced_are_exact(bootstrap: str, protocol: str) -> None:
    """The revoke ends the transaction, with the offsets of what leaves, before the next owner begins."""
    job = fault_job(bootstrap, partitions=4)
    changes: dict[str, Any] = {
        "ownership__protocol": protocol,
        "ownership__static_membership": False,
        **LONG,
    }
    with in_thread(job, settings_for(bootstrap, **changes)) as first:
        first.told(PartitionsAssigned)
        job.load(bootstrap, 400, "a", range(4))
        wait_until(produced(bootstrap, job, 400))
        with in_thread(job, settings_for(bootstrap, ownership__ordinal=1, **changes)) as second:
            (revoked,) = first.told(PartitionsRevoked)
            assert not revoked.lost
            assert len(revoked.partitions) == 2
            (commit,) = [e for e in first.events if isinstance(e, TransactionCommitted)]
            assert commit.records_in == 400
            assert commit.seconds < LONG["transaction__interval_ms"] / 2000
            assert set(revoked.partitions) < set(commit.offsets)
            wait_until(lambda: owned(second) == set(revoked.partitions))
            job.load(bootstrap, 400, "b", range(4))
            wait_until(produced(bootstrap, job, 800))
            second.stop()
        first.stop()
    assert job.check(bootstrap).processed == 800


@pytest.mark.slow
def test_partitions_lost_inside_a_rebalance_are_reported_as_revoked_and_nothing_is_committed(
    bootstrap: str,
) -> None:
    """librdkafka 5604: the second member's rebalance is under way when the first one's max.poll.interval.ms has passed.

    Its revoke callback comes as in an orderly rebalance, when another member has the partitions already. What it commits there
    carries a generation and no member, which the coordinator refuses.
    """
    job = fault_job(bootstrap, partitions=4)
    changes: dict[str, Any] = {
        "ownership__static_membership": False,
        "ownership__session_timeout_ms": 6_000,
        "ownership__max_poll_interval_ms": 6_000,
        "transaction__timeout_ms": 6_000,
        "transaction__interval_ms": 3_000,
    }
    stands_still = threading.Event()

    def stand_still(event: Event) -> None:
        if isinstance(event, Sampled) and stands_still.is_set():
            time.sleep(10)
            stands_still.clear()

    with in_thread(job, settings_for(bootstrap, **changes)) as first:
        first.told(PartitionsAssigned)
        first.also(stand_still)
        job.load(bootstrap, 400, "a", range(4))
        wait_until(produced(bootstrap, job, 400))
        stands_still.set()
        with in_thread(job, settings_for(bootstrap, ownership__ordinal=1, **changes)) as second:
            revoked = first.told(PartitionsRevoked)[0]
            assert not revoked.lost, "reported as what it is: is the workaround needed any more?"
            assert not first.committed_records
            wait_until(lambda: first.committed_records + second.committed_records >= 400)
            job.load(bootstrap, 400, "b", range(4))
            wait_until(lambda: first.committed_records + second.committed_records >= 800)
            second.stop()
        first.stop()
    assert job.check(bootstrap).processed == 800


def owned(run: Running) -> set[Partition]:
    held: set[Partition] = set()
    for event in run.events:
        if isinstance(event, PartitionsAssigned):
            held |= set(event.positions)
        elif isinstance(event, PartitionsRevoked):
            held -= set(event.partitions)
    return held


@pytest.mark.parametrize("own_loop", [False, True], ids=["eos.run", "own loop"])
def test_commit_that_fails_while_partitions_come_is_done_again(
    bootstrap: str, proxy: HoldProxy, *, own_loop: bool
) -> None:
    """The generation moves on under a commit in flight, and the callback of the rebalance finds it failed.

    Its input must be read again, although nothing was revoked and no fetch has failed.
    """
    job = fault_job(bootstrap, own_loop=own_loop)
    source = job.inputs[0]
    with in_thread(job, settings_for(proxy.bootstrap_servers)) as run:
        run.told(PartitionsAssigned)
        member = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": job.group,
                "enable.auto.commit": False,
                "partition.assignment.strategy": "cooperative-sticky",
                "log_level": 0,
            }
        )
        member.subscribe([source])
        wait_until(lambda: member.poll(0.1) is None and member.assignment())
        (theirs,) = [p.partition for p in member.assignment()]
        run.told(PartitionsRevoked)
        assigned = len(run.told(PartitionsAssigned))
        held = proxy.hold(ApiKey.TXN_OFFSET_COMMIT)
        job.load(bootstrap, 10, "a", [1 - theirs])
        held.wait_held(PATIENCE_S)
        synced = len(proxy.requests(ApiKey.SYNC_GROUP))
        member.close()
        # Behind the next sync there is a new generation, and the held offsets are of the old one.
        wait_until(lambda: len(proxy.requests(ApiKey.SYNC_GROUP)) > synced)
        time.sleep(0.5)
        held.release()
        assert run.told(TransactionEnded)[0].outcome == "aborted"
        run.told(PartitionsAssigned, count=assigned + 1)
        job.load(bootstrap, 10, "b")
        wait_until(lambda: sum(e.records_in for e in run.told(TransactionCommitted)) == 20)
        run.stop()
    assert [event for event in run.events if isinstance(event, Rewound)]
    assert job.check(bootstrap).processed == 20


def test_owner_paused_beyond_its_session_does_no_harm_when_it_wakes_up(bootstrap: str) -> None:
    """Lost, not revoked: another member has the partitions and has gone on; the sleeper's output is aborted."""
    job = fault_job(bootstrap)
    changes: dict[str, Any] = {
        "ownership__static_membership": False,
        "ownership__session_timeout_ms": 6_000,
    }
    with in_process(job, bootstrap, **LONG, **changes) as sleeper:
        sleeper.wait_line(r"PartitionsAssigned.*\[", PATIENCE_S)
        job.load(bootstrap, 200, "a")
        wait_until(produced(bootstrap, job, 200))
        sleeper.pause()
        with in_thread(job, settings_for(bootstrap, ownership__ordinal=1, **changes)) as heir:
            heir.told(PartitionsAssigned)
            wait_until(lambda: len(owned(heir)) == 2)
            job.load(bootstrap, 200, "b")
            wait_until(lambda: sum(e.records_in for e in heir.told(TransactionCommitted)) == 400)
            sleeper.resume()
            sleeper.wait_line("lost=True", PATIENCE_S)
            sleeper.wait_line("TransactionEnded.*'aborted'", PATIENCE_S)
            job.load(bootstrap, 200, "c")
            sleeper.wait_line(r"PartitionsAssigned.*\[", PATIENCE_S, after=len(sleeper.lines) - 2)
            sleeper.terminate()
            assert sleeper.wait(PATIENCE_S) == 0
            wait_until(lambda: len(owned(heir)) == 2)
            wait_until(produced(bootstrap, job, 800))
            heir.stop()
    assert job.check(bootstrap).processed == 600


@pytest.mark.slow
def test_owner_paused_beyond_its_transaction_too_ends_or_goes_on_but_repeats_nothing(bootstrap: str) -> None:
    """Its fence proves nothing then; the committed offsets do: other owners have moved them on."""
    job = fault_job(bootstrap)
    changes: dict[str, Any] = {
        "ownership__static_membership": False,
        "ownership__session_timeout_ms": 6_000,
        "transaction__timeout_ms": 6_000,
        "transaction__interval_ms": 1_000,
    }
    with in_process(job, bootstrap, **changes) as sleeper:
        sleeper.wait_line(r"PartitionsAssigned.*\[", PATIENCE_S)
        job.load(bootstrap, 200, "a")
        wait_until(produced(bootstrap, job, 200))
        sleeper.pause()
        with in_thread(job, settings_for(bootstrap, ownership__ordinal=1, **changes)) as heir:
            wait_until(lambda: len(owned(heir)) == 2)
            job.load(bootstrap, 200, "b")
            wait_until(lambda: sum(e.records_in for e in heir.told(TransactionCommitted)) == 400)
            sleeper.resume()
            sleeper.wait_line("SessionClosed|lost=True", PATIENCE_S)
            job.load(bootstrap, 200, "c")
            time.sleep(3)
            sleeper.terminate()
            assert sleeper.wait(PATIENCE_S) in (ExitCode.DONE, ExitCode.FENCED)
            wait_until(lambda: len(owned(heir)) == 2)
            wait_until(produced(bootstrap, job, 800))
            heir.stop()
    assert job.check(bootstrap).processed == 600


def test_naive_loop_that_commits_only_what_it_still_owns_writes_duplicates(bootstrap: str) -> None:
    """Why the revoke must end the transaction: the same accident without it, and without any error."""
    job = fault_job(bootstrap)
    source, group = job.inputs[0], unique("naive")
    produce_plain(bootstrap, source, [PlainRecord(b"%d" % i, partition=i % 2) for i in range(20)])
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "partition.assignment.strategy": "cooperative-sticky",
        "log_level": 0,
    }
    first, second = Consumer(config), Consumer(config)
    producers = [_transactional(bootstrap) for _ in range(2)]
    try:
        first.subscribe([source])
        _copy(first, producers[0], job.out, 20)
        second.subscribe([source])
        wait_until(lambda: first.poll(0.1) is None and second.poll(0.1) is None and second.assignment())
        _commit(first, producers[0])
        _copy(second, producers[1], job.out, 10)
        _commit(second, producers[1])
    finally:
        first.close()
        second.close()
    values = [record.value for record in read_committed(bootstrap, job.out)]
    assert len(values) == 30
    assert len(set(values)) == 20


def _transactional(bootstrap: str) -> Producer:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": unique("naive"), "log_level": 0})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    return producer


def _copy(consumer: Consumer, producer: Producer, topic: str, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while count:
        assert time.monotonic() < deadline
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            producer.produce(topic, message.value())
            count -= 1


def _commit(consumer: Consumer, producer: Producer) -> None:
    owned_now: list[TopicPartition] = consumer.position(consumer.assignment())
    known = [position for position in owned_now if position.offset >= 0]
    producer.send_offsets_to_transaction(known, consumer.consumer_group_metadata(), PATIENCE_S)
    producer.commit_transaction(PATIENCE_S)
