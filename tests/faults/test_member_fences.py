"""The group fences a static member: by its own late requests, by a stranger under its name, by a replacement.

Without a rival the session joins again and goes on; in doubt it stops, and it never opens its producer to find
out, because that would fence a replacement which has not committed anything yet.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from eos import FencedError, UnavailableError
from eos.base.deadline import Deadline
from eos.events import (
    CallRetried,
    PartitionsAssigned,
    PartitionsRevoked,
    ProducerOpened,
    TransactionCommitted,
    Waiting,
)
from eos.kafka.config import consumer_config
from eos.offsets import Partition
from eos.ops.observe.worker_state import WorkerState
from eos.shards import OrdinalShard
from tests.support.jobs_for_faults import FaultJob, Running, fault_job, in_thread, run_to_end, settings_for
from tests.support.own_broker import own_broker
from tests.support.patience import PATIENCE_S
from tests.support.sessions import producer_of, session_for

pytestmark = pytest.mark.broker


SESSION_MS = 6_000


@contextlib.contextmanager
def stranger(bootstrap: str, job: FaultJob) -> Iterator[Consumer]:
    """A member under the job's name that opens no producer; when it ends, the name stays until its session is over."""
    inputs = [Partition(job.inputs[0], 0), Partition(job.inputs[0], 1)]
    settings = settings_for(bootstrap, ownership__session_timeout_ms=SESSION_MS)
    member = Consumer(consumer_config(settings, job.group, 0, inputs) | {"log_level": 0})
    assigned: list[object] = []
    member.subscribe(list(job.inputs), on_assign=lambda _, partitions: assigned.append(partitions))
    deadline = time.monotonic() + PATIENCE_S
    while not assigned:
        assert time.monotonic() < deadline
        member.poll(0.1)
    try:
        yield member
    finally:
        member.close()


def fences_of_the_member(run: Running) -> list[Waiting]:
    return [e for e in run.events if isinstance(e, Waiting) and "FENCED_INSTANCE_ID" in e.reason]


@pytest.mark.parametrize("own_loop", [False, True], ids=["eos.run", "own loop"])
def test_member_fenced_by_what_nobody_keeps_alive_joins_again_and_output_is_exactly_once(
    bootstrap: str, *, own_loop: bool
) -> None:
    job = fault_job(bootstrap, pause_ms=1, own_loop=own_loop)
    job.load(bootstrap, 1_000, "a")
    settings = settings_for(bootstrap, ownership__session_timeout_ms=SESSION_MS)
    with in_thread(job, settings) as run:
        run.wait_for_commits(200)
        with stranger(bootstrap, job):
            pass
        job.load(bootstrap, 500, "b")
        run.wait_for_commits(1_500)
        assert fences_of_the_member(run)
        lost = [e for e in run.events if isinstance(e, PartitionsRevoked)]
        assert {len(e.partitions) for e in lost if e.lost} == {2}
        run.stop()
    assert job.check(bootstrap).processed == 1_500


@pytest.mark.parametrize("own_loop", [False, True], ids=["eos.run", "own loop"])
def test_member_fenced_by_one_that_lives_stops_although_no_producer_shows_a_rival(
    bootstrap: str, *, own_loop: bool
) -> None:
    job = fault_job(bootstrap, own_loop=own_loop)
    job.load(bootstrap, 100, "a")
    with in_thread(job, settings_for(bootstrap, ownership__session_timeout_ms=SESSION_MS)) as run:
        run.wait_for_commits(100)
        with stranger(bootstrap, job) as member:
            deadline = time.monotonic() + PATIENCE_S
            while run.error is None and time.monotonic() < deadline:
                member.poll(0.1)
        with pytest.raises(FencedError, match="FENCED_INSTANCE_ID"):
            run.wait()
    assert job.check(bootstrap).processed == 100


def test_suspect_zombie_does_not_take_the_shard_from_a_replacement_that_has_committed_nothing(
    bootstrap: str,
) -> None:
    """A reopen would: its init fences the replacement, and the comparison finds nothing new."""
    job = fault_job(bootstrap)
    settings = settings_for(bootstrap, ownership__session_timeout_ms=SESSION_MS)
    zombie = session_for(settings, OrdinalShard(job.name, job.group, 0), job.inputs)
    with zombie:
        while not zombie.owner.consumer.assignment:
            zombie.fetch(1, 0.1, 0.0)
        producer_of(zombie.owner)._suspect("a test")
        with in_thread(job, settings) as replacement:
            replacement.told(PartitionsAssigned)
            deadline = time.monotonic() + PATIENCE_S
            with pytest.raises(FencedError):
                while time.monotonic() < deadline:
                    if zombie.fetch(10, 0.1, 0.0):
                        pytest.fail("a fenced member reads")
                    with contextlib.suppress(TimeoutError):
                        zombie.owner.committer.join(0.0)
            job.load(bootstrap, 100, "a")
            replacement.wait_for_commits(100)
            assert len([e for e in replacement.events if isinstance(e, ProducerOpened)]) == 1
            replacement.stop()
    assert job.check(bootstrap).processed == 100


@pytest.mark.parametrize("own_loop", [False, True], ids=["eos.run", "own loop"])
def test_zombie_that_reads_on_never_commits_what_the_replacement_has(
    bootstrap: str, *, own_loop: bool
) -> None:
    """Both run the same loop; the older one ends as fenced, and every output is there once."""
    job = fault_job(bootstrap, pause_ms=1, own_loop=own_loop)
    job.load(bootstrap, 2_000, "a")
    settings = settings_for(bootstrap, ownership__session_timeout_ms=SESSION_MS)
    with in_thread(job, settings) as older:
        older.wait_for_commits(200)
        with in_thread(job, settings) as newer:
            with pytest.raises(FencedError):
                older.wait()
            already = sum(e.records_in for e in older.events if isinstance(e, TransactionCommitted))
            newer.wait_for_commits(2_000 - already)
            newer.stop()
    assert job.check(bootstrap).processed == 2_000


def test_same_name_for_other_input_is_another_member() -> None:
    settings = settings_for("nowhere:1")
    names = {
        consumer_config(settings, "g", 0, inputs)["group.instance.id"]
        for inputs in (
            [Partition("a", 0)],
            [Partition("a", 0), Partition("a", 1)],
            [Partition("a", 0), Partition("b", 0)],
        )
    }
    assert len(names) == 3


@contextlib.contextmanager
def another_program(bootstrap: str, job: FaultJob) -> Iterator[None]:
    """A member of the job's group that shares its partitions out by a strategy of its own."""
    over, joined = threading.Event(), threading.Event()

    def poll() -> None:
        options = {"bootstrap.servers": bootstrap, "group.id": job.group, "log_level": 0}
        member = Consumer({**options, "enable.auto.commit": False, "partition.assignment.strategy": "range"})
        member.subscribe(list(job.inputs), on_assign=lambda *_: joined.set())
        while not over.is_set():
            member.poll(0.1)
        member.close()

    thread = threading.Thread(target=poll, name="another-program", daemon=True)
    thread.start()
    try:
        assert joined.wait(PATIENCE_S)
        yield
    finally:
        over.set()
        thread.join(PATIENCE_S)


@pytest.mark.slow
def test_member_that_its_group_refuses_for_ever_ends_with_what_the_group_says(bootstrap: str) -> None:
    """It waited without a deadline, also as a run that catches up."""
    job = fault_job(bootstrap)
    run_to_end(job, settings_for(bootstrap, ownership__static_membership=False))
    job.load(bootstrap, 20)
    with (
        another_program(bootstrap, job),
        in_thread(
            job, settings_for(bootstrap, input__offline_timeout_ms=10_000), until_caught_up=True
        ) as run,
        pytest.raises(UnavailableError, match=r"no place in the group .*INCONSISTENT_GROUP_PROTOCOL.* Fix:"),
    ):
        run.wait()
    run_to_end(job, settings_for(bootstrap))
    assert job.check(bootstrap).processed == 20


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["cooperative", "consumer"])
def test_member_too_many_for_its_group_ends_as_unavailable_and_names_the_limit(
    tmp_path: Path, protocol: str
) -> None:
    """By KIP-848 it is a fatal error of the client, which had no class here."""
    limits = {"group.max.size": "1", "group.consumer.max.size": "1"}
    own: dict[str, object] = {"ownership__protocol": protocol, "input__offline_timeout_ms": 6_000}
    with own_broker(tmp_path, properties=limits) as full:
        bootstrap = full.bootstrap_servers
        job = fault_job(bootstrap)
        job.load(bootstrap, 20)
        with in_thread(job, settings_for(bootstrap, **own)) as run:
            run.wait_for_commits(20)
            second = settings_for(bootstrap, ownership__ordinal=1, **own)
            with (
                in_thread(job, second) as refused,
                pytest.raises(UnavailableError, match=r"group\.max\.size .*Fix: fewer instances"),
            ):
                refused.wait()
            job.load(bootstrap, 20, "b")
            run.wait_for_commits(40)
            run.stop()
        assert job.check(bootstrap).processed == 40


def test_member_that_its_group_refuses_is_not_ready_and_goes_on_once_it_is_let_in(bootstrap: str) -> None:
    """Its coordinator is connected, and it has no partition that could show anything: readiness said yes."""
    job = fault_job(bootstrap)
    job.load(bootstrap, 20, "a")
    run_to_end(job, settings_for(bootstrap, ownership__static_membership=False))
    job.load(bootstrap, 20, "b")
    worker = WorkerState()
    with contextlib.ExitStack() as other:
        other.enter_context(another_program(bootstrap, job))
        with in_thread(job, settings_for(bootstrap)) as run:
            run.also(worker)
            assert Deadline(PATIENCE_S).wait_for(lambda: worker.report().outside_s > 10)

            def said(*words: str) -> bool:
                texts = [
                    one.error if isinstance(one, CallRetried) else one.reason
                    for one in run.events
                    if isinstance(one, (CallRetried, Waiting))
                ]
                return any(all(word in text for word in words) for text in texts)

            assert said("INCONSISTENT_GROUP_PROTOCOL", "Fix: a group of its own")
            assert Deadline(PATIENCE_S).wait_for(
                lambda: said("the coordinator of the group", "refuses this member")
            )
            other.close()
            run.wait_for_commits(20)
            assert Deadline(PATIENCE_S).wait_for(lambda: worker.report().outside_s == 0)
            run.stop()
    assert job.check(bootstrap).processed == 40
