"""A worker fails while it is stopping: the supervisor's exit code says so."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace

import pytest

from eos.exits import ExitCode
from tests.support.jobs_for_faults import fault_job, in_process
from tests.support.observer import produce_plain, read_committed
from tests.support.process_ends import MARK

pytestmark = pytest.mark.broker


def test_worker_that_meets_poison_while_it_is_stopping_ends_the_job_as_poison(bootstrap: str) -> None:
    job = fault_job(bootstrap, partitions=1, pause_ms=3_000)
    produce_plain(bootstrap, job.inputs[0], [b"poison"])
    with in_process(job, bootstrap, kind="workers") as child:
        child.wait_line("PartitionsAssigned", 30)
        time.sleep(1)  # the transform is at it
        child.terminate()
        assert child.wait(20) == ExitCode.POISON


def test_endless_transform_that_is_ended_while_the_job_stops_is_no_end_in_order(bootstrap: str) -> None:
    job = fault_job(bootstrap, partitions=1)
    produce_plain(bootstrap, job.inputs[0], [MARK + b"endless loop"])
    with in_process(job, bootstrap, kind="workers", poison__transform_timeout_ms=4_000) as child:
        child.wait_line("PartitionsAssigned", 30)
        time.sleep(1)  # the transform is at it
        child.terminate()
        assert child.wait(20) == ExitCode.UNEXPECTED
        assert any("poison.transform_timeout_ms = 4000" in line for line in child.lines)


def test_ctrl_c_again_ends_a_stop_that_takes_long_and_the_next_start_writes_each_record_once(
    bootstrap: str,
) -> None:
    job = fault_job(bootstrap, partitions=1, pause_ms=30_000)
    produce_plain(bootstrap, job.inputs[0], [b"slow"])
    with in_process(job, bootstrap, kind="workers") as child:
        child.wait_line("PartitionsAssigned", 30)
        time.sleep(1)  # the transform is at it
        child.signal(signal.SIGINT)
        child.signal(signal.SIGINT)  # as from a program between the terminal and this one: no second wish
        child.wait_line("or by Ctrl-C once more", 10)
        began = time.monotonic()
        child.signal(signal.SIGINT)
        assert child.wait(10) == ExitCode.UNEXPECTED
        assert time.monotonic() - began < 5
    quick = replace(job, pause_ms=0)
    with in_process(quick, bootstrap, until_caught_up=True) as child:
        assert child.wait(60) == ExitCode.DONE
    assert [record.value for record in read_committed(bootstrap, job.audit)] == [b"audit slow"]


@pytest.mark.slow
def test_transform_is_not_ended_for_the_time_in_which_all_processes_stood_still(bootstrap: str) -> None:
    """As in a container that is frozen: its transform has had no time either."""
    job = fault_job(bootstrap, partitions=1)
    produce_plain(bootstrap, job.inputs[0], [MARK + b"takes 6 s"])
    with in_process(
        job, bootstrap, kind="workers", workers__spare=False, poison__transform_timeout_ms=8_000
    ) as child:
        worker = int(child.wait_line("PartitionsAssigned", 30).split()[1])
        time.sleep(1)  # the transform is at it
        for number, pause_s in ((signal.SIGSTOP, 10.0), (signal.SIGCONT, 0.0)):
            for pid in (child.pid, worker):
                os.kill(pid, number)
            time.sleep(pause_s)
        child.wait_line(r"TransactionCommitted.*records_in=1", 30)
        assert not any("Restarted(" in line for line in child.lines)
        child.terminate()
        assert child.wait(20) == ExitCode.DONE
