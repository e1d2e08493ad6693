"""A worker fails while it is stopping: the supervisor's exit code says so."""

from __future__ import annotations

import time

import pytest

from eos.exits import ExitCode
from tests.support.jobs_for_faults import fault_job, in_process
from tests.support.observer import produce_plain
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
