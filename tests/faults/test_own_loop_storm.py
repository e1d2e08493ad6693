"""Loops of one's own that join, leave, are killed and sleep too long, all the time: each record is processed once."""

from __future__ import annotations

import random
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs_for_faults import FaultJob, fault_job, in_process, run_to_end, settings_for
from tests.support.observer import PlainRecord, produce_plain
from tests.support.own_broker import own_broker
from tests.support.patience import PATIENCE_S
from tests.support.processes import Child

pytestmark = [pytest.mark.broker, pytest.mark.timeout(400)]

PARTITIONS = 9
SESSION_S = 3.0
ASSIGNED = r"PartitionsAssigned.*\[\d+\]"
KIP_848 = {
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": str(int(SESSION_S * 1000)),
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "1000",
}


class Storm:
    """Members as processes; every accident takes the one that the dice choose."""

    def __init__(self, stack: ExitStack, job: FaultJob, bootstrap: str, changes: dict[str, Any]) -> None:
        self._stack, self._job, self._bootstrap, self._changes = stack, job, bootstrap, changes
        self._rng = random.Random(848)
        self._running: dict[int, Child] = {}
        self.members: list[Child] = []

    def join(self) -> None:
        ordinal = next(n for n in range(100) if n not in self._running)
        child = self._stack.enter_context(
            in_process(self._job, self._bootstrap, ownership__ordinal=ordinal, **self._changes)
        )
        child.wait_line("SessionOpened", PATIENCE_S)
        self._running[ordinal] = child
        self.members.append(child)

    def leave(self) -> None:
        child = self._taken()
        child.terminate()
        assert child.wait(PATIENCE_S) == 0, child.lines[-3:]

    def kill(self) -> None:
        """Its replacement has its ordinal, and so its transactional.id."""
        child = self._taken()
        child.kill()
        child.wait(PATIENCE_S)
        self.join()

    def sleep(self) -> None:
        """Longer than its session: the others have its partitions when it wakes up."""
        child = self._rng.choice(list(self._running.values()))
        child.pause()
        time.sleep(SESSION_S + 1)
        child.resume()

    def pause(self) -> None:
        time.sleep(self._rng.uniform(0.5, 2))

    def end(self) -> None:
        while self._running:
            self.leave()

    def _taken(self) -> Child:
        return self._running.pop(self._rng.choice(list(self._running)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "count", "times"),
    [
        ("cooperative", 30_000, 1),
        ("cooperative", 150_000, 4),
        ("consumer", 100_000, 2),
    ],
)
def test_members_that_join_leave_die_and_sleep_repeat_and_lose_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, protocol: str, count: int, times: int
) -> None:
    job_of = {"partitions": PARTITIONS, "batch": True, "pause_ms": 15, "own_loop": True}
    changes: dict[str, Any] = {
        "ownership__protocol": protocol,
        "ownership__static_membership": False,
        "input__fetch_records": 150,
    }
    with ExitStack() as stack:
        if protocol == "consumer":  # whose session timeout is the broker's, and 45 s by default
            own = own_broker(tmp_path, properties=KIP_848)
            bootstrap = stack.enter_context(own).bootstrap_servers
        else:
            bootstrap = request.getfixturevalue("bootstrap")
            changes["ownership__session_timeout_ms"] = int(SESSION_S * 1000)
        job = fault_job(bootstrap, **job_of)
        records = [PlainRecord(b"%d" % i, b"%d" % (i % 999), i % PARTITIONS) for i in range(count)]
        loading = threading.Thread(target=produce_plain, args=(bootstrap, job.inputs[0], records))
        loading.start()
        storm = Storm(stack, job, bootstrap, changes)
        storm.join()
        storm.join()
        for _ in range(times):
            for accident in (storm.join, storm.kill, storm.leave, storm.join, storm.sleep, storm.kill):
                accident()
                storm.pause()
        storm.end()
        loading.join(PATIENCE_S)
        run_to_end(job, settings_for(bootstrap, **changes), timeout_s=200)
        moves = [line for child in storm.members for line in child.lines if "PartitionsRevoked" in line]
        assert len(moves) > 3
        assert job.check(bootstrap).processed == count
