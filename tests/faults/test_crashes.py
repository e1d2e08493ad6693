"""Processes that die: at every edge of a transaction, again and again, with their parent, or in good order."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from eos.base.deadline import Deadline
from eos.events import PartitionsAssigned, ProducerOpened, TransactionEnded
from eos.exits import ExitCode
from eos.testing.proxy.frames import ApiKey
from eos.testing.proxy.hold_proxy import Edge, Frame, HoldProxy
from tests.support.jobs_for_faults import (
    FaultJob,
    fault_job,
    in_process,
    in_thread,
    run_to_end,
    settings_for,
    told_at,
)
from tests.support.observer import PlainRecord, produce_plain, read_committed, read_uncommitted
from tests.support.patience import PATIENCE_S
from tests.support.process_ends import MARK
from tests.support.processes import Child

pytestmark = pytest.mark.broker

KILLED = -signal.SIGKILL
# What a replacement must not wait for takes a minute.
PATIENT: dict[str, Any] = {"ownership__session_timeout_ms": 60_000, "transaction__timeout_ms": 60_000}
NOT_WAITED_S = 30.0


def load(bootstrap: str, job: FaultJob, count: int, *, partitions: int = 2, prefix: str = "v") -> None:
    produce_plain(
        bootstrap,
        job.inputs[0],
        [PlainRecord(f"{prefix}{i}".encode(), b"k%d" % (i % 50), i % partitions) for i in range(count)],
    )


def committed_records(child: Child) -> int:
    return sum(int(n) for line in child.lines for n in re.findall(r"records_in=(\d+)", line))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.parametrize(
    ("api", "edge"),
    [
        pytest.param(ApiKey.INIT_PRODUCER_ID, Edge.REPLY, marks=pytest.mark.slow),
        pytest.param(ApiKey.ADD_PARTITIONS_TO_TXN, Edge.REQUEST, marks=pytest.mark.slow),
        (ApiKey.PRODUCE, Edge.REPLY),
        pytest.param(ApiKey.ADD_OFFSETS_TO_TXN, Edge.REPLY, marks=pytest.mark.slow),
        pytest.param(ApiKey.TXN_OFFSET_COMMIT, Edge.REQUEST, marks=pytest.mark.slow),
        (ApiKey.TXN_OFFSET_COMMIT, Edge.REPLY),
        (ApiKey.END_TXN, Edge.REQUEST),
        (ApiKey.END_TXN, Edge.REPLY),
    ],
    ids=lambda value: value.name.lower(),
)
@pytest.mark.parametrize("own_loop", [False, True], ids=["eos.run", "own loop"])
def test_worker_killed_at_an_edge_of_a_request_is_replaced_without_a_trace(
    bootstrap: str, proxy: HoldProxy, api: ApiKey, edge: Edge, *, own_loop: bool
) -> None:
    """Before, inside or after its commit: the replacement's init settles what was left, and the offsets tell."""
    job = fault_job(bootstrap, own_loop=own_loop)
    load(bootstrap, job, 1_000)
    shard = f"{job.name}.{job.group}.i.0"
    with in_process(
        job,
        proxy.bootstrap_servers,
        transaction__max_records=200,
        input__fetch_records=200,
        transaction__interval_ms=5_000,
        **PATIENT,
    ) as child:

        def of_the_shard(frame: Frame) -> bool:
            return frame.transactional_id == shard

        nth = 1 if api is ApiKey.INIT_PRODUCER_ID else 2
        proxy.cut(api, edge, nth=nth, where=of_the_shard, then=lambda _: child.signal(signal.SIGKILL))
        assert child.wait(PATIENCE_S) == KILLED

    began = time.monotonic()
    run_to_end(job, settings_for(bootstrap, **PATIENT))

    assert time.monotonic() - began < NOT_WAITED_S, "the replacement waited for a timeout"
    assert job.check(bootstrap).processed == 1_000


def test_worker_told_to_end_commits_what_is_open_and_exits_with_0(bootstrap: str) -> None:
    job = fault_job(bootstrap, pause_ms=1)
    load(bootstrap, job, 20_000)
    with in_process(job, bootstrap, transaction__interval_ms=5_000, transaction__max_records=500) as child:
        child.wait_line("TransactionCommitted", PATIENCE_S)
        child.terminate()
        assert child.wait(PATIENCE_S) == ExitCode.DONE
        done = committed_records(child)
    comparison = job.check(bootstrap)
    assert comparison.processed == done
    assert 500 <= done < 20_000


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        (4, 40_000),
        pytest.param(10, 100_000, marks=pytest.mark.slow),
        pytest.param(40, 400_000, marks=pytest.mark.slow),
    ],
)
@pytest.mark.timeout(400)
def test_workers_killed_again_and_again_lose_and_repeat_nothing(
    bootstrap: str, wanted: int, count: int
) -> None:
    """The supervisor starts each again under its ordinal; whom it hits and when is random."""
    job = fault_job(bootstrap, partitions=4, batch=True, pause_ms=20)
    load(bootstrap, job, count, partitions=4)
    rng = random.Random(wanted)
    with in_process(
        job,
        bootstrap,
        kind="workers",
        until_caught_up=True,
        workers__count=2,
        workers__max_restarts=50,
        workers__restart_backoff_ms=0,
        input__fetch_records=200,
        transaction__interval_ms=150,
    ) as child:
        killed: set[int] = set()  # a process that is dead takes signals until its parent has seen it
        while len(killed) < wanted:
            line = child.wait_line("TransactionCommitted", PATIENCE_S, after=len(child.lines))
            time.sleep(rng.uniform(0, 0.4))
            pid = int(line.split()[1])
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        assert child.wait(2 * PATIENCE_S) == ExitCode.DONE
        assert sum("Restarted(" in line for line in child.lines) == wanted
    assert job.check(bootstrap).processed == count


def test_worker_killed_too_often_ends_the_others_too(bootstrap: str) -> None:
    job = fault_job(bootstrap)
    with in_process(
        job,
        bootstrap,
        kind="workers",
        workers__count=2,
        workers__max_restarts=1,
        workers__restart_backoff_ms=1,
    ) as child:
        first = child.wait_line(r"SessionOpened.*\.i\.0'", PATIENCE_S)
        child.wait_line(r"SessionOpened.*\.i\.1'", PATIENCE_S)
        seen = len(child.lines)
        os.kill(int(first.split()[1]), signal.SIGKILL)
        again = child.wait_line(r"SessionOpened.*\.i\.0'", PATIENCE_S, after=seen)
        os.kill(int(again.split()[1]), signal.SIGKILL)
        assert child.wait(PATIENCE_S) == ExitCode.UNEXPECTED
        assert any("giving up" in line for line in child.lines)
        assert sum("SessionClosed" in line for line in child.lines) == 1  # the other one's, in good order


@pytest.mark.slow
def test_fenced_worker_ends_all_workers_with_the_code_of_a_fence(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two instances run under one ordinal. Each fence is compared, three times at most; then one of the two ends.

    The rival doubts without end here, so that it is the worker.
    """
    monkeypatch.setattr("eos.kafka.late_copies._MAX_DOUBTED", 1_000)
    job = fault_job(bootstrap, partitions=3)  # one for each of the three members
    loaded = 0
    with in_process(
        job, bootstrap, kind="workers", workers__count=2, ownership__static_membership=False
    ) as child:
        for ordinal in range(2):
            child.wait_line(rf"PartitionsAssigned.*\.i\.{ordinal}'.*\[", PATIENCE_S)
        rival = settings_for(bootstrap, ownership__ordinal=1, ownership__static_membership=False)
        with in_thread(job, rival) as run:
            run.told(ProducerOpened)
            deadline = time.monotonic() + PATIENCE_S
            while child.alive:
                assert time.monotonic() < deadline
                load(bootstrap, job, 21, partitions=3, prefix=f"v{loaded}-")
                loaded += 21
                time.sleep(0.2)  # the accident: input that keeps coming
            assert child.wait(PATIENCE_S) == ExitCode.FENCED
            assert any("newer producer" in line or "another owner" in line for line in child.lines)
            assert not any("Restarted(" in line for line in child.lines)
            run.told(PartitionsAssigned)
            _wait_for_outputs(bootstrap, job, loaded)
            run.stop()
    assert job.check(bootstrap).processed == loaded


def test_owner_of_partitions_that_was_replaced_is_fenced_and_names_host_and_process_of_the_other(
    bootstrap: str,
) -> None:
    """It is in no group, so nobody else can say who has its shards."""
    job = fault_job(bootstrap, partitions=2)
    load(bootstrap, job, 10)
    alone: dict[str, Any] = {
        "ownership__mode": "partition",
        "ownership__instances": 1,
        "ownership__ordinal": 0,
    }
    with in_process(job, bootstrap, **alone) as first:
        first.wait_line("TransactionCommitted", PATIENCE_S)
        first.pause()
        with in_process(job, bootstrap, **alone) as second:
            second.wait_line(r"PartitionsAssigned.*\[", PATIENCE_S)
            load(bootstrap, job, 10, prefix="w")
            second.wait_line("TransactionCommitted", PATIENCE_S)
            first.resume()
            load(bootstrap, job, 10, prefix="x")
            assert first.wait(PATIENCE_S) == ExitCode.FENCED
            named = re.escape(f"another owner on {socket.gethostname()}/{second.pid} has taken")
            first.wait_line(named, PATIENCE_S)
            second.terminate()
            assert second.wait(PATIENCE_S) == ExitCode.DONE
    run_to_end(job, settings_for(bootstrap, **alone))
    assert job.check(bootstrap).processed == 30


def test_poison_in_one_worker_ends_all_with_its_code(bootstrap: str) -> None:
    job = fault_job(bootstrap)
    with in_process(job, bootstrap, kind="workers", workers__count=2) as child:
        child.wait_line(r"PartitionsAssigned.*\[", PATIENCE_S)
        produce_plain(bootstrap, job.inputs[0], [PlainRecord(b"poison", partition=1)])
        assert child.wait(PATIENCE_S) == ExitCode.POISON
        assert any(f"{job.inputs[0]}[1] offset 0" in line for line in child.lines)
    assert job.check(bootstrap).processed == 0


def test_transform_that_exits_is_no_job_that_is_done(bootstrap: str) -> None:
    job = fault_job(bootstrap)
    produce_plain(bootstrap, job.inputs[0], [PlainRecord(b"exit", partition=1)])
    with in_process(job, bootstrap, kind="workers", until_caught_up=True) as child:
        assert child.wait(PATIENCE_S) == ExitCode.UNEXPECTED
        assert any("called sys.exit(0)" in line for line in child.lines)
    assert job.check(bootstrap).processed == 0


@pytest.mark.slow
def test_workers_that_had_to_be_killed_did_not_end_in_good_order(bootstrap: str) -> None:
    job = fault_job(bootstrap, pause_ms=600_000, tells=True)
    load(bootstrap, job, 10)
    with in_process(job, bootstrap, kind="workers", shutdown__grace_ms=500) as child:
        child.wait_line("transforms", PATIENCE_S)
        child.terminate()
        assert child.wait(PATIENCE_S) == ExitCode.UNEXPECTED
        assert any("killed; the next start settles" in line for line in child.lines)
    assert job.check(bootstrap).processed == 0


@pytest.mark.slow
def test_worker_that_hangs_when_its_parent_is_killed_is_ended(bootstrap: str) -> None:
    """Nobody else is there who could kill it."""
    job = fault_job(bootstrap, tells=True)
    with in_process(job, bootstrap, kind="workers", shutdown__grace_ms=500) as child:
        pid = int(child.wait_line("SessionOpened", PATIENCE_S).split()[1])
        produce_plain(bootstrap, job.inputs[0], [PlainRecord(MARK + b"hang", partition=0)])
        child.wait_line("transforms", PATIENCE_S)
        time.sleep(1)  # the call has asked who its parent is
        child.kill()
        deadline = time.monotonic() + PATIENCE_S
        while is_alive(pid):
            assert time.monotonic() < deadline, "the worker outlives its parent"
            time.sleep(0.05)
    assert job.check(bootstrap).processed == 0


def test_workers_end_when_their_parent_is_killed(bootstrap: str) -> None:
    """They hold a pipe whose end tells them; else they would go on unsupervised beside the next parent's."""
    job = fault_job(bootstrap)
    with in_process(job, bootstrap, kind="workers", workers__count=2) as child:
        pids = {
            int(child.wait_line(rf"SessionOpened.*\.i\.{ordinal}'", PATIENCE_S).split()[1])
            for ordinal in range(2)
        }
        load(bootstrap, job, 100)
        child.wait_line("TransactionCommitted", PATIENCE_S)
        child.kill()
        deadline = time.monotonic() + PATIENCE_S
        while any(map(is_alive, pids)):
            assert time.monotonic() < deadline, "the workers outlive their parent"
            time.sleep(0.05)
    run_to_end(job, settings_for(bootstrap))
    assert job.check(bootstrap).processed == 100


def test_supervisor_told_to_end_ends_its_workers_in_good_order(bootstrap: str) -> None:
    job = fault_job(bootstrap, pause_ms=1)
    load(bootstrap, job, 60_000)
    with in_process(job, bootstrap, kind="workers", workers__count=2) as child:
        for instance in range(2):  # the first can commit before the other has started
            child.wait_line(rf"TransactionCommitted.*\.i\.{instance}'", PATIENCE_S)
        child.terminate()
        assert child.wait(PATIENCE_S) == ExitCode.DONE
        assert sum("SessionClosed" in line for line in child.lines) == 2
    assert 0 < job.check(bootstrap).processed < 60_000


@pytest.mark.parametrize("workers", [1, 5])
def test_run_that_catches_up_ends_with_any_number_of_workers(bootstrap: str, workers: int) -> None:
    """Also with more workers than partitions: one without any waits for the others, then ends."""
    job = fault_job(bootstrap, partitions=2)
    load(bootstrap, job, 2_000)
    with in_process(job, bootstrap, kind="workers", until_caught_up=True, workers__count=workers) as child:
        assert child.wait(PATIENCE_S) == ExitCode.DONE
    assert job.check(bootstrap).processed == 2_000


@pytest.mark.parametrize("own_loop", [False, True], ids=["eos.run", "own loop"])
def test_replacement_of_a_killed_worker_waits_for_no_timeout_of_the_dead_one(
    bootstrap: str, *, own_loop: bool
) -> None:
    """Static membership gives it the place of the dead one, and init ends what that one left open."""
    job = fault_job(bootstrap, partitions=4, pause_ms=5, own_loop=own_loop)
    with in_process(job, bootstrap, transaction__interval_ms=30_000, **PATIENT) as victim:
        victim.wait_line(r"PartitionsAssigned.*\[", PATIENCE_S)
        load(bootstrap, job, 400, partitions=4)
        _wait_for_an_open_transaction(bootstrap, job)
        victim.kill()
        killed_at = time.monotonic()
        with in_process(job, bootstrap, **PATIENT) as heir:
            assigned = heir.wait_line(r"PartitionsAssigned.*\[", PATIENCE_S)
            assert told_at(assigned) - killed_at < NOT_WAITED_S
            heir.wait_line("TransactionCommitted", PATIENCE_S)
            heir.terminate()
            assert heir.wait(PATIENCE_S) == ExitCode.DONE
    run_to_end(job, settings_for(bootstrap, **PATIENT))
    assert job.check(bootstrap).processed == 400


@pytest.mark.slow
def test_transaction_that_no_owner_comes_back_for_is_ended_by_the_coordinator(bootstrap: str) -> None:
    """Nobody fences it, so the readers of its outputs wait for transaction.timeout.ms; no longer."""
    job = fault_job(bootstrap, partitions=1)
    load(bootstrap, job, 10, partitions=1)
    short: dict[str, Any] = {"transaction__timeout_ms": 10_000, "transaction__interval_ms": 5_000}
    with in_process(
        job, bootstrap, **short, ownership__ordinal=0, ownership__static_membership=False
    ) as child:
        _wait_for_an_open_transaction(bootstrap, job)
        child.kill()
    events = run_to_end(job, settings_for(bootstrap, ownership__ordinal=1))
    assert not [
        event for event in events if isinstance(event, TransactionEnded) and event.outcome == "aborted"
    ]
    assert job.check(bootstrap).processed == 10


def _wait_for_an_open_transaction(bootstrap: str, job: FaultJob) -> None:
    assert Deadline(PATIENCE_S).wait_for(lambda: read_uncommitted(bootstrap, job.audit) != [])
    assert read_committed(bootstrap, job.audit, settled=False) == []


def _wait_for_outputs(bootstrap: str, job: FaultJob, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while len(read_committed(bootstrap, job.audit, settled=False)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.1)
