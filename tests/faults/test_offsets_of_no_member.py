"""A member whom its group has dropped while a record was transformed: its offsets never take the place of the next owner's.

A classic group takes transactional offsets that name neither a generation nor a member from any client, and while it is empty
all that name no generation. librdkafka forgets both at once when it hears that it is no member, and says so in the next poll.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from eos.base.deadline import Deadline
from eos.events import PartitionsAssigned, PartitionsRevoked
from eos.job import Job
from eos.kafka.admin import Admin
from eos.records import InputRecord, OutputRecord
from eos.testing.proxy.frames import ApiKey, Frame
from eos.testing.proxy.hold_proxy import HoldProxy
from tests.support.jobs_for_faults import FaultJob, Running, fault_job, settings_for
from tests.support.observer import PlainRecord, committed_offsets, produce_plain, read_committed
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker

_MAX_POLL_S = 6.0
ILLEGAL_GENERATION = 22
CHANGES: dict[str, Any] = {
    "ownership__session_timeout_ms": 6_000,
    "ownership__max_poll_interval_ms": int(_MAX_POLL_S * 1000),
    "transaction__timeout_ms": 6_000,
}


def of_an_old_generation(frame: Frame, answer: bytes) -> bytes:
    """As a coordinator answers a heartbeat that has missed a rebalance."""
    return frame.with_error(answer, ILLEGAL_GENERATION)


class Sleeping:
    """The first transform of all stands still until it is woken."""

    def __init__(self, job: FaultJob) -> None:
        self._job = job
        self._first = threading.Lock()
        self._woken = threading.Event()
        self.sleeps = threading.Event()

    def job(self) -> Job:
        return Job(
            name=self._job.name, inputs=self._job.inputs, outputs=[self._job.out], transform=self._transform
        )

    def wake(self) -> None:
        self._woken.set()

    def _transform(self, record: InputRecord) -> Sequence[OutputRecord]:
        if self._first.acquire(blocking=False):
            self.sleeps.set()
            self._woken.wait(PATIENCE_S)
        return [OutputRecord(self._job.out, record.value, record.key)]


@pytest.mark.parametrize("own_loop", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_sleeper_that_is_no_member_commits_nothing_over_the_offsets_of_a_living_one(
    bootstrap: str, proxy: HoldProxy, *, own_loop: bool
) -> None:
    job = fault_job(bootstrap, partitions=1, own_loop=own_loop)
    changes = {**CHANGES, "ownership__static_membership": False}
    slept_through(bootstrap, proxy, job, changes, heir_leaves=False)


@pytest.mark.slow
@pytest.mark.parametrize("static", [False, True])
def test_sleeper_that_is_no_member_commits_nothing_over_the_offsets_of_one_that_has_come_and_gone(
    bootstrap: str, proxy: HoldProxy, *, static: bool
) -> None:
    changes = {**CHANGES, "ownership__static_membership": static}
    slept_through(bootstrap, proxy, fault_job(bootstrap, partitions=1), changes, heir_leaves=True)


def slept_through(
    bootstrap: str, proxy: HoldProxy, job: FaultJob, changes: dict[str, Any], *, heir_leaves: bool
) -> None:
    """One sleeps in a transform, its group goes on without it, and it wakes up."""
    source = job.inputs[0]
    sleeping = Sleeping(job)
    sleeper = Running(
        sleeping.job(),
        settings_for(proxy.bootstrap_servers, **changes),
        until_caught_up=False,
        drive=job.drive,
    )
    heir: Running | None = None
    try:
        sleeper.told(PartitionsAssigned)
        produce_plain(bootstrap, source, [PlainRecord(b"a", partition=0), PlainRecord(b"b", partition=0)])
        assert sleeping.sleeps.wait(PATIENCE_S)
        proxy.edit_reply(ApiKey.HEARTBEAT, of_an_old_generation)
        heir = Running(
            sleeping.job(),
            settings_for(bootstrap, ownership__ordinal=1, **changes),
            until_caught_up=False,
            drive=job.drive,
        )
        heir.wait_for_commits(2)
        if heir_leaves:
            heir.stop()
            groups = Admin({"bootstrap.servers": bootstrap}).groups
            Deadline(PATIENCE_S).wait_for(lambda: not groups.members(job.group, PATIENCE_S))
            assert not groups.members(job.group, PATIENCE_S)
        time.sleep(_MAX_POLL_S / 2)  # that time is over for librdkafka too, which looks at it now and then
        sleeping.wake()
        (lost,) = sleeper.told(PartitionsRevoked)
        assert lost.lost
        assert not sleeper.committed_records
    finally:
        sleeping.wake()
        for one in filter(None, (heir, sleeper)):
            one.stop()
    assert sorted(record.value or b"" for record in read_committed(bootstrap, job.out)) == [b"a", b"b"]
    assert committed_offsets(bootstrap, job.group, [(source, 0)])[source, 0][0] == 2
