"""Workers that join and leave all the time: hundreds of thousands of records, and each is processed once."""

from __future__ import annotations

import random
import threading
import time
from contextlib import ExitStack

import pytest

from eos.events import PartitionsAssigned
from tests.support.jobs_for_faults import Running, fault_job, in_thread, run_to_end, settings_for
from tests.support.observer import PlainRecord, produce_plain
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker


# Seconds between two accidents: a member learns of a rebalance by a heartbeat, each 500 ms under the classic
# protocol; the broker's 5 s hold under KIP-848.
@pytest.mark.parametrize(
    ("protocol", "count", "pause_s"),
    [
        ("cooperative", 60_000, 1.5),
        pytest.param("cooperative", 400_000, 3, marks=[pytest.mark.slow, pytest.mark.timeout(400)]),
        pytest.param("consumer", 400_000, 9, marks=[pytest.mark.slow, pytest.mark.timeout(400)]),
    ],
)
def test_workers_grow_from_three_to_five_and_shrink_to_two(
    bootstrap: str, protocol: str, count: int, pause_s: float
) -> None:
    job = fault_job(bootstrap, partitions=9, batch=True, pause_ms=15)
    rng = random.Random(count)
    changes: dict[str, object] = {
        "ownership__protocol": protocol,
        "ownership__static_membership": False,  # who leaves gives its partitions up at once
        "ownership__session_timeout_ms": 3_000,
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
        everyone: list[Running] = []

        def pause() -> None:
            time.sleep(pause_s * rng.uniform(0.5, 1.0))

        def join(ordinal: int) -> None:
            settings = settings_for(bootstrap, ownership__ordinal=ordinal, **changes)
            running.append(stack.enter_context(in_thread(job, settings)))
            everyone.append(running[-1])
            pause()

        loading.start()
        for ordinal in range(5):
            join(ordinal)
        for _ in range(2):  # and some leave
            victim = running.pop(rng.randrange(len(running)))
            victim.stop()
            pause()
        join(5)
        while len(running) > 2:
            running.pop(0).stop()
            pause()
        loading.join(PATIENCE_S)
        for run in running:
            run.stop()
        moves = [
            event
            for run in everyone
            for event in run.events
            if isinstance(event, PartitionsAssigned) and event.positions
        ]
    run_to_end(job, settings_for(bootstrap, **changes), timeout_s=200)
    assert len(moves) > 5
    assert job.check(bootstrap).processed == count
