"""A record is in work while its transform runs: an owner that waits for a commit, or ends by its own code, has not died with it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from eos.base.deadline import Deadline
from eos.core.owner import ShardOwner
from eos.core.pipeline import Pipeline
from eos.crashes.search import Search
from eos.events import RecordDeadLettered, ignore_event
from eos.faces.surroundings import SURROUNDINGS
from eos.group.metadata import OwnershipMode
from eos.kafka.consumer import ConsumerClient
from eos.offsets import Partition
from eos.records import InputBatch
from eos.testing.proxy.frames import ApiKey, Frame
from eos.testing.proxy.hold_proxy import HoldProxy, ends_with
from tests.faults.test_deadly_records import OWNERSHIPS, attempts
from tests.support.jobs_for_faults import FaultJob, fault_job, in_process, in_thread, run_to_end, settings_for
from tests.support.offset_ages import store
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker

NOT_ENOUGH_REPLICAS = 19
LONG_AGO_DAYS = 2 / (24 * 60)
MEMBER: dict[str, dict[str, Any]] = {
    "group": {"ownership__static_membership": False, "ownership__session_timeout_ms": 6_000},
    "partition": {},
}
FEW, ALONE = 2, 3  # attempts at which records are looked for


def job_with(bootstrap: str, ownership: str, found: int) -> FaultJob:
    """Its last owners have left this attempt, some minutes ago."""
    job = fault_job(bootstrap)
    job.load(bootstrap, 10, partitions=[0])
    store(
        bootstrap,
        job,
        {0: 0, 1: 0},
        days_ago=LONG_AGO_DAYS,
        had=2,
        mode=OwnershipMode(ownership),
        attempts={0: found} if found else None,
    )
    return job


def require_all_processed(bootstrap: str, job: FaultJob, ownership: str) -> None:
    events = run_to_end(job, settings_for(bootstrap, poison__policy="skip", **OWNERSHIPS[ownership]))
    assert [event for event in events if isinstance(event, RecordDeadLettered)] == []
    assert job.check(bootstrap).processed == 10


def refused_from_now_on(proxy: HoldProxy) -> threading.Event:
    """As where the output's leader has too few replicas: it takes nothing, and the client tries on. The event: it has come."""
    come = threading.Event()
    proxy.refuse(ApiKey.PRODUCE, NOT_ENOUGH_REPLICAS, times=10**6, after_s=0.05, then=lambda _: come.set())
    return come


@pytest.mark.parametrize("ownership", OWNERSHIPS)
@pytest.mark.parametrize("found", [FEW - 1, pytest.param(FEW, marks=pytest.mark.slow), ALONE + 1])
def test_owner_that_is_stopped_while_a_commit_waits_leaves_no_attempt(
    bootstrap: str, proxy: HoldProxy, ownership: str, found: int
) -> None:
    job = job_with(bootstrap, ownership, found)
    settings = settings_for(
        proxy.bootstrap_servers, shutdown__grace_ms=500, poison__policy="skip", **OWNERSHIPS[ownership]
    )
    for _ in range(2):
        come = refused_from_now_on(proxy)
        with in_thread(job, settings) as running:
            assert come.wait(PATIENCE_S)
            running.stop()
        proxy.clear_rules()
        assert max(attempts(bootstrap, job)) <= min(found, FEW)
    require_all_processed(bootstrap, job, ownership)


@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_owner_that_is_killed_while_a_commit_waits_has_not_died_with_its_record(
    bootstrap: str, proxy: HoldProxy, ownership: str
) -> None:
    job = job_with(bootstrap, ownership, ALONE + 1)
    come = refused_from_now_on(proxy)
    with in_process(
        job,
        proxy.bootstrap_servers,
        transaction__timeout_ms=6_000,
        **MEMBER[ownership],
        **OWNERSHIPS[ownership],
    ) as child:
        assert come.wait(PATIENCE_S), child.lines
        child.kill()
    proxy.clear_rules()
    assert attempts(bootstrap, job)[0] <= FEW
    require_all_processed(bootstrap, job, ownership)


@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_owner_that_is_stopped_when_its_announcement_had_no_answer_takes_it_back(
    bootstrap: str, proxy: HoldProxy, ownership: str
) -> None:
    """The commit has happened: what was announced is learned from what is stored."""
    job = job_with(bootstrap, ownership, ALONE + 1)
    settings = settings_for(
        proxy.bootstrap_servers, shutdown__grace_ms=500, poison__policy="skip", **OWNERSHIPS[ownership]
    )
    come = threading.Event()

    def of_partition_0(frame: Frame) -> bool:
        return ends_with(committed=True)(frame) and str(frame.transactional_id).endswith(".0")

    nth = {"group": 1, "partition": 2}[ownership]  # an owner by partition commits what it has found before
    proxy.drop_reply(ApiKey.END_TXN, where=of_partition_0, nth=nth, times=10**6, then=lambda _: come.set())
    with in_thread(job, settings) as running:
        assert come.wait(PATIENCE_S)
        running.ask_to_stop()
        assert Deadline(PATIENCE_S).wait_for(lambda: attempts(bootstrap, job)[0] == ALONE + 2)
        proxy.clear_rules()
        running.stop()
    assert attempts(bootstrap, job)[0] <= ALONE + 1
    require_all_processed(bootstrap, job, ownership)


@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_owner_that_is_stopped_after_a_fetch_failed_takes_its_attempt_back(
    bootstrap: str, ownership: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler's exception leaves a fetch: a rewind is due, and what is stored still says the attempt."""
    job = job_with(bootstrap, ownership, FEW - 1)
    session = Pipeline(owner_of(bootstrap, job, ownership), Search)
    with pytest.raises(KeyboardInterrupt), session:
        assert session.crashes.announce(fetch_one(session))
        assert max(attempts(bootstrap, job)) == FEW
        monkeypatch.setattr(ConsumerClient, "consume", interrupted)
        session.fetch(10, 1.0)
    assert max(attempts(bootstrap, job)) == FEW - 1


@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_attempt_is_taken_back_also_where_the_time_of_the_search_ends_during_its_transform(
    bootstrap: str, ownership: str
) -> None:
    job = job_with(bootstrap, ownership, ALONE + 1)
    owner = owner_of(bootstrap, job, ownership)
    search = Search(owner)
    with Pipeline(owner, lambda _: search) as session:
        assert search.announce(fetch_one(session))
        assert max(attempts(bootstrap, job)) == ALONE + 2
        search._suspects._look_until = 0.0
        search._suspects.look()
        search.returned()
        assert max(attempts(bootstrap, job)) <= FEW


def owner_of(bootstrap: str, job: FaultJob, ownership: str) -> ShardOwner:
    return ShardOwner(
        settings_for(bootstrap, **OWNERSHIPS[ownership]),
        app=job.name,
        inputs=job.inputs,
        outputs=[*job.outputs, job.dead],
        partition=Partition(job.inputs[0], 0) if ownership == "partition" else None,
        listener=ignore_event,
        surroundings=SURROUNDINGS,
    )


def fetch_one(session: Pipeline) -> InputBatch:
    deadline = Deadline(PATIENCE_S)
    while not (batch := session.fetch(1, 0.2)):
        assert not deadline.passed
    return batch


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt
