"""Workers that join and leave all the time: hundreds of thousands of records, and each is processed once."""

from __future__ import annotations

import random
import threading
import time
from contextlib import ExitStack

import pytest

from eos.events import PartitionsAssigned, PartitionsRevoked
from tests.support.jobs_for_faults import Running, fault_job, in_thread, run_to_end, settings_for
from tests.support.observer import PlainRecord, produce_plain

pytestmark = pytest.mark.broker


@pytest.mark.parametrize("protocol", ["cooperative", "consumer"])
@pytest.mark.parametrize(
    "count", [60_000, pytest.param(400_000, marks=[pytest.mark.slow, pytest.mark.timeout(400)])]
)
def test_workers_grow_from_three_to_five_and_shrink_to_two(
    bootstrap: str, protocol: str, count: int
) -> None:
    job = fault_job(bootstrap, partitions=9, batch=True, pause_ms=15)
    rng = random.Random(count)
    changes: dict[str, object] = {
        "ownership__protocol": protocol,
        "ownership__static_membership": False,  # who leaves gives its partitions up at once
        "ownership__session_timeout_ms": 6_000,
        "transaction__interval_ms": 120,
        "input__fetch_records": 150,
    }
    if protocol == "consumer":
        del changes["ownership__session_timeout_ms"]
    loading = threading.Thread(
        target=produce_plain,
        args=(
            bootstrap,
            job.inputs[0],
            [PlainRecord(b"%d" % i, b"%d" % (i % 999), i % 9) for i in range(count)],
        ),
    )
    with ExitStack() as stack:
        running: list[Running] = []

        def join(ordinal: int) -> None:
            settings = settings_for(bootstrap, ownership__ordinal=ordinal, **changes)
            running.append(stack.enter_context(in_thread(job, settings)))
            time.sleep(rng.uniform(0.2, 1.2))

        loading.start()
        for ordinal in range(5):
            join(ordinal)
        for _ in range(2):  # one leaves and comes back under its ordinal
            victim = running.pop(rng.randrange(len(running)))
            victim.stop()
            time.sleep(rng.uniform(0.2, 1.0))
        join(5)
        while len(running) > 2:
            running.pop(0).stop()
            time.sleep(rng.uniform(0.2, 1.0))
        loading.join(120)
        assert any(isinstance(event, PartitionsAssigned) for event in running[-1].events)
        moved = sum(isinstance(event, PartitionsRevoked) for run in running for event in run.events)
        for run in running:
            run.stop()
    run_to_end(job, settings_for(bootstrap, **changes), timeout_s=200)
    assert moved > 0
    assert job.check(bootstrap, timeout_s=100).processed == count
