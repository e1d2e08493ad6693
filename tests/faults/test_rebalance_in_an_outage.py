"""Partitions come to a session while a coordinator does not answer: it waits on, as long as it may."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer

from eos.base.deadline import Deadline
from eos.events import PartitionsAssigned, Waiting
from eos.testing.proxy.frames import ApiKey
from eos.testing.proxy.hold_proxy import HoldProxy
from tests.support.jobs_for_faults import FaultJob, Running, fault_job, in_thread, settings_for
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PARTITIONS = [0, 1, 2, 3]
ALWAYS = 10**6


@contextmanager
def other_member(bootstrap: str, job: FaultJob) -> Iterator[None]:
    """Another member of the group, with partitions of its own; it leaves when the block is left."""
    has_some, over = threading.Event(), threading.Event()

    def belong() -> None:
        member = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": job.group,
                "partition.assignment.strategy": "cooperative-sticky",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        member.subscribe([*job.inputs])
        while not over.is_set():
            member.poll(0.2)
            if member.assignment():
                has_some.set()
        member.close()

    thread = threading.Thread(target=belong)
    thread.start()
    try:
        assert has_some.wait(PATIENCE_S)
        time.sleep(1)  # for the job, too, the rebalance is over
        yield
    finally:
        over.set()
        thread.join(PATIENCE_S)


def unanswered(run: Running) -> int:
    return sum("no usable answer" in one.reason for one in run.events if isinstance(one, Waiting))


@pytest.mark.parametrize("own_loop", [False, True], ids=["eos.run", "own loop"])
def test_job_that_gets_partitions_while_its_transactions_have_no_coordinator_waits_on(
    bootstrap: str, proxy: HoldProxy, *, own_loop: bool
) -> None:
    job = fault_job(bootstrap, partitions=len(PARTITIONS), own_loop=own_loop)
    job.load(bootstrap, 40, "a", PARTITIONS)
    settings = settings_for(
        proxy.bootstrap_servers, transaction__timeout_ms=6_000, ownership__static_membership=False
    )
    with in_thread(job, settings) as run:
        run.wait_for_commits(40)
        with other_member(bootstrap, job):
            proxy.swallow(ApiKey.END_TXN, times=ALWAYS)
            proxy.swallow(ApiKey.INIT_PRODUCER_ID, times=ALWAYS)
            job.load(bootstrap, 40, "b", PARTITIONS)
            assert Deadline(PATIENCE_S).wait_for(lambda: unanswered(run) > 0 or run.error is not None)
        # The partitions come back in a fetch of the outage, which asks, too.
        before = unanswered(run)
        assert Deadline(PATIENCE_S).wait_for(lambda: unanswered(run) > before + 1 or run.error is not None)
        proxy.clear_rules()
        run.wait_for_commits(80)
        run.stop()
    assert job.check(bootstrap).processed == 80


def test_second_outage_of_a_job_that_has_had_no_input_since_the_first_is_counted_from_its_own_beginning(
    bootstrap: str, proxy: HoldProxy
) -> None:
    job = fault_job(bootstrap, partitions=len(PARTITIONS))
    job.load(bootstrap, 40, "a", PARTITIONS)
    settings = settings_for(
        proxy.bootstrap_servers,
        transaction__timeout_ms=6_000,
        ownership__static_membership=False,
        input__offline_timeout_ms=20_000,
    )
    with in_thread(job, settings) as run:
        run.wait_for_commits(40)
        for outage in (1, 2):
            with other_member(bootstrap, job):
                assigned = len(run.told(PartitionsAssigned))
                proxy.swallow(ApiKey.OFFSET_FETCH, times=ALWAYS)
            assert Deadline(PATIENCE_S).wait_for(
                lambda outage=outage: unanswered(run) >= outage or run.error is not None  # type: ignore[misc]
            )
            proxy.clear_rules()
            run.told(PartitionsAssigned, count=assigned + 1)
            time.sleep(settings.input.offline_timeout_s)
        job.load(bootstrap, 40, "b", PARTITIONS)
        run.wait_for_commits(80)
        run.stop()
    assert job.check(bootstrap).processed == 80
