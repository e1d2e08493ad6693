"""A record that ends the process each time it is transformed: the job gets past it, and no other record pays for it."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import pytest
from confluent_kafka import Producer

import eos
from eos.base.deadline import Deadline
from eos.errors import TransformError
from eos.events import RecordDeadLettered, TransactionCommitted
from eos.exits import ExitCode
from eos.group.metadata import OffsetMetadata, OwnershipMode
from tests.support.jobs_for_faults import FaultJob, fault_job, in_process, in_thread, run_to_end, settings_for
from tests.support.observer import PlainRecord, committed_offsets, produce_plain, read_committed, unique
from tests.support.offset_ages import store
from tests.support.patience import PATIENCE_S
from tests.support.process_ends import MARK
from tests.support.processes import Child

pytestmark = pytest.mark.broker

WAIT_S = 240.0  # for many starts of a process behind each other
QUICKLY: dict[str, Any] = {"workers__restart_backoff_ms": 1, "poison__policy": "dead-letter"}
OWNERSHIPS: dict[str, dict[str, Any]] = {
    "group": {},
    "partition": {"ownership__mode": "partition", "ownership__ordinal": 0, "ownership__instances": 1},
}


def load(bootstrap: str, job: FaultJob, count: int, deadly: bytes, *, at: int) -> None:
    """Records in two partitions; one in the middle of partition 0 ends the process."""
    records = [PlainRecord(f"v{i}".encode(), f"k{i}".encode(), partition=i % 2) for i in range(count)]
    records[at] = PlainRecord(MARK + deadly, b"deadly", partition=0)
    produce_plain(bootstrap, job.inputs[0], records)


def abort_records(bootstrap: str, topic: str, partition: int) -> None:
    """So that the partition's first readable record stands behind a gap."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": unique("writer"), "log_level": 0}
    )
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, b"aborted", partition=partition)
    producer.flush(PATIENCE_S)
    producer.abort_transaction(PATIENCE_S)


def letters(bootstrap: str, job: FaultJob) -> list[tuple[bytes | None, dict[str, bytes | None]]]:
    return [(one.value, dict(one.headers)) for one in read_committed(bootstrap, job.dead)]


def attempts(bootstrap: str, job: FaultJob) -> list[int]:
    """Of partitions 0 and 1, as the committed offsets say it."""
    stored = committed_offsets(bootstrap, job.group, [(job.inputs[0], 0), (job.inputs[0], 1)])
    parsed = [OffsetMetadata.parse(metadata or "") for _, metadata in stored.values()]
    return [one.attempt for one in parsed if one is not None]


def workers(child: Child) -> set[int]:
    return {int(line.split()[1]) for line in child.lines if "PartitionsAssigned(" in line}


@pytest.mark.parametrize(
    ("deadly", "ownership"),
    [
        (b"SIGKILL", "group"),
        pytest.param(b"SIGKILL", "partition", marks=pytest.mark.slow),
        pytest.param(b"segfault", "partition", marks=pytest.mark.slow),
        pytest.param(b"segfault", "group", marks=pytest.mark.slow),
        pytest.param(b"endless loop", "group", marks=pytest.mark.slow),
        pytest.param(b"endless loop", "partition", marks=pytest.mark.slow),
        pytest.param(b"endless loop in C", "group", marks=pytest.mark.slow),
        pytest.param(b"endless loop in C", "partition", marks=pytest.mark.slow),
    ],
)
def test_record_that_ends_the_process_is_dead_lettered_once_and_every_other_one_processed_once(
    bootstrap: str, deadly: bytes, ownership: str
) -> None:
    job = fault_job(bootstrap)
    load(bootstrap, job, 200, deadly, at=120)
    with in_process(
        job,
        bootstrap,
        kind="workers",
        until_caught_up=True,
        poison__transform_timeout_ms=4_000,
        **QUICKLY,
        **OWNERSHIPS[ownership],
    ) as child:
        assert child.wait(WAIT_S) == ExitCode.DONE, child.lines
        restarts = sum("Restarted(" in line for line in child.lines)
    # Three alone with the record, and before those at least one as ever, one announced, one with a few.
    assert 5 <= restarts <= 8
    assert job.check(bootstrap).processed == 200
    ((value, headers),) = letters(bootstrap, job)
    assert value == MARK + deadly
    assert headers["eos.deadletter.offset"] == b"60"
    error = headers["eos.deadletter.error"] or b""
    assert error.startswith(b"ProcessDiedError: ")
    assert b"3 processes in a row died" in error
    assert attempts(bootstrap, job) == [0, 0]

    report = eos.verify(job.job(), settings_for(bootstrap, poison__policy="dead-letter"))
    assert report.exactly_once, report.rows()
    assert any("processes died with them" in note for note in report.notes)


@pytest.mark.slow
def test_batch_function_that_dies_with_a_record_is_given_the_records_one_by_one(bootstrap: str) -> None:
    job = fault_job(bootstrap, batch=True)
    load(bootstrap, job, 1_000, b"segfault", at=500)
    with in_process(job, bootstrap, kind="workers", until_caught_up=True, **QUICKLY) as child:
        assert child.wait(WAIT_S) == ExitCode.DONE
    assert job.check(bootstrap).processed == 1_000
    assert [value for value, _ in letters(bootstrap, job)] == [MARK + b"segfault"]


@pytest.mark.slow
def test_job_that_stops_at_poison_names_the_record_that_ends_the_process_and_goes_on_when_it_is_mended(
    bootstrap: str,
) -> None:
    job = fault_job(bootstrap)
    load(bootstrap, job, 100, b"SIGKILL", at=50)
    said = ""
    for _ in range(2):  # the second start knows it without another death
        with in_process(
            job, bootstrap, kind="workers", until_caught_up=True, workers__restart_backoff_ms=1
        ) as child:
            assert child.wait(WAIT_S) == ExitCode.POISON
            said = "\n".join(child.lines)
        assert f"{job.inputs[0]}[0] offset 25: 3 processes in a row died" in said
        assert "poison.max_deaths = 0" in said
    assert "Restarted(" not in said
    assert job.check(bootstrap).processed >= 25
    # The record is mended: here, it ends this process no more, because the policy skips it.
    events = run_to_end(job, settings_for(bootstrap, poison__policy="skip"))
    assert [event.offset for event in events if isinstance(event, RecordDeadLettered)] == [25]
    assert job.check(bootstrap).processed == 100


@pytest.mark.slow
def test_records_in_work_beside_a_deadly_one_are_not_taken_for_its_like(bootstrap: str) -> None:
    """A transform takes so long that the other partition's thread has a record in work whenever the process dies."""
    job = fault_job(bootstrap)
    slow, deadly = (MARK + way for way in (b"takes 6 s", b"SIGKILL"))
    produce_plain(
        bootstrap, job.inputs[0], [PlainRecord(deadly, partition=0), PlainRecord(slow, partition=1)]
    )
    with in_process(
        job, bootstrap, kind="workers", until_caught_up=True, **QUICKLY, **OWNERSHIPS["partition"]
    ) as child:
        assert child.wait(WAIT_S) == ExitCode.DONE
    assert job.check(bootstrap).processed == 2
    assert [value for value, _ in letters(bootstrap, job)] == [MARK + b"SIGKILL"]


@pytest.mark.slow
def test_death_of_whole_instances_is_found_by_others(bootstrap: str) -> None:
    """No supervisor sees them die, and each has another ordinal: what is committed is all that they share."""
    job = fault_job(bootstrap)
    load(bootstrap, job, 20, b"SIGKILL", at=10)
    store(bootstrap, job, {0: 0, 1: 0}, days_ago=2 / (24 * 60), had=2, mode=OwnershipMode.GROUP)
    seen = []
    for ordinal in range(6):
        with in_process(
            job,
            bootstrap,
            until_caught_up=True,
            ownership__ordinal=ordinal,
            ownership__static_membership=False,
            ownership__session_timeout_ms=6_000,
            poison__policy="dead-letter",
        ) as child:
            child.wait(WAIT_S)
        seen.append(max(attempts(bootstrap, job)))
    assert seen == [1, 2, 3, 4, 5, 0]
    assert job.check(bootstrap).processed == 20
    assert [value for value, _ in letters(bootstrap, job)] == [MARK + b"SIGKILL"]


@pytest.mark.slow
def test_deaths_of_whole_instances_by_partition_are_found_however_soon_they_are_started_again(
    bootstrap: str,
) -> None:
    """Each commits the offset that it has found before it reads, so that is never old."""
    job = fault_job(bootstrap)
    load(bootstrap, job, 20, b"SIGKILL", at=10)
    seen = []
    for _ in range(8):
        with in_process(
            job, bootstrap, until_caught_up=True, poison__policy="dead-letter", **OWNERSHIPS["partition"]
        ) as child:
            child.wait(WAIT_S)
        seen.append(max(attempts(bootstrap, job)))
    assert seen[-1] == 0
    assert job.check(bootstrap).processed == 20
    assert [value for value, _ in letters(bootstrap, job)] == [MARK + b"SIGKILL"]


@pytest.mark.slow
@pytest.mark.parametrize("places", [(100, 102, 104), (100, 101)], ids=["in a row", "in two partitions"])
def test_several_deadly_records_take_restarts_of_their_own(bootstrap: str, places: tuple[int, ...]) -> None:
    """With workers.max_restarts as it is by default."""
    job = fault_job(bootstrap)
    records = [PlainRecord(f"v{i}".encode(), f"k{i}".encode(), partition=i % 2) for i in range(200)]
    for place in places:
        records[place] = PlainRecord(MARK + b"SIGKILL", b"deadly", partition=place % 2)
    produce_plain(bootstrap, job.inputs[0], records)
    with in_process(job, bootstrap, kind="workers", until_caught_up=True, **QUICKLY) as child:
        assert child.wait(WAIT_S) == ExitCode.DONE, child.lines[-20:]
    assert job.check(bootstrap).processed == 200
    assert [value for value, _ in letters(bootstrap, job)] == [MARK + b"SIGKILL"] * len(places)


@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_deaths_with_a_record_that_is_gone_are_not_those_of_the_next_one(
    bootstrap: str, ownership: str
) -> None:
    """Where it stood is a gap, as compaction leaves one."""
    job = fault_job(bootstrap)
    abort_records(bootstrap, job.inputs[0], partition=0)
    job.load(bootstrap, 10)
    store(bootstrap, job, {0: 0, 1: 0}, had=2, mode=OwnershipMode(ownership), attempts={0: 5})
    run_to_end(job, settings_for(bootstrap, poison__policy="dead-letter", **OWNERSHIPS[ownership]))
    assert letters(bootstrap, job) == []
    assert job.check(bootstrap).processed == 10
    assert attempts(bootstrap, job) == [0, 0]


@pytest.mark.slow
def test_deaths_that_are_not_counted_change_nothing(bootstrap: str) -> None:
    job = fault_job(bootstrap)
    load(bootstrap, job, 100, b"SIGKILL", at=50)
    with in_process(
        job,
        bootstrap,
        kind="workers",
        until_caught_up=True,
        poison__max_deaths=0,
        workers__max_restarts=5,
        **QUICKLY,
    ) as child:
        assert child.wait(WAIT_S) == ExitCode.UNEXPECTED, "given up after workers.max_restarts"
    assert letters(bootstrap, job) == []
    assert not any(attempts(bootstrap, job))


@pytest.mark.slow
@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_healthy_job_whose_worker_is_killed_again_and_again_dead_letters_nothing(
    bootstrap: str, ownership: str
) -> None:
    """SIGKILL at any moment of a start: before, inside and after the transactions that announce an attempt."""
    job = fault_job(bootstrap, pause_ms=1)
    job.load(bootstrap, 6_000, "v")
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    with in_process(
        job, bootstrap, kind="workers", workers__max_restarts=50, **QUICKLY, **OWNERSHIPS[ownership]
    ) as child:
        killed: set[int] = set()
        for _ in range(10):  # behind more, a restart waits
            Deadline(PATIENCE_S).wait_for(lambda: bool(workers(child) - killed))
            time.sleep(chance.uniform(0, 0.3))
            (worker,) = workers(child) - killed
            os.kill(worker, signal.SIGKILL)
            killed.add(worker)
    run_to_end(job, settings_for(bootstrap, poison__policy="dead-letter", **OWNERSHIPS[ownership]))
    assert job.check(bootstrap).processed == 6_000, seed
    assert letters(bootstrap, job) == [], seed


@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_owner_that_ends_with_an_error_takes_its_attempt_back(bootstrap: str, ownership: str) -> None:
    """It lives when the transform has returned, so it has not died with the record."""
    job = fault_job(bootstrap)
    job.load(bootstrap, 2, "poison")
    settings = settings_for(bootstrap, **OWNERSHIPS[ownership])
    for _ in range(2):
        with pytest.raises(TransformError):
            run_to_end(job, settings.of_replacement())
        assert not any(attempts(bootstrap, job))


@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_owner_that_stops_in_order_takes_its_attempt_back(bootstrap: str, ownership: str) -> None:
    job = fault_job(bootstrap, pause_ms=400)  # so that a stop comes inside the first records
    job.load(bootstrap, 40)
    settings = settings_for(bootstrap, poison__policy="dead-letter", **OWNERSHIPS[ownership])
    for _ in range(4):
        with in_thread(job, settings.of_replacement()) as running:
            running.told(TransactionCommitted)
            running.stop()
        assert attempts(bootstrap, job) in ([0], [0, 0])
    assert letters(bootstrap, job) == []
    assert job.check(bootstrap).processed >= 4
