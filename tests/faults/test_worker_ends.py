"""A worker's process ends while the job goes on: by code of the job, or by a signal that was meant for it alone."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from eos.exits import ExitCode
from tests.support.jobs_for_faults import FaultJob, fault_job, in_process, run_to_end, settings_for
from tests.support.observer import (
    PlainRecord,
    committed_offsets,
    produce_plain,
    read_committed,
    recreate_topic,
)
from tests.support.patience import PATIENCE_S
from tests.support.process_ends import MARK

pytestmark = pytest.mark.broker


def processed(bootstrap: str, job: FaultJob) -> int:
    partitions = [(job.inputs[0], number) for number in range(2)]
    return sum(offset or 0 for offset, _ in committed_offsets(bootstrap, job.group, partitions).values())


@pytest.mark.parametrize(
    ("way", "code", "until_caught_up"),
    [
        (b"os._exit(0)", ExitCode.UNEXPECTED, True),
        (b"os._exit(0)", ExitCode.UNEXPECTED, False),
        pytest.param(b"os._exit(3)", ExitCode.UNEXPECTED, True, marks=pytest.mark.slow),
        (b"C exit(0)", ExitCode.UNEXPECTED, True),
        pytest.param(b"atexit 0", ExitCode.POISON, True, marks=pytest.mark.slow),
        (b"atexit 3", ExitCode.POISON, True),
    ],
)
def test_process_that_ends_without_a_report_is_unexpected_whatever_its_status(
    bootstrap: str, way: bytes, code: ExitCode, until_caught_up: bool
) -> None:
    """A status of 0 is what a library's exit() gives too; the last message of the worker says what is done."""
    job = fault_job(bootstrap)
    job.load(bootstrap, 100, "v")
    produce_plain(bootstrap, job.inputs[0], [PlainRecord(MARK + way, partition=0)])
    with in_process(
        job, bootstrap, kind="workers", until_caught_up=until_caught_up, workers__count=2
    ) as child:
        assert child.wait(PATIENCE_S) == code
    comparison = job.check(bootstrap)
    assert comparison.processed <= 100, "the record that ended the process counts as processed"


@pytest.mark.parametrize(
    "ownership",
    [
        {"ownership__mode": "partition", "ownership__ordinal": 0, "ownership__instances": 1},
        {"ownership__mode": "group"},
    ],
    ids=lambda ownership: ownership["ownership__mode"],
)
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_worker_that_alone_was_told_to_end_is_replaced_and_its_partitions_are_processed(
    bootstrap: str, ownership: dict[str, Any], number: signal.Signals
) -> None:
    job = fault_job(bootstrap)
    job.load(bootstrap, 100, "v")
    with in_process(job, bootstrap, kind="workers", workers__count=2, **ownership) as child:
        by_partition = ownership["ownership__mode"] == "partition"
        shard = rf"\.p\.{job.inputs[0]}\.1'" if by_partition else r"\.i\.1'"
        opened = child.wait_line(f"SessionOpened.*{shard}", PATIENCE_S)
        _wait_processed(bootstrap, job, 100)
        seen = len(child.lines)
        os.kill(int(opened.split()[1]), number)
        child.wait_line(f"SessionOpened.*{shard}", PATIENCE_S, after=seen)
        job.load(bootstrap, 100, "w")
        _wait_processed(bootstrap, job, 200)
        assert sum("Restarted(" in line for line in child.lines) == 1
        child.terminate()
        assert child.wait(PATIENCE_S) == ExitCode.DONE
        assert sum("Restarted(" in line for line in child.lines) == 1
    assert job.check(bootstrap).processed == 200


def _wait_processed(bootstrap: str, job: FaultJob, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (now := processed(bootstrap, job)) < count:
        assert time.monotonic() < deadline, f"{now} of {count} processed"
        time.sleep(0.2)


@pytest.mark.slow
def test_replacement_of_a_killed_worker_does_not_apply_the_start_policy_again(bootstrap: str) -> None:
    """The topic is deleted and created anew meanwhile, and Kafka forgets the offsets with it: "latest" would skip all of it."""
    job = fault_job(bootstrap)
    (source,) = job.inputs
    changes: dict[str, Any] = {"input__start": "latest", "workers__restart_backoff_ms": 1}
    with in_process(job, bootstrap, kind="workers", **changes) as child:
        opened = child.wait_line(r"PartitionsAssigned.*\[0\]", PATIENCE_S)
        job.load(bootstrap, 20, "v")
        _wait_processed(bootstrap, job, 20)
        os.kill(int(opened.split()[1]), signal.SIGKILL)
        recreate_topic(bootstrap, source, 2)
        job.load(bootstrap, 30, "new")
        assert child.wait(PATIENCE_S) in (ExitCode.CONFIGURATION, ExitCode.OFFSET_GAP)
    assert len(read_committed(bootstrap, job.audit)) == 20
    settings = settings_for(
        bootstrap, ownership__static_membership=False
    )  # "earliest": what a person decides
    run_to_end(job, settings)
    assert len(read_committed(bootstrap, job.audit)) == 50


def test_thread_that_the_job_leaves_running_does_not_make_a_stop_in_order_a_failure(bootstrap: str) -> None:
    """The worker has reported its end; only its process does not exit."""
    job = fault_job(bootstrap)
    job.load(bootstrap, 10, "v")
    produce_plain(bootstrap, job.inputs[0], [PlainRecord(MARK + b"thread", partition=0)])
    with in_process(job, bootstrap, kind="workers", shutdown__grace_ms=2_000) as child:
        _wait_processed(bootstrap, job, 11)
        child.terminate()
        assert child.wait(PATIENCE_S) == ExitCode.DONE
        assert any("its process does not exit" in line for line in child.lines)
    assert job.check(bootstrap).processed == 11
