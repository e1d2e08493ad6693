"""A worker fails while it is stopping: the supervisor's exit code says so."""

from __future__ import annotations

import time

import pytest

from eos.exits import ExitCode
from tests.support.jobs_for_faults import fault_job, in_process
from tests.support.observer import produce_plain

pytestmark = pytest.mark.broker


def test_worker_that_meets_poison_while_it_is_stopping_ends_the_job_as_poison(bootstrap: str) -> None:
    job = fault_job(bootstrap, partitions=1, pause_ms=3_000)
    produce_plain(bootstrap, job.inputs[0], [b"poison"])
    with in_process(job, bootstrap, kind="workers") as child:
        child.wait_line("PartitionsAssigned", 30)
        time.sleep(1)  # the transform is at it
        child.terminate()
        assert child.wait(20) == ExitCode.POISON
