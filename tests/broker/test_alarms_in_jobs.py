"""A time limit by SIGALRM that a job's library leaves running: its TimeoutError may come in any line of eos."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest

from eos.core.committer import Committer
from eos.offsets import OffsetVector
from eos.runner.worker import run
from eos.testing.proxy.frames import ApiKey
from eos.testing.proxy.hold_proxy import HoldProxy, Outcome
from tests.support.jobs_for_faults import fault_job, run_to_end, settings_for

pytestmark = pytest.mark.broker

COUNT = 60
ILLEGAL_GENERATION = 22


def too_late(*_: object) -> None:
    raise TimeoutError


@pytest.fixture(autouse=True)
def _alarms() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, too_late)
    yield
    signal.signal(signal.SIGALRM, before)


def test_alarm_between_a_commit_and_its_note_does_not_make_the_commit_again(
    bootstrap: str, proxy: HoldProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next transaction is aborted, and the rewind after it goes back to the last commit that was noted."""
    job = fault_job(bootstrap, partitions=1)
    job.load(bootstrap, COUNT, "v", partitions=[0])
    noted = Committer._take_up_commits
    rung: list[OffsetVector] = []

    def interrupted(committer: Committer) -> None:
        offsets = committer._ledger.unsettled
        if any(offset > 0 for offset in offsets.values()) and not rung:
            rung.append(offsets)
            proxy.refuse(ApiKey.TXN_OFFSET_COMMIT, ILLEGAL_GENERATION)
            signal.raise_signal(signal.SIGALRM)
        noted(committer)

    monkeypatch.setattr(Committer, "_take_up_commits", interrupted)
    limits = {"transaction__max_records": 10, "input__fetch_records": 10}
    with suppress(TimeoutError):
        run(job.job(), settings_for(proxy.bootstrap_servers, **limits), until_caught_up=True)
    assert rung
    proxy.clear_rules()
    run_to_end(job, settings_for(bootstrap, ownership__session_timeout_ms=6_000))
    assert job.check(bootstrap).processed == COUNT


def test_job_whose_libraries_set_alarms_all_the_time_is_exact(bootstrap: str, proxy: HoldProxy) -> None:
    """System calls end by EINTR, a commit that is refused is made again."""
    job = fault_job(bootstrap, pause_ms=1)
    job.load(bootstrap, 1_000, "v")
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        proxy.refuse(ApiKey.TXN_OFFSET_COMMIT, ILLEGAL_GENERATION, nth=2, times=2)
        run(job.job(), settings_for(proxy.bootstrap_servers), until_caught_up=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert Outcome.REFUSED in {one.outcome for one in proxy.requests(ApiKey.TXN_OFFSET_COMMIT)}
    assert job.check(bootstrap).processed == 1_000
