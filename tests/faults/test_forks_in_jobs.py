"""Code of a job forks, and the child comes back to eos with clients of its parent: it has none of librdkafka's threads.

It waited for ever, in the first call or in the destruction of a client. The parent's work was exact all the same.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Never

import pytest

from eos import (
    InputRecord,
    Job,
    OutputRecord,
    ReadCommittedConsumer,
    Session,
    TransactionalProducer,
    UsageError,
)
from eos.events import Event, PartitionsAssigned, Sampled, SessionOpened, ShardsOwned, TransactionCommitted
from eos.runner.worker import run
from tests.support.jobs_for_faults import FaultJob, fault_job, settings_for
from tests.support.observer import read_committed, unique
from tests.support.patience import PATIENCE_S

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


# What the tasks of a pool call; set before the pool forks, as a user's global variable is.
_CALLS: dict[str, Callable[[], object]] = {}


def _call(name: str) -> object:
    return _CALLS[name]()


def refused_in_a_pool(**calls: Callable[[], object]) -> None:
    """Each of these calls is refused in both of its tasks by a worker that lives on: it hung, or ended the worker."""
    _CALLS.clear()
    _CALLS.update(calls)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        for name in [*calls, *calls]:
            with pytest.raises(UsageError, match=f"it was made in process {os.getpid()}, .* is a fork of it"):
                pool.apply_async(_call, (name,)).get(PATIENCE_S)
        assert pool.apply_async(abs, (-3,)).get(PATIENCE_S) == 3


def test_producer_is_refused_at_every_call_of_a_pool_and_goes_on_in_its_process(bootstrap: str) -> None:
    """The second task killed the worker, and the pool waited for ever."""
    out = fault_job(bootstrap).out
    with TransactionalProducer(settings_for(bootstrap), app=unique("app")) as producer:
        early = producer.transaction()
        refused_in_a_pool(
            begin=early.__enter__, transaction=producer.transaction, open=producer.open, close=producer.close
        )
        with producer.transaction() as txn:
            txn.produce(out, b"in its process")
    assert [record.value for record in read_committed(bootstrap, out)] == [b"in its process"]


def test_record_that_a_pool_produces_into_an_open_block_is_refused_and_not_lost_in_silence(
    bootstrap: str,
) -> None:
    """The fork's copy of the client took it, and nothing ever sent it."""
    job = fault_job(bootstrap)
    with (
        TransactionalProducer(settings_for(bootstrap), app=unique("app")) as producer,
        producer.transaction() as txn,
    ):
        txn.produce(job.out, b"in its process")
        refused_in_a_pool(
            produce=lambda: txn.produce(job.out, b"in a fork"),
            batch=lambda: txn.produce_batch(job.out, [{"value": b"in a fork"}]),
            records=lambda: txn.produce_records([OutputRecord(job.out, b"in a fork")]),
        )
    assert [record.value for record in read_committed(bootstrap, job.out)] == [b"in its process"]


@pytest.mark.parametrize("opened", [True, False], ids=["opened", "made"])
def test_session_from_before_a_fork_is_refused_at_every_call_of_a_pool(bootstrap: str, opened: bool) -> None:
    """It ended the worker, and spoke of a fork inside a job, also where it had only been made."""
    job = fault_job(bootstrap)
    job.load(bootstrap, COUNT)
    session = Session(
        settings_for(bootstrap), app=job.name, inputs=job.inputs, outputs=job.outputs, until_caught_up=True
    )
    if opened:
        session.open()
    refused_in_a_pool(
        open=session.open, fetch=session.fetch, read=lambda: next(iter(session)), close=session.close
    )
    if not opened:
        session.open()
    for batch in session:
        with session.transaction(batch) as txn:
            txn.produce_records([output for record in batch for output in job._of_record(record)])
    session.close()
    assert job.check(bootstrap).processed == COUNT


def test_consumer_from_before_a_fork_is_refused_at_every_call_of_a_pool(bootstrap: str) -> None:
    job = fault_job(bootstrap)
    job.load(bootstrap, COUNT)
    with ReadCommittedConsumer(settings_for(bootstrap), job.inputs, group=job.name) as consumer:
        refused_in_a_pool(
            fetch=lambda: consumer.fetch(1, timeout_s=0.1), rewind=consumer.rewind, close=consumer.close
        )
        deadline = time.monotonic() + PATIENCE_S
        read = 0
        while read < COUNT and time.monotonic() < deadline:
            read += len(consumer.fetch(COUNT, timeout_s=1.0))
    assert read == COUNT


# What an initializer binds anew, as it would a user's global variable, and what it makes of its own.
_OWN: dict[str, ReadCommittedConsumer | Session | TransactionalProducer] = {}


def _bind_anew(make: Callable[[int], ReadCommittedConsumer | Session | TransactionalProducer]) -> None:
    _OWN["client"] = make(1)
    _OWN["client"].open()
    gc.collect()  # what the parent had made goes


def _task(number: int) -> int:
    gc.collect()
    return number


@pytest.mark.parametrize("kind", ["producer", "session", "consumer"])
def test_pool_whose_initializer_makes_a_client_of_its_own_works(bootstrap: str, kind: str) -> None:
    """As the error says. The parent's client was destroyed by the next garbage collection, which never ended, or aborted."""
    job = fault_job(bootstrap)
    job.load(bootstrap, COUNT)

    def make(ordinal: int) -> ReadCommittedConsumer | Session | TransactionalProducer:
        settings = settings_for(bootstrap, ownership__ordinal=ordinal)
        if kind == "producer":
            return TransactionalProducer(settings, app=job.name)
        if kind == "session":
            return Session(settings, app=job.name, inputs=job.inputs, outputs=job.outputs)
        return ReadCommittedConsumer(settings, job.inputs, group=job.name)

    _OWN["client"] = make(0)
    _OWN["client"].open()
    if isinstance(parents := _OWN["client"], Session | ReadCommittedConsumer):
        parents.fetch(10, timeout_s=1.0)
    with multiprocessing.get_context("fork").Pool(1, initializer=_bind_anew, initargs=(make,)) as pool:
        assert pool.map_async(_task, range(3)).get(PATIENCE_S) == [0, 1, 2]
        parents.close()


@pytest.mark.parametrize("kind", ["consumer", "session"])
def test_fork_that_lets_go_of_its_parents_client_ends_as_its_own_code_says(bootstrap: str, kind: str) -> None:
    """By SIGABRT, or never."""
    job = fault_job(bootstrap)
    job.load(bootstrap, COUNT)
    settings = settings_for(bootstrap)
    made: list[ReadCommittedConsumer | Session] = [
        ReadCommittedConsumer(settings, job.inputs, group=job.name)
        if kind == "consumer"
        else Session(settings, app=job.name, inputs=job.inputs, outputs=job.outputs)
    ]
    made[0].open()
    made[0].fetch(10, timeout_s=1.0)

    def let_go() -> Never:
        made.clear()
        gc.collect()
        os._exit(4)

    fork = Fork(let_go)
    fork()
    assert fork.end_of_child() == 4
    made[0].close()


def test_interpreter_of_a_fork_ends_with_its_parents_clients(bootstrap: str, tmp_path: Path) -> None:
    job = fault_job(bootstrap)
    job.load(bootstrap, COUNT)
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import os, sys
from eos import ReadCommittedConsumer, Settings
consumer = ReadCommittedConsumer(Settings.load(), {list(job.inputs)!r}, group={job.name!r})
consumer.open()
consumer.fetch(10, timeout_s=1.0)
if not (child := os.fork()):
    sys.exit(5)
_, status = os.waitpid(child, 0)
consumer.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""
    )
    environment = {"EOS_KAFKA__BOOTSTRAP_SERVERS": bootstrap, "EOS_INPUT__START": "earliest"}
    ended = subprocess.run(
        [sys.executable, program],
        env={**os.environ, **environment},
        timeout=PATIENCE_S,
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 5, ended.stderr
