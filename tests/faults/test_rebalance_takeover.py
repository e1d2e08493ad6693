"""How long the partitions of a killed member wait under KIP-848: for the broker's session timeout, no longer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from eos.base.deadline import Deadline
from eos.local import LocalKafka
from tests.support.jobs_for_faults import fault_job, in_process, run_to_end, settings_for, told_at
from tests.support.observer import PlainRecord, produce_plain, read_uncommitted
from tests.support.own_broker import own_broker
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SESSION_S = 3.0
NOT_BY_DEFAULT_S = 22.0  # half of the broker's default


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A broker whose KIP-848 sessions end sooner than after its default of 45 s."""
    times = {
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.session.timeout.ms": str(int(SESSION_S * 1000)),
        "group.consumer.min.heartbeat.interval.ms": "500",
        "group.consumer.heartbeat.interval.ms": "1000",
    }
    with own_broker(tmp_path_factory.mktemp("quick"), properties=times) as cluster:
        yield cluster


@pytest.mark.parametrize("own_loop", [False, True], ids=["eos.run", "own loop"])
def test_replacement_under_kip_848_owns_the_partitions_once_the_session_of_the_dead_is_over(
    quick: LocalKafka, *, own_loop: bool
) -> None:
    """A static member could not even join until then (UNRELEASED_INSTANCE_ID, fatal for the client)."""
    job = fault_job(quick.bootstrap_servers, partitions=4, pause_ms=5, own_loop=own_loop)
    settings: dict[str, Any] = {
        "ownership__protocol": "consumer",
        "ownership__static_membership": False,
        "transaction__interval_ms": 9_000,
    }
    with in_process(job, quick.bootstrap_servers, **settings) as victim:
        victim.wait_line(r"PartitionsAssigned.*\[", PATIENCE_S)
        produce_plain(
            quick.bootstrap_servers,
            job.inputs[0],
            [PlainRecord(b"%d" % i, partition=i % 4) for i in range(400)],
        )
        assert Deadline(PATIENCE_S).wait_for(
            lambda: read_uncommitted(quick.bootstrap_servers, job.audit) != []
        )
        victim.kill()
        killed_at = time.monotonic()
        with in_process(job, quick.bootstrap_servers, **settings) as heir:
            assigned = heir.wait_line(r"PartitionsAssigned.*\[3\]", PATIENCE_S)
            assert told_at(assigned) - killed_at < NOT_BY_DEFAULT_S
            heir.terminate()
            assert heir.wait(PATIENCE_S) == 0
    run_to_end(job, settings_for(quick.bootstrap_servers))
    assert job.check(quick.bootstrap_servers).processed == 400
