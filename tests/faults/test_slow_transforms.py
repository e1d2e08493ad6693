"""A transform that takes longer than a transaction may live: nothing expires, and the job gets on."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

import pytest

from eos.base.deadline import Deadline
from eos.errors import ConfigError, TransformError
from eos.events import TransactionCommitted, TransactionEnded
from eos.exits import ExitCode, exit_code_of
from eos.job import Job
from eos.offsets import Partition
from eos.records import InputRecord, OutputRecord
from eos.settings import Settings
from tests.support.exactly_once import Output, SeenRecord
from tests.support.jobs_for_faults import FaultJob, Running, fault_job, settings_for
from tests.support.observer import (
    PlainRecord,
    assert_exactly_once,
    committed_offsets,
    produce_plain,
    read_committed,
)
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker

TIMEOUT_MS = 6_000
SLOW_S = 8.0  # the coordinator looks every second for what has expired


def expired(run: Running) -> list[TransactionEnded]:
    return [e for e in run.events if isinstance(e, TransactionEnded) and e.outcome == "expired"]


def sleeping() -> None:
    time.sleep(SLOW_S)


def holding_the_lock_of_python() -> None:
    """As a call of C does that lets no other thread of Python run, a regular expression for one."""
    ctypes.PyDLL(None).usleep(int(SLOW_S * 1_000_000))


def until_quick_is_visible(bootstrap: str, job: FaultJob) -> Callable[[], None]:
    """A transform that ends when an outside reader has seen what was before it."""

    def wait() -> None:
        assert Deadline(PATIENCE_S).wait_for(
            lambda: [one.value for one in read_committed(bootstrap, job.out, settled=False)] == [b"quick"]
        )

    return wait


def job_with(job: FaultJob, slow: Callable[[], None]) -> Job:
    def transform(record: InputRecord) -> list[OutputRecord]:
        value = record.value or b""
        if value.startswith(b"slow"):
            slow()
        if value.endswith(b"poison"):
            raise ValueError
        return [OutputRecord(job.out, value, record.key)]

    return Job(name=job.name, inputs=job.inputs, outputs=[job.out], transform=transform)


def copied(job: FaultJob) -> Callable[[SeenRecord], list[Output]]:
    return lambda record: [(job.out, record.key, record.value)]


def settings_of_one_record_a_fetch(bootstrap: str, job: FaultJob, mode: str) -> Settings:
    by_partition = {"ownership__mode": mode, "ownership__partitions": (f"{job.inputs[0]}:0",)}
    return settings_for(
        bootstrap,
        transaction__timeout_ms=TIMEOUT_MS,
        input__fetch_records=1,
        **(by_partition if mode == "partition" else {}),
    )


@pytest.mark.parametrize("mode", ["group", "partition"])
def test_record_slower_than_a_transaction_behind_a_quick_one_expires_nothing(
    bootstrap: str, mode: str
) -> None:
    job = fault_job(bootstrap, partitions=1)
    values = [b"quick", b"slow 1", b"quick", b"slow 2", *[b"quick %d" % n for n in range(8)]]
    produce_plain(bootstrap, job.inputs[0], values)

    settings = settings_of_one_record_a_fetch(bootstrap, job, mode)
    run = Running(job_with(job, sleeping), settings, until_caught_up=True)
    run.wait()

    assert assert_exactly_once(bootstrap, job.group, job.inputs, [job.out], copied(job)).processed == 12
    assert not expired(run)


def settings_of_an_impatient_group(bootstrap: str) -> Settings:
    return settings_for(
        bootstrap,
        transaction__timeout_ms=TIMEOUT_MS,
        ownership__session_timeout_ms=TIMEOUT_MS,
        ownership__max_poll_interval_ms=TIMEOUT_MS,
        ownership__static_membership=False,
    )


@pytest.mark.slow
def test_record_slower_than_the_group_waits_for_a_member_ends_the_job_and_says_what_to_set(
    bootstrap: str,
) -> None:
    """The member is dropped, its partitions come back, and the same record comes again: for ever."""
    job = fault_job(bootstrap, partitions=2)
    produce_plain(
        bootstrap, job.inputs[0], [PlainRecord(value, partition=0) for value in (b"a", b"b", b"slow")]
    )
    produce_plain(bootstrap, job.inputs[0], [PlainRecord(b"c", partition=1)])
    run = Running(job_with(job, sleeping), settings_of_an_impatient_group(bootstrap), until_caught_up=False)
    with pytest.raises(ConfigError, match=rf"ownership\.max_poll_interval_ms is {TIMEOUT_MS}") as raised:
        run.wait()
    said = str(raised.value)
    assert f"{job.inputs[0]}[0] offset 2: the transform took " in said
    assert "Fix: a value of ownership.max_poll_interval_ms" in said
    assert exit_code_of(raised.value) is ExitCode.CONFIGURATION
    # What is before it, and in other partitions, is done; the record itself was never skipped.
    stands = committed_offsets(bootstrap, job.group, [(job.inputs[0], 0), (job.inputs[0], 1)])
    assert [offset for offset, _ in stands.values()] == [2, 1]
    assert assert_exactly_once(bootstrap, job.group, job.inputs, [job.out], copied(job)).processed == 3


def test_quick_record_is_visible_while_the_slow_one_behind_it_is_transformed(bootstrap: str) -> None:
    job = fault_job(bootstrap, partitions=1)
    produce_plain(bootstrap, job.inputs[0], [b"quick", b"slow"])
    settings = settings_of_one_record_a_fetch(bootstrap, job, "group")
    run = Running(job_with(job, until_quick_is_visible(bootstrap, job)), settings, until_caught_up=True)
    run.wait()
    first = run.told(TransactionCommitted)[0]
    assert first.offsets == {Partition(job.inputs[0], 0): 1}
    assert assert_exactly_once(bootstrap, job.group, job.inputs, [job.out], copied(job)).processed == 2


def test_slow_record_that_raises_leaves_what_was_committed_beside_it(bootstrap: str) -> None:
    job = fault_job(bootstrap, partitions=1)
    produce_plain(bootstrap, job.inputs[0], [b"quick", b"slow poison", b"quick"])
    settings = settings_of_one_record_a_fetch(bootstrap, job, "group")
    run = Running(job_with(job, until_quick_is_visible(bootstrap, job)), settings, until_caught_up=True)
    with pytest.raises(TransformError, match="offset 1"):
        run.wait()
    assert assert_exactly_once(bootstrap, job.group, job.inputs, [job.out], copied(job)).processed == 1
    assert not expired(run)


def test_slow_record_that_lets_no_thread_run_costs_one_transaction_and_not_the_job(bootstrap: str) -> None:
    """Nobody can commit beside it. From then on nothing is open, or in flight, while records are transformed."""
    job = fault_job(bootstrap, partitions=1)
    values = [b"quick", b"slow 1", b"quick", b"slow 2", *[b"quick %d" % n for n in range(8)]]
    produce_plain(bootstrap, job.inputs[0], values)

    settings = settings_of_one_record_a_fetch(bootstrap, job, "group")
    run = Running(job_with(job, holding_the_lock_of_python), settings, until_caught_up=True)
    run.wait()

    assert assert_exactly_once(bootstrap, job.group, job.inputs, [job.out], copied(job)).processed == 12
    assert len(expired(run)) == 1
    assert committed_offsets(bootstrap, job.group, [(job.inputs[0], 0)])[job.inputs[0], 0][0] == 12
