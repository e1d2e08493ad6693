"""--until-caught-up: all that the input held at the beginning, also behind a transaction that is open then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from eos.errors import FencedError, UnavailableError
from eos.offsets import OffsetVector, Partition
from eos.settings import Settings
from eos.watches.catch_up import CatchUp
from tests.support.jobs_for_faults import FaultJob, Running, fault_job, run_to_end, settings_for
from tests.support.observer import (
    PlainRecord,
    committed_offsets,
    lso,
    produce_plain,
    read_committed,
    unique,
    watermarks,
)
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker

MODES = pytest.mark.parametrize("mode", ["group", "partition"])


@contextmanager
def writer(bootstrap: str, topic: str, values: list[bytes]) -> Iterator[Producer]:
    """Another application's transaction, open with these values in partition 0."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": unique("writer"), "log_level": 0}
    )
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    producer.flush(PATIENCE_S)
    try:
        yield producer
    finally:
        if values:  # what a test has not ended
            producer.abort_transaction(PATIENCE_S)


def some(prefix: str, count: int) -> list[PlainRecord]:
    return [PlainRecord(b"%s%d" % (prefix.encode(), n), partition=0) for n in range(count)]


def settings_of(bootstrap: str, job: FaultJob, mode: str, **changes: object) -> Settings:
    if mode == "partition":
        changes |= {"ownership__mode": mode, "ownership__partitions": (f"{job.inputs[0]}:0",)}
    return settings_for(bootstrap, **changes)


def committed(bootstrap: str, job: FaultJob) -> int | None:
    return committed_offsets(bootstrap, job.group, [(job.inputs[0], 0)])[job.inputs[0], 0][0]


@MODES
def test_records_behind_a_transaction_that_stays_open_are_not_called_done(bootstrap: str, mode: str) -> None:
    job = fault_job(bootstrap, partitions=1)
    source = job.inputs[0]
    produce_plain(bootstrap, source, some("before", 5))
    settings = settings_of(bootstrap, job, mode, input__held_back_deadline_ms=6_000)
    with writer(bootstrap, source, [b"open"]):
        produce_plain(bootstrap, source, some("behind", 100))
        assert (lso(bootstrap, source)[0], watermarks(bootstrap, source)[0][1]) == (5, 106)
        began = time.monotonic()
        with pytest.raises(
            UnavailableError, match=rf"{source}\[0\]: 101 offsets are held back.* stood at 5 "
        ):
            run_to_end(job, settings)
        assert time.monotonic() - began >= 6
        assert committed(bootstrap, job) == 5
    run_to_end(job, settings_of(bootstrap, job, mode, input__start="fail"))
    assert job.check(bootstrap).processed == 105


@MODES
@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_transaction_that_ends_in_time_is_waited_for(bootstrap: str, mode: str, end: str) -> None:
    job = fault_job(bootstrap, partitions=1)
    source = job.inputs[0]
    produce_plain(bootstrap, source, some("before", 5))
    values = [b"open"]
    with writer(bootstrap, source, values) as producer:
        produce_plain(bootstrap, source, some("behind", 100))
        run = Running(job.job(), settings_of(bootstrap, job, mode), until_caught_up=True)
        _until(lambda: committed(bootstrap, job) == 5, run)
        time.sleep(1)  # it would have ended by now
        getattr(producer, end)(PATIENCE_S)
        values.clear()
    run.wait(PATIENCE_S)
    assert job.check(bootstrap).processed == (106 if end == "commit_transaction" else 105)
    assert committed(bootstrap, job) == watermarks(bootstrap, source)[0][1]


@MODES
def test_input_that_ends_in_an_aborted_transaction_is_processed_to_its_end(bootstrap: str, mode: str) -> None:
    job = fault_job(bootstrap, partitions=1)
    source = job.inputs[0]
    produce_plain(bootstrap, source, some("before", 5))
    _abort(bootstrap, source)
    run_to_end(job, settings_of(bootstrap, job, mode))
    assert job.check(bootstrap).processed == 5
    assert committed(bootstrap, job) == watermarks(bootstrap, source)[0][1] == 9


@MODES
def test_input_of_aborted_records_alone_is_processed_to_its_end(bootstrap: str, mode: str) -> None:
    job = fault_job(bootstrap, partitions=1)
    _abort(bootstrap, job.inputs[0])
    run_to_end(job, settings_of(bootstrap, job, mode))
    assert committed(bootstrap, job) == watermarks(bootstrap, job.inputs[0])[0][1] == 4
    assert read_committed(bootstrap, *job.outputs) == []


def _abort(bootstrap: str, topic: str) -> None:
    with writer(bootstrap, topic, [b"one", b"two", b"three"]):
        pass


def _until(condition: Callable[[], bool], run: Running) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert run.error is None
        assert time.monotonic() < deadline, run.events[-5:]
        time.sleep(0.1)


def test_offset_that_is_set_back_from_outside_is_not_waited_for_without_end(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop has read on from its own commit, and would commit nothing there any more."""
    monkeypatch.setattr("eos.watches.catch_up._SET_BACK_S", 0.5)
    job = fault_job(bootstrap, partitions=1)
    (source,) = job.inputs
    produce_plain(bootstrap, source, some("v", 10))
    outside = Consumer({"bootstrap.servers": bootstrap, "group.id": job.group, "log_level": 0})
    outside.commit(offsets=[TopicPartition(source, 0, 0)], asynchronous=False)
    outside.close()
    deadline = time.monotonic() + PATIENCE_S
    with (
        closing(CatchUp(settings_for(bootstrap), job.group, job.inputs)) as catch_up,
        pytest.raises(
            FencedError, match=rf"{source}\[0\]: the group has stored offset 0, .* committed 10.*Fix: "
        ),
    ):
        while time.monotonic() < deadline:
            assert not catch_up.reached(OffsetVector({Partition(source, 0): 10}))
            time.sleep(0.1)
