"""Positions behind control records and aborted records are committed while the job is idle.

Else input that ends in an aborted transaction, and then expires, looks as if it had been deleted unprocessed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from eos import Partition, Session
from eos.events import Event, PartitionsAssigned, Sampled, TransactionCommitted
from eos.settings import Settings
from tests.support.jobs_for_faults import (
    FaultJob,
    Running,
    fault_job,
    in_process,
    in_thread,
    run_to_end,
    settings_for,
)
from tests.support.observer import (
    PlainRecord,
    committed_offsets,
    produce_plain,
    read_committed,
    unique,
    watermarks,
)
from tests.support.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.broker

MODES = pytest.mark.parametrize("mode", ["group", "partition"])


def by(mode: str, job: FaultJob) -> dict[str, Any]:
    if mode == "group":
        return {}
    return {
        "ownership__mode": mode,
        "ownership__partitions": tuple(f"{job.inputs[0]}:{number}" for number in range(2)),
    }


def settings_by(mode: str, bootstrap: str, job: FaultJob, **changes: object) -> Settings:
    return settings_for(bootstrap, **by(mode, job), **changes)


def two_partitions(bootstrap: str) -> FaultJob:
    """Both hold five records."""
    job = fault_job(bootstrap, partitions=2)
    produce_plain(bootstrap, job.inputs[0], [PlainRecord(b"v%d" % n, partition=n % 2) for n in range(10)])
    return job


def abort_once_all_is_committed(bootstrap: str, job: FaultJob) -> None:
    """The first partition then ends in three aborted records and their marker, and nothing comes behind them."""
    _until(lambda: committed(bootstrap, job) == [5, 5])
    _abort(_writer(bootstrap), job.inputs[0])


def _writer(bootstrap: str) -> Producer:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": unique("writer"), "log_level": 0}
    )
    producer.init_transactions(PATIENCE_S)
    return producer


def _abort(producer: Producer, topic: str) -> None:
    producer.begin_transaction()
    for value in (b"one", b"two", b"three"):
        producer.produce(topic, value, partition=0)
    producer.flush(PATIENCE_S)
    producer.abort_transaction(PATIENCE_S)


def committed(bootstrap: str, job: FaultJob) -> list[int | None]:
    partitions = [(job.inputs[0], number) for number in range(2)]
    return [offset for offset, _ in committed_offsets(bootstrap, job.group, partitions).values()]


def expire(bootstrap: str, topic: str) -> None:
    """As retention does once the segments are old enough."""
    marks = watermarks(bootstrap, topic)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.delete_records(
        [TopicPartition(topic, number, high) for number, (_, high) in marks.items()]
    ).values():
        done.result(PATIENCE_S)
    assert all(low == high > 0 for low, high in watermarks(bootstrap, topic).values())


def go_on_after_everything_has_expired(mode: str, bootstrap: str, job: FaultJob) -> None:
    """A start that finds a gap ends with an error."""
    before = len(read_committed(bootstrap, job.out))
    expire(bootstrap, job.inputs[0])
    produce_plain(bootstrap, job.inputs[0], [PlainRecord(b"new", partition=n) for n in range(2)])
    run_to_end(job, settings_by(mode, bootstrap, job, input__start="fail"))
    assert len(read_committed(bootstrap, job.out)) == before + 2


@MODES
def test_idle_job_that_is_killed_leaves_no_gap_when_its_input_expires(bootstrap: str, mode: str) -> None:
    job = two_partitions(bootstrap)
    with in_process(job, bootstrap, **by(mode, job)) as child:
        abort_once_all_is_committed(bootstrap, job)
        _until(lambda: committed(bootstrap, job) == [9, 5])
        child.kill()
    go_on_after_everything_has_expired(mode, bootstrap, job)


@MODES
def test_job_that_is_stopped_at_once_leaves_no_gap_when_its_input_expires(bootstrap: str, mode: str) -> None:
    job = two_partitions(bootstrap)
    with in_thread(job, settings_by(mode, bootstrap, job)) as run:
        abort_once_all_is_committed(bootstrap, job)
        turns = _turns_of(run)
        _until(lambda: len(turns) > 5)  # a fetch gets the marker as soon as it is there
        run.stop()
    assert committed(bootstrap, job) == [9, 5]
    go_on_after_everything_has_expired(mode, bootstrap, job)


def _turns_of(run: Running) -> list[Event]:
    turns: list[Event] = []

    def keep(event: Event) -> None:
        if isinstance(event, Sampled):
            turns.append(event)

    run.also(keep)
    return turns


@pytest.mark.slow
def test_writer_of_many_aborted_transactions_costs_few_commits(bootstrap: str) -> None:
    job = fault_job(bootstrap, partitions=2)
    writer = _writer(bootstrap)
    with in_thread(job, settings_for(bootstrap)) as run:
        run.told(PartitionsAssigned)
        began = time.monotonic()
        for _ in range(20):
            _abort(writer, job.inputs[0])
            time.sleep(0.3)
        took_s = time.monotonic() - began
        _until(lambda: committed(bootstrap, job)[0] == 80)
    commits = [event for event in run.events if isinstance(event, TransactionCommitted)]
    assert sum(event.records_in for event in commits) == 0
    assert 1 <= len(commits) <= took_s / 5 + 3


def test_loop_of_ones_own_commits_them_too(bootstrap: str) -> None:
    job = two_partitions(bootstrap)
    settings = settings_for(bootstrap, group=job.group)
    deadline = time.monotonic() + PATIENCE_S
    with Session(settings, app="relay", inputs=job.inputs, outputs=[job.out]) as session:

        def relay() -> None:
            assert time.monotonic() < deadline
            if batch := session.fetch(100, 0.2):
                with session.transaction(batch) as txn:
                    for record in batch:
                        txn.produce(job.out, record.value)

        while session.committed_offsets != {Partition(job.inputs[0], n): 5 for n in range(2)}:
            relay()
        abort_once_all_is_committed(bootstrap, job)
        while session.committed_offsets.get(Partition(job.inputs[0], 0)) != 9:
            relay()
    assert committed(bootstrap, job) == [9, 5]
    assert len(read_committed(bootstrap, job.out)) == 10


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
