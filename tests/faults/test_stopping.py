"""A worker fails while it is stopping, or waits for a cluster that does not answer: the supervisor's exit code says which."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import fields, replace

import pytest
from pydantic import BaseModel

from eos.base.deadline import Deadline
from eos.events import Event
from eos.exits import ExitCode
from eos.job import Job
from eos.runner.worker import run
from eos.testing.proxy import ApiKey, HoldProxy, Outcome
from eos.transform import BoundTransform
from tests.support.jobs_for_faults import FaultJob, fault_job, in_process, run_to_end, settings_for
from tests.support.observer import produce_plain, read_committed
from tests.support.patience import PATIENCE_S
from tests.support.process_ends import MARK

pytestmark = pytest.mark.broker

ALWAYS = 1_000_000


def test_worker_that_meets_poison_while_it_is_stopping_ends_the_job_as_poison(bootstrap: str) -> None:
    job = fault_job(bootstrap, partitions=1, pause_ms=3_000, tells=True)
    produce_plain(bootstrap, job.inputs[0], [b"poison"])
    with in_process(job, bootstrap, kind="workers") as child:
        child.wait_line("transforms", PATIENCE_S)
        child.terminate()
        assert child.wait(PATIENCE_S) == ExitCode.POISON


def test_endless_transform_that_is_ended_while_the_job_stops_is_no_end_in_order(bootstrap: str) -> None:
    job = fault_job(bootstrap, partitions=1, tells=True)
    produce_plain(bootstrap, job.inputs[0], [MARK + b"endless loop"])
    with in_process(
        job, bootstrap, kind="workers", poison__transform_timeout_ms=6_000, shutdown__grace_ms=60_000
    ) as child:
        child.wait_line("transforms", PATIENCE_S)
        child.terminate()
        assert child.wait(PATIENCE_S) == ExitCode.UNEXPECTED
        assert any("poison.transform_timeout_ms = 6000" in line for line in child.lines)


def test_ctrl_c_again_ends_a_stop_that_takes_long_and_the_next_start_writes_each_record_once(
    bootstrap: str,
) -> None:
    job = fault_job(bootstrap, partitions=1, pause_ms=120_000, tells=True)
    produce_plain(bootstrap, job.inputs[0], [b"slow"])
    with in_process(job, bootstrap, kind="workers", shutdown__grace_ms=60_000) as child:
        child.wait_line("transforms", PATIENCE_S)
        child.signal(signal.SIGINT)
        child.signal(signal.SIGINT)  # as from a program between the terminal and this one: no second wish
        child.wait_line("or by Ctrl-C once more", PATIENCE_S)
        began = time.monotonic()
        child.signal(signal.SIGINT)
        assert child.wait(PATIENCE_S) == ExitCode.UNEXPECTED
        assert time.monotonic() - began < 30  # half of the grace period
    quick = replace(job, pause_ms=0)
    with in_process(quick, bootstrap, until_caught_up=True) as child:
        assert child.wait(PATIENCE_S) == ExitCode.DONE
    assert [record.value for record in read_committed(bootstrap, job.audit)] == [b"audit slow"]


@pytest.mark.slow
def test_transform_is_not_ended_for_the_time_in_which_all_processes_stood_still(bootstrap: str) -> None:
    """As in a container that is frozen: its transform has had no time either."""
    job = fault_job(bootstrap, partitions=1, tells=True)
    produce_plain(bootstrap, job.inputs[0], [MARK + b"takes 6 s"])
    with in_process(
        job, bootstrap, kind="workers", workers__spare=False, poison__transform_timeout_ms=15_000
    ) as child:
        worker = int(child.wait_line("transforms", PATIENCE_S).split()[1])
        for number, pause_s in ((signal.SIGSTOP, 17.0), (signal.SIGCONT, 0.0)):
            for pid in (child.pid, worker):
                os.kill(pid, number)
            time.sleep(pause_s)
        child.wait_line(r"TransactionCommitted.*records_in=1", PATIENCE_S)
        assert not any("Restarted(" in line for line in child.lines)
        child.terminate()
        assert child.wait(PATIENCE_S) == ExitCode.DONE


@pytest.mark.parametrize(
    "api_key",
    [
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.TXN_OFFSET_COMMIT,
        pytest.param(ApiKey.METADATA, marks=pytest.mark.slow),
        pytest.param(ApiKey.OFFSET_FETCH, marks=pytest.mark.slow),
        pytest.param(ApiKey.END_TXN, marks=pytest.mark.slow),
    ],
    ids=lambda key: key.name,
)
def test_job_that_is_stopped_while_it_opens_and_gets_no_answer_ends_in_order(
    bootstrap: str, proxy: HoldProxy, api_key: ApiKey
) -> None:
    """It was killed after the grace period, and that was the transform's fault."""
    job = fault_job(bootstrap, partitions=1)
    job.load(bootstrap, 10, partitions=[0])
    proxy.swallow(api_key, times=ALWAYS)
    with in_process(
        job, proxy.bootstrap_servers, kind="workers", shutdown__grace_ms=3_000, kafka__client=_named(job)
    ) as child:
        assert Deadline(PATIENCE_S).wait_for(lambda: _swallowed(proxy, job.name))
        child.terminate()
        assert child.wait(PATIENCE_S) == ExitCode.DONE
        assert any("asked to stop while the cluster did not answer" in line for line in child.lines)
    proxy.clear_rules()
    run_to_end(job, settings_for(bootstrap))
    assert job.check(bootstrap).processed == 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "api_key",
    [ApiKey.METADATA, ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN, ApiKey.PRODUCE],
    ids=lambda key: key.name,
)
def test_job_that_is_stopped_while_a_commit_gets_no_answer_ends_in_order(
    bootstrap: str, proxy: HoldProxy, api_key: ApiKey
) -> None:
    job = fault_job(bootstrap, partitions=1)
    job.load(bootstrap, 10, partitions=[0])
    with in_process(
        job, proxy.bootstrap_servers, kind="workers", shutdown__grace_ms=2_000, kafka__client=_named(job)
    ) as child:
        child.wait_line("TransactionCommitted", PATIENCE_S)
        proxy.swallow(api_key, times=ALWAYS)
        job.load(bootstrap, 10, "b", partitions=[0])
        assert Deadline(PATIENCE_S).wait_for(lambda: _swallowed(proxy, job.name))
        child.terminate()
        assert child.wait(PATIENCE_S) == ExitCode.DONE
    proxy.clear_rules()
    run_to_end(job, settings_for(bootstrap))
    assert job.check(bootstrap).processed == 20


def _named(job: FaultJob) -> dict[str, str]:
    return {"client.id": job.name}


def _swallowed(proxy: HoldProxy, client_id: str) -> bool:
    """Of this client: one that an earlier test has left may ask, too."""
    return any(seen.outcome is Outcome.SWALLOWED and seen.client_id == client_id for seen in proxy.frames)


def test_job_that_is_stopped_while_a_rebalance_asks_and_gets_no_answer_ends_in_order(
    bootstrap: str, proxy: HoldProxy
) -> None:
    job = fault_job(bootstrap, partitions=1)
    job.load(bootstrap, 10, partitions=[0])
    run_to_end(job, settings_for(bootstrap, ownership__static_membership=False))
    proxy.swallow(ApiKey.FETCH, times=ALWAYS)
    with in_process(
        job, proxy.bootstrap_servers, kind="workers", shutdown__grace_ms=6_000, kafka__client=_named(job)
    ) as child:
        assert Deadline(PATIENCE_S).wait_for(lambda: _swallowed(proxy, job.name))
        child.terminate()
        assert child.wait(PATIENCE_S) == ExitCode.DONE
    proxy.clear_rules()
    run_to_end(job, settings_for(bootstrap))
    assert job.check(bootstrap).processed == 10


def test_a_client_that_gets_no_answer_to_whether_a_log_was_truncated_is_replaced(
    bootstrap: str, proxy: HoldProxy
) -> None:
    """The question took all of its time, in a rebalance that no other member could end; then the job ended."""
    job = fault_job(bootstrap, partitions=1)
    job.load(bootstrap, 10, partitions=[0])
    run_to_end(job, settings_for(bootstrap, ownership__static_membership=False))
    job.load(bootstrap, 10, "b", partitions=[0])
    proxy.swallow(ApiKey.FETCH)
    run_to_end(job, settings_for(proxy.bootstrap_servers, kafka__client=_named(job)))
    assert _swallowed(proxy, job.name)
    assert job.check(bootstrap).processed == 20


def test_job_that_is_stopped_while_it_is_bound_opens_no_shard(bootstrap: str) -> None:
    """It opened its shards and closed them again, which would fence a successor that had started meanwhile."""
    given = fault_job(bootstrap, partitions=1)
    stop = threading.Event()

    class Slow(Job):
        def bound(self, settings: BaseModel | None = None) -> BoundTransform:
            stop.set()
            return super().bound(settings)

    plain = given.job()
    job = Slow(**{one.name: getattr(plain, one.name) for one in fields(plain) if one.init})
    told: list[Event] = []
    run(job, settings_for(bootstrap), stop=stop, listener=told.append)
    assert told == []
