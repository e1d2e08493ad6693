"""A partition whose fetches fail for ever while all others are well: it is named, counted, and ends the job in time."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer

from eos.errors import UnavailableError
from eos.events import CallRetried, PartitionsAssigned, PartitionStalled, TransactionCommitted
from eos.exits import ExitCode
from eos.offsets import Partition
from eos.testing.proxy.hold_proxy import ApiKey, Frame, HoldProxy
from tests.support.jobs_for_faults import (
    Running,
    fault_job,
    in_process,
    in_thread,
    run_to_end,
    settings_for,
)
from tests.support.observer import committed_offsets, unique, watermarks
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker

UNKNOWN = -1  # UNKNOWN_SERVER_ERROR: librdkafka passes it on as an event
KAFKA_STORAGE_ERROR = 56  # librdkafka passes on nothing
LIMIT_MS = 8_000  # what the other partition brings has to fit in
OUTLIVED_MS = 5_000
OUTLIVES_S = 8.0
ALWAYS = 10**9


class FailingFetches:
    """Answers every fetch of one partition with an error, from the moment that ``error`` is set."""

    def __init__(self, proxy: HoldProxy, partition: int) -> None:
        self.error = 0
        self._partition = partition
        proxy.edit_reply(ApiKey.FETCH, self._edit, times=ALWAYS)

    def _edit(self, frame: Frame, answer: bytes) -> bytes:
        return frame.with_fetch_error(answer, self._partition, self.error) if self.error else answer


@contextmanager
def foreign_transaction(bootstrap: str, topic: str, partition: int) -> Iterator[Producer]:
    """Someone else's transaction, with 50 records that are on the broker."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": unique("foreign"), "log_level": 0}
    )
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for i in range(50):
        producer.produce(topic, b"foreign %d" % i, partition=partition)
    producer.flush(PATIENCE_S)
    yield producer


@pytest.mark.parametrize(
    ("mode", "error"),
    [
        ("group", KAFKA_STORAGE_ERROR),
        ("partition", UNKNOWN),
        pytest.param("group", UNKNOWN, marks=pytest.mark.slow),
        pytest.param("partition", KAFKA_STORAGE_ERROR, marks=pytest.mark.slow),
    ],
)
def test_partition_whose_fetches_fail_for_ever_is_named_and_ends_the_job(
    bootstrap: str, proxy: HoldProxy, mode: str, error: int
) -> None:
    """What the other partition brings is processed meanwhile."""
    job = fault_job(bootstrap)
    source = job.inputs[0]
    owned: dict[str, object] = {"ownership__mode": mode, "ownership__ordinal": 0}
    if mode == "partition":
        owned["ownership__instances"] = 1
    settings = settings_for(
        proxy.bootstrap_servers,
        input__stall_timeout_ms=LIMIT_MS,
        ownership__static_membership=False,
        **owned,
    )
    job.load(bootstrap, 50, "v", [1])
    fetches = FailingFetches(proxy, 1)
    with in_thread(job, settings) as run:
        run.wait_for_commits(50)
        fetches.error = error
        job.load(bootstrap, 50, "v", [0])
        job.load(bootstrap, 50, "v", [1])
        with pytest.raises(
            UnavailableError, match=rf"{re.escape(source)}\[1\] has brought no record for at least 8 s"
        ):
            run.wait()
        stalls = [event for event in run.events if isinstance(event, PartitionStalled)]
        assert {stall.partition for stall in stalls} == {Partition(source, 1)}
        assert (stalls[-1].position, stalls[-1].lso) == (50, 100)
        if error == UNKNOWN:
            assert any(isinstance(event, CallRetried) and event.call == "consume" for event in run.events)
            assert "Unknown broker error" in stalls[-1].error
    offsets = committed_offsets(bootstrap, job.group, [(source, 0), (source, 1)])
    assert [offset for offset, _ in offsets.values()] == [50, 50]
    fetches.error = 0
    run_to_end(job, settings)
    assert job.check(bootstrap).processed == 150


def test_stalled_partition_ends_the_workers_as_unavailable(bootstrap: str, proxy: HoldProxy) -> None:
    job = fault_job(bootstrap)
    job.load(bootstrap, 50, "v", [1])
    FailingFetches(proxy, 1).error = KAFKA_STORAGE_ERROR
    with in_process(job, proxy.bootstrap_servers, kind="workers", input__stall_timeout_ms=LIMIT_MS) as child:
        assert child.wait(PATIENCE_S) == ExitCode.UNAVAILABLE
        assert any(f"{job.inputs[0]}[1] has brought no record" in line for line in child.lines)


@pytest.mark.slow
def test_stall_that_passes_is_told_and_ends_nothing(bootstrap: str, proxy: HoldProxy) -> None:
    job = fault_job(bootstrap)
    job.load(bootstrap, 50, "v", [1])
    fetches = FailingFetches(proxy, 1)
    fetches.error = UNKNOWN
    settings = settings_for(proxy.bootstrap_servers, input__stall_timeout_ms=10_000)
    with in_thread(job, settings) as run:
        run.told(PartitionStalled)
        fetches.error = 0
        run.told(TransactionCommitted)
        deadline = time.monotonic() + PATIENCE_S
        while run.told(PartitionStalled)[-1].seconds:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        run.stop()
    assert job.check(bootstrap).processed == 50


def test_partition_that_another_transaction_holds_back_is_not_stalled(bootstrap: str) -> None:
    """Its last stable offset is where the job stands; what an abort leaves behind it moves over."""
    job = fault_job(bootstrap)
    source = job.inputs[0]
    job.load(bootstrap, 50, "v", [1])
    settings = settings_for(bootstrap, input__stall_timeout_ms=OUTLIVED_MS)
    with in_thread(job, settings) as run:
        run.wait_for_commits(50)
        with foreign_transaction(bootstrap, source, 1) as producer:
            assert watermarks(bootstrap, source)[1][1] == 100
            outlive(run)
            producer.abort_transaction(PATIENCE_S)
        outlive(run)
        job.load(bootstrap, 50, "v", [1])
        run.wait_for_commits(100)
        assert not [event for event in run.events if isinstance(event, PartitionStalled)]
        run.stop()
    assert job.check(bootstrap).processed == 100


def test_partition_that_begins_with_aborted_records_is_not_stalled(bootstrap: str) -> None:
    """Nothing was ever read from it, so it has no position; its fetches got to its end."""
    job = fault_job(bootstrap)
    with foreign_transaction(bootstrap, job.inputs[0], 1) as producer:
        producer.abort_transaction(PATIENCE_S)
    with in_thread(job, settings_for(bootstrap, input__stall_timeout_ms=OUTLIVED_MS)) as run:
        run.told(PartitionsAssigned)
        outlive(run)
        assert not [event for event in run.events if isinstance(event, PartitionStalled)]
        run.stop()


@pytest.mark.slow
def test_partition_behind_a_backlog_of_another_is_not_stalled(bootstrap: str) -> None:
    """What waits in the consumer's queue brings nothing, and its fetches are well."""
    job = fault_job(bootstrap, pause_ms=4)
    job.load(bootstrap, 3_000, "v", [0])
    settings = settings_for(bootstrap, input__stall_timeout_ms=OUTLIVED_MS, input__fetch_records=50)
    with in_thread(job, settings) as run:
        run.wait_for_commits(100)
        job.load(bootstrap, 50, "v", [1])
        run.wait_for_commits(3_050)
        assert not [event for event in run.events if isinstance(event, PartitionStalled)]
        run.stop()
    assert job.check(bootstrap).processed == 3_050


def test_paused_worker_is_not_stalled(bootstrap: str) -> None:
    """Its clock went on; its fetches had no time."""
    job = fault_job(bootstrap)
    job.load(bootstrap, 50, "v", [1])
    with in_process(
        job, bootstrap, input__stall_timeout_ms=OUTLIVED_MS, ownership__session_timeout_ms=60_000
    ) as child:
        child.wait_line("TransactionCommitted", PATIENCE_S)
        for _ in range(2):
            child.pause()
            job.load(bootstrap, 50, "v", [1])
            time.sleep(OUTLIVES_S)
            child.resume()
            child.wait_line("TransactionCommitted", PATIENCE_S, after=len(child.lines))
        assert not any("PartitionStalled" in line for line in child.lines)
        child.terminate()
        assert child.wait(PATIENCE_S) == ExitCode.DONE


def outlive(run: Running) -> None:
    """The job runs on for longer than the limit."""
    with pytest.raises(TimeoutError):
        run.wait(OUTLIVES_S)
