"""The group fences a static member: by its own late requests, by a stranger under its name, by a replacement.

Without a rival the session joins again and goes on; in doubt it stops, and it never opens its producer to find
out, because that would fence a replacement which has not committed anything yet.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer

from eos import FencedError
from eos.events import (
    CallRetried,
    PartitionsAssigned,
    PartitionsRevoked,
    ProducerOpened,
    TransactionCommitted,
)
from eos.kafka.config import consumer_config
from eos.offsets import Partition
from eos.shards import OrdinalShard
from tests.support.jobs_for_faults import FaultJob, Running, fault_job, in_thread, settings_for
from tests.support.sessions import session_for

pytestmark = pytest.mark.broker

SESSION_MS = 1_500
STOPS_WITHIN_S = SESSION_MS / 1000 + 5 + 5


@contextlib.contextmanager
def stranger(bootstrap: str, job: FaultJob) -> Iterator[Consumer]:
    """A member under the job's name that opens no producer; when it ends, the name stays until its session is over."""
    inputs = [Partition(job.inputs[0], 0), Partition(job.inputs[0], 1)]
    settings = settings_for(bootstrap, ownership__session_timeout_ms=SESSION_MS)
    member = Consumer(consumer_config(settings, job.group, 0, inputs) | {"log_level": 0})
    assigned: list[object] = []
    member.subscribe(list(job.inputs), on_assign=lambda _, partitions: assigned.append(partitions))
    deadline = time.monotonic() + 10
    while not assigned:
        assert time.monotonic() < deadline
        member.poll(0.1)
    try:
        yield member
    finally:
        member.close()


def fences_of_the_member(run: Running) -> list[CallRetried]:
    return [e for e in run.events if isinstance(e, CallRetried) and "FENCED_INSTANCE_ID" in e.error]


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
        assert [len(e.partitions) for e in lost if e.lost] == [2]
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
            deadline = time.monotonic() + STOPS_WITHIN_S
            while run.error is None and time.monotonic() < deadline:
                member.poll(0.1)
        with pytest.raises(FencedError, match="FENCED_INSTANCE_ID"):
            run.wait(5)
    assert job.check(bootstrap).processed == 100


def test_suspect_zombie_does_not_take_the_shard_from_a_replacement_that_has_committed_nothing(
    bootstrap: str,
) -> None:
    """A reopen would: its init fences the replacement, and the comparison finds nothing new."""
    job = fault_job(bootstrap)
    settings = settings_for(bootstrap, ownership__session_timeout_ms=SESSION_MS)
    zombie = session_for(settings, OrdinalShard(job.name, job.group, 0), job.inputs)
    with zombie:
        while not zombie._consumer.assignment:
            zombie.fetch(1, 0.1, 0.0)
        zombie._producer._suspect("a test")
        with in_thread(job, settings) as replacement:
            replacement.told(PartitionsAssigned)
            deadline = time.monotonic() + STOPS_WITHIN_S
            with pytest.raises(FencedError):
                while time.monotonic() < deadline:
                    if zombie.fetch(10, 0.1, 0.0):
                        pytest.fail("a fenced member reads")
                    with contextlib.suppress(TimeoutError):
                        zombie.join(0.0)
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
                older.wait(STOPS_WITHIN_S)
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
