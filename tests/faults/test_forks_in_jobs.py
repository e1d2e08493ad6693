"""Code of a job forks, and the child comes back to eos with clients of its parent: it has none of librdkafka's threads.

It waited for ever, in the first call or in the destruction of a client. The parent's work was exact all the same.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from typing import TYPE_CHECKING, Never

import pytest

from eos import InputRecord, Job, OutputRecord, Session, TransactionalProducer
from eos.events import Event, PartitionsAssigned, Sampled, SessionOpened, ShardsOwned, TransactionCommitted
from eos.runner.worker import run
from tests.support.jobs_for_faults import FaultJob, fault_job, settings_for
from tests.support.observer import read_committed, unique
from tests.support.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [
    pytest.mark.broker,
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),  # from Python 3.12 on
]

COUNT = 60


class Fork:
    """Forks once, and does one thing in the child."""

    def __init__(self, in_child: Callable[[], object]) -> None:
        self._in_child = in_child
        self._child = 0

    def __call__(self) -> None:
        if not self._child:
            self._child = os.fork()
            if not self._child:
                self._child = -1
                self._in_child()

    def end_of_child(self) -> int:
        """Its exit status; one that hangs is killed, and fails the test."""
        if self._child < 0:  # this is the child, which came back as far as here
            os._exit(3)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            ended, status = os.waitpid(self._child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.05)
        os.kill(self._child, 9)
        os.waitpid(self._child, 0)
        pytest.fail(f"the forked child did not end in {PATIENCE_S:g} s")


def fail() -> Never:
    msg = "in the child"
    raise ValueError(msg)


WAYS = pytest.mark.parametrize(
    "in_child", [lambda: None, fail, lambda: sys.exit(7)], ids=["returns", "raises", "exits"]
)


def like(faults: FaultJob, transform: Callable[[InputRecord], list[OutputRecord]]) -> Job:
    """The job with another transform."""
    return Job(
        name=faults.name,
        inputs=faults.inputs,
        outputs=faults.outputs,
        transform=transform,
        dead_letters=faults.dead,
    )


@WAYS
@pytest.mark.parametrize("mode", ["group", "partition"])
def test_child_that_comes_back_from_a_transform_ends_and_the_job_is_exact(
    bootstrap: str, mode: str, in_child: Callable[[], object]
) -> None:
    faults = fault_job(bootstrap)
    faults.load(bootstrap, COUNT)
    fork, seen = Fork(in_child), 0

    def transform(record: InputRecord) -> list[OutputRecord]:
        nonlocal seen
        seen += 1
        if seen == COUNT // 2:
            fork()
        return faults._of_record(record)

    job = like(faults, transform)
    owned = {"ownership__mode": "partition", "ownership__instances": 1} if mode == "partition" else {}
    run(job, settings_for(bootstrap, ownership__ordinal=0, **owned), until_caught_up=True)
    assert fork.end_of_child() == 1
    assert faults.check(bootstrap).processed == COUNT


@WAYS
@pytest.mark.parametrize(
    "heard", [ShardsOwned, SessionOpened, PartitionsAssigned, TransactionCommitted, Sampled]
)
def test_child_that_comes_back_from_a_listener_ends(
    bootstrap: str, heard: type[Event], in_child: Callable[[], object]
) -> None:
    """It stayed in its next call of a client for ever; behind ShardsOwned it ran the job a second time."""
    faults = fault_job(bootstrap)
    faults.load(bootstrap, COUNT)
    fork = Fork(in_child)

    def listener(event: Event) -> None:
        if isinstance(event, heard):
            fork()

    run(faults.job(), settings_for(bootstrap), until_caught_up=True, listener=listener)
    assert fork.end_of_child() == 1
    assert faults.check(bootstrap).processed == COUNT


@WAYS
def test_child_that_comes_back_from_a_block_of_a_session_ends(
    bootstrap: str, in_child: Callable[[], object]
) -> None:
    job = fault_job(bootstrap)
    job.load(bootstrap, COUNT)
    fork = Fork(in_child)
    settings = settings_for(bootstrap, input__fetch_records=10)
    with Session(
        settings, app=job.name, inputs=job.inputs, outputs=job.outputs, until_caught_up=True
    ) as session:
        for batch in session:
            with session.transaction(batch) as txn:
                for record in batch:
                    for output in job._of_record(record):
                        txn.produce(output.topic, output.value, key=output.key)
                fork()
    assert fork.end_of_child() == 1
    assert job.check(bootstrap).processed == COUNT


def test_child_that_leaves_the_block_of_a_producer_ends(bootstrap: str) -> None:
    out = fault_job(bootstrap).out
    fork = Fork(lambda: sys.exit(7))
    with (
        TransactionalProducer(settings_for(bootstrap), app=unique("app")) as producer,
        producer.transaction() as txn,
    ):
        txn.produce(out, b"once")
        fork()
    assert fork.end_of_child() == 1
    assert [record.value for record in read_committed(bootstrap, out)] == [b"once"]


def test_children_of_multiprocessing_meet_nothing_of_it(bootstrap: str) -> None:
    faults = fault_job(bootstrap)
    faults.load(bootstrap, COUNT)
    with multiprocessing.get_context("fork").Pool(1) as pool:

        def transform(record: InputRecord) -> list[OutputRecord]:
            assert pool.apply(abs, (-3,)) == 3
            process = multiprocessing.get_context("fork").Process(target=abs, args=(1,))
            if record.offset == COUNT // 4:
                process.start()
                process.join(PATIENCE_S)
                assert process.exitcode == 0
            return faults._of_record(record)

        job = like(faults, transform)
        run(job, settings_for(bootstrap), until_caught_up=True)
    assert faults.check(bootstrap).processed == COUNT
