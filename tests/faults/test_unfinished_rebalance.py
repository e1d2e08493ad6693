"""A rebalance that comes in two rounds is left after the first: the partitions that were to move have no owner.

A static member that joins anew, because it was killed, or because its code took longer than max.poll.interval.ms, is given
its old assignment without a rebalance; it was to ask for the second round. No member noticed, and none read on.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

import pytest

from eos.events import PartitionsAssigned
from eos.job import Job
from eos.records import InputRecord, OutputRecord
from eos.settings import Settings
from tests.support.jobs_for_faults import Running, fault_job, settings_for
from tests.support.observer import assert_copied, committed_offsets, produce_plain
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker

PARTITIONS = 4
COUNT = 200
BUSY_S = 10.0
SESSION_MS = 6_000


def settings_of(bootstrap: str, ordinal: int) -> Settings:
    return settings_for(
        bootstrap,
        transaction__timeout_ms=6_000,
        ownership__ordinal=ordinal,
        ownership__session_timeout_ms=SESSION_MS,
        ownership__max_poll_interval_ms=8_000,
    )


def test_partitions_that_no_member_got_in_the_second_round_are_read_all_the_same(bootstrap: str) -> None:
    faults = fault_job(bootstrap, partitions=PARTITIONS)
    (source,) = faults.inputs
    busy = threading.Event()

    def transform(record: InputRecord) -> list[OutputRecord]:
        if record.value == b"slow" and not busy.is_set():
            busy.set()
            time.sleep(BUSY_S)
        return [OutputRecord(faults.out, record.value, record.key)]

    job = Job(name=faults.name, inputs=faults.inputs, outputs=[faults.out], transform=transform)
    with ExitStack() as stack:

        def start(ordinal: int) -> Running:
            run = Running(job, settings_of(bootstrap, ordinal), until_caught_up=False)
            stack.callback(run.ask_to_stop)
            return run

        first = start(0)
        first.told(PartitionsAssigned)
        produce_plain(bootstrap, source, [b"slow"])
        assert busy.wait(PATIENCE_S)
        second = start(1)
        second.told(PartitionsAssigned)  # of nothing yet: the first one has to give it up before
        faults.load(bootstrap, COUNT, "v", partitions=range(PARTITIONS))
        deadline = time.monotonic() + PATIENCE_S
        while _processed(bootstrap, faults.group, source) < COUNT + 1:
            assert time.monotonic() < deadline, (first.events[-5:], second.events[-5:])
            time.sleep(0.2)
        for run in (first, second):
            run.stop()
    assert_copied(bootstrap, faults.group, source, faults.out, COUNT + 1)


def _processed(bootstrap: str, group: str, source: str) -> int:
    stands = committed_offsets(bootstrap, group, [(source, number) for number in range(PARTITIONS)])
    return sum(offset or 0 for offset, _ in stands.values())
