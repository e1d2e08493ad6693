"""How long the partitions that move are silent when a second instance joins: a few heartbeats, no share of the session."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

import pytest
from confluent_kafka import Consumer

from eos.events import PartitionsAssigned, TransactionCommitted
from eos.guards.truncated import refuse_truncated
from eos.offsets import OffsetVector, Partition
from tests.support.jobs_for_faults import Running, fault_job, in_thread, settings_for
from tests.support.observer import PlainRecord, create_topics, produce_plain, unique
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.broker

PARTITIONS = 4
# Two rounds of heartbeats every 0.5 s make about 1 s. With heartbeats at a third of the session timeout, as they were, it was
# that third and more.
SESSION_MS = 60_000
SILENT_S = 10.0


def test_partitions_that_move_to_a_second_instance_are_silent_for_a_few_heartbeats(bootstrap: str) -> None:
    """The second round of the cooperative protocol, which assigns them, begins with the members' next heartbeats."""
    job = fault_job(bootstrap, partitions=PARTITIONS)
    stop = threading.Event()
    seen: dict[int, list[float]] = defaultdict(list)  # per input partition, when its outputs became visible
    feeding = threading.Thread(target=_feed, args=(bootstrap, job.inputs[0], stop), daemon=True)
    watching = threading.Thread(target=_watch, args=(bootstrap, job.out, seen, stop), daemon=True)
    try:
        with in_thread(job, settings_for(bootstrap, ownership__session_timeout_ms=SESSION_MS)) as first:
            watching.start()
            feeding.start()
            first.told(TransactionCommitted, count=10)
            joined_at = time.monotonic()
            with in_thread(
                job, settings_for(bootstrap, ownership__ordinal=1, ownership__session_timeout_ms=SESSION_MS)
            ) as second:
                moved = _taken_over(second)
                _wait_until_seen(seen, moved, time.monotonic() + 0.5)
    finally:
        stop.set()
        feeding.join(PATIENCE_S)
        watching.join(PATIENCE_S)
    assert 0 < len(moved) < PARTITIONS
    silent_s = {number: _longest_pause(seen[number], since=joined_at) for number in moved}
    assert max(silent_s.values()) < SILENT_S, silent_s
    job.check(bootstrap)


def test_positions_of_several_partitions_are_confirmed_without_a_pause(bootstrap: str) -> None:
    """A member that takes partitions over asks whether their logs still hold what was before its positions."""
    topic = unique("in")
    create_topics(bootstrap, {topic: PARTITIONS})
    produce_plain(bootstrap, topic, [PlainRecord(b"x", partition=i % PARTITIONS) for i in range(400)])
    partitions = [Partition(topic, number) for number in range(PARTITIONS)]
    positions = OffsetVector(dict.fromkeys(partitions, 50), dict.fromkeys(partitions, 0))
    took_s = []
    for _ in range(5):
        began = time.monotonic()
        refuse_truncated(settings_for(bootstrap), unique("group"), positions, timeout_s=PATIENCE_S)
        took_s.append(time.monotonic() - began)
    assert min(took_s) < 0.9, took_s  # librdkafka's own pause, which is in each of them, is 1 s


def _feed(bootstrap: str, topic: str, stop: threading.Event) -> None:
    def records() -> Iterator[PlainRecord]:
        while not stop.wait(0.02):
            for number in range(PARTITIONS):
                yield PlainRecord(b"%d" % number, partition=number)

    produce_plain(bootstrap, topic, records(), timeout_s=PATIENCE_S)


def _watch(bootstrap: str, topic: str, seen: dict[int, list[float]], stop: threading.Event) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": unique("watch"),
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 50,
        }
    )
    consumer.subscribe([topic])
    while not stop.is_set():
        for message in consumer.consume(500, 0.02):
            if message.error() is None:
                seen[int((message.value() or b"").removeprefix(b"out "))].append(time.monotonic())
    consumer.close()


def _taken_over(run: Running) -> list[int]:
    """The partitions that an instance was assigned first."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for event in run.told(PartitionsAssigned):
            if event.positions:
                return [partition.number for partition in event.positions]
        time.sleep(0.02)
    raise TimeoutError(f"no partition was assigned; last: {run.events[-5:]}")


def _wait_until_seen(seen: dict[int, list[float]], partitions: list[int], since: float) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not all(seen[number] and seen[number][-1] > since for number in partitions):
        assert time.monotonic() < deadline, "outputs of the partitions that moved are missing"
        time.sleep(0.02)


def _longest_pause(times: list[float], *, since: float) -> float:
    """Seconds between two of these times, where the later one is behind ``since``."""
    return max(later - earlier for earlier, later in pairwise(times) if later > since)
