"""The spare process that waits to replace a worker: it is killed, its parent is, its import hangs or fails."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from eos.base.deadline import Deadline
from eos.exits import ExitCode
from tests.support.jobs_for_faults import FaultJob, fault_job, in_process
from tests.support.observer import committed_offsets
from tests.support.patience import PATIENCE_S
from tests.support.processes import Child

pytestmark = pytest.mark.broker


def spawned(parent: int) -> set[int]:
    """The processes that the parent has spawned and that live: its workers and the spare."""
    found = set()
    for child in psutil.Process(parent).children():
        try:
            if child.status() != psutil.STATUS_ZOMBIE and any(
                part.startswith("eos ") or "spawn_main" in part for part in child.cmdline()
            ):
                found.add(child.pid)
        except psutil.NoSuchProcess:
            continue
    return found


def spare_beside(parent: int, *workers: int, but: int = 0) -> int:
    """The process that is none of these workers, once there is one."""
    deadline = time.monotonic() + PATIENCE_S
    while not (spares := spawned(parent) - {*workers, but}):
        assert time.monotonic() < deadline, "no spare"
        time.sleep(0.05)
    (spare,) = spares
    return spare


def opened(child: Child, *, after: int = 0) -> int:
    """The process of the worker that has opened its session."""
    return int(child.wait_line("SessionOpened", PATIENCE_S, after=after).split()[1])


def lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def ended(*pids: int) -> bool:
    return Deadline(PATIENCE_S).wait_for(lambda: not any(map(lives, pids)))


def wait_ready(spare: int) -> None:
    """Until it has imported the job, and waits."""
    assert Deadline(PATIENCE_S).wait_for(
        lambda: "".join(psutil.Process(spare).cmdline()).startswith("eos spare worker: ")
    )


def wait_processed(bootstrap: str, job: FaultJob, count: int) -> None:
    partitions = [(job.inputs[0], number) for number in range(2)]
    deadline = time.monotonic() + PATIENCE_S
    while True:
        stored = committed_offsets(bootstrap, job.group, partitions).values()
        if (now := sum(offset or 0 for offset, _ in stored)) >= count:
            return
        assert time.monotonic() < deadline, f"{now} of {count} processed"
        time.sleep(0.1)


def end_in_order(bootstrap: str, job: FaultJob, child: Child, *, processed: int) -> None:
    pids = spawned(child.pid)
    child.terminate()
    assert child.wait(PATIENCE_S) == ExitCode.DONE
    assert not any(map(lives, pids))
    assert job.check(bootstrap).processed == processed


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_spare_takes_the_place_of_a_killed_worker_and_is_replaced_itself(
    bootstrap: str, workers: int
) -> None:
    job = fault_job(bootstrap)
    job.load(bootstrap, 100, "v")
    with in_process(job, bootstrap, kind="workers", workers__count=workers) as child:
        pids = {
            int(child.wait_line(rf"SessionOpened.*\.i\.{ordinal}'", PATIENCE_S).split()[1])
            for ordinal in range(workers)
        }
        victim = min(pids)
        wait_processed(bootstrap, job, 100)
        spare = spare_beside(child.pid, *pids)
        seen = len(child.lines)
        os.kill(victim, signal.SIGKILL)
        assert opened(child, after=seen) == spare
        job.load(bootstrap, 100, "w")
        wait_processed(bootstrap, job, 200)
        assert spare_beside(child.pid, *pids, spare) != spare
        end_in_order(bootstrap, job, child, processed=200)


def test_spare_that_is_killed_is_missed_by_nothing(bootstrap: str) -> None:
    """A worker that is killed next is replaced by a new process, without a failure."""
    job = fault_job(bootstrap)
    job.load(bootstrap, 100, "v")
    with in_process(job, bootstrap, kind="workers") as child:
        worker = opened(child)
        os.kill(spare_beside(child.pid, worker), signal.SIGKILL)
        child.wait_line("the spare worker process ended with status -9", PATIENCE_S)
        assert worker in spawned(child.pid)
        seen = len(child.lines)
        os.kill(worker, signal.SIGKILL)
        assert opened(child, after=seen) != worker
        wait_processed(bootstrap, job, 100)
        assert sum("Restarted(" in line for line in child.lines) == 1
        end_in_order(bootstrap, job, child, processed=100)


def test_spare_that_is_asked_to_stop_with_its_parent_is_no_warning(bootstrap: str) -> None:
    """As where a service manager asks all processes of its group."""
    job = fault_job(bootstrap)
    with in_process(job, bootstrap, kind="workers") as child:
        worker = opened(child)
        spare = spare_beside(child.pid, worker)
        wait_ready(spare)
        assert psutil.Process(worker).cmdline()[0].startswith("eos worker 0: ")
        os.kill(spare, signal.SIGTERM)
        child.wait_line("the spare worker process ended with status -15", PATIENCE_S)
        end_in_order(bootstrap, job, child, processed=0)
        assert [line for line in child.lines if line.startswith("WARNING:eos.runner")] == []


def test_worker_and_spare_that_are_killed_at_once_are_replaced(bootstrap: str) -> None:
    """The parent may give the worker's place to a spare that is dead already: it is one more death."""
    job = fault_job(bootstrap)
    job.load(bootstrap, 100, "v")
    with in_process(job, bootstrap, kind="workers", workers__restart_backoff_ms=1) as child:
        worker = opened(child)
        wait_processed(bootstrap, job, 100)
        spare = spare_beside(child.pid, worker)
        seen = len(child.lines)
        for pid in (worker, spare):
            os.kill(pid, signal.SIGKILL)
        assert opened(child, after=seen) not in (worker, spare)
        job.load(bootstrap, 100, "w")
        wait_processed(bootstrap, job, 200)
        end_in_order(bootstrap, job, child, processed=200)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_spare_ends_with_its_parent(bootstrap: str, number: signal.Signals) -> None:
    job = fault_job(bootstrap)
    with in_process(job, bootstrap, kind="workers") as child:
        worker = opened(child)
        spare = spare_beside(child.pid, worker)
        wait_ready(spare)
        child.signal(number)
        assert child.wait(PATIENCE_S) == (ExitCode.DONE if number != signal.SIGKILL else -number)
        assert ended(spare), "the spare outlives its parent"
        assert ended(worker)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_spare_whose_import_does_not_return_ends_with_its_parent(
    bootstrap: str, tmp_path: Path, number: signal.Signals
) -> None:
    job = fault_job(bootstrap, second_import="waits", imports_in=str(tmp_path))
    with in_process(job, bootstrap, kind="workers") as child:
        spare = spare_beside(child.pid, opened(child))
        assert Deadline(PATIENCE_S).wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
        child.signal(number)
        assert child.wait(PATIENCE_S) == (ExitCode.DONE if number != signal.SIGKILL else -number)
        assert ended(spare), "the spare outlives its parent"


def test_worker_that_is_killed_while_the_spare_starts_is_replaced_by_it(
    bootstrap: str, tmp_path: Path
) -> None:
    job = fault_job(bootstrap, second_import="waits", imports_in=str(tmp_path))
    job.load(bootstrap, 100, "v")
    with in_process(job, bootstrap, kind="workers") as child:
        worker = opened(child)
        wait_processed(bootstrap, job, 100)
        spare = spare_beside(child.pid, worker)
        seen = len(child.lines)
        os.kill(worker, signal.SIGKILL)
        child.wait_line(r"Restarted\(", PATIENCE_S, after=seen)
        Path(tmp_path, "go on").touch()
        assert opened(child, after=seen) == spare
        job.load(bootstrap, 100, "w")
        wait_processed(bootstrap, job, 200)
        assert sum("Restarted(" in line for line in child.lines) == 1
        end_in_order(bootstrap, job, child, processed=200)


def test_spare_whose_import_fails_ends_nothing_but_itself(bootstrap: str, tmp_path: Path) -> None:
    """It may be a moment's failure: the process that replaces a worker imports the module anew."""
    job = fault_job(bootstrap, second_import="fails", imports_in=str(tmp_path))
    job.load(bootstrap, 100, "v")
    with in_process(job, bootstrap, kind="workers") as child:
        worker = opened(child)
        spare = spare_beside(child.pid, worker)
        line = child.wait_line("the spare worker process could not import", PATIENCE_S)
        assert "raises ValueError when it is imported" in line
        assert ended(spare)
        seen = len(child.lines)
        os.kill(worker, signal.SIGKILL)
        assert opened(child, after=seen) not in (worker, spare)
        wait_processed(bootstrap, job, 100)
        end_in_order(bootstrap, job, child, processed=100)


def test_no_spare_where_the_settings_want_none(bootstrap: str) -> None:
    job = fault_job(bootstrap)
    with in_process(job, bootstrap, kind="workers", workers__spare=False) as child:
        worker = opened(child)
        deadline = time.monotonic() + 5  # more than twice as long as one waits for workers to be at work
        while time.monotonic() < deadline:
            assert spawned(child.pid) == {worker}
            time.sleep(0.2)
        end_in_order(bootstrap, job, child, processed=0)
