"""Soak: the memory of a worker is flat, idle and busy, and bounded. ``SOAK_SHARE`` shortens it, 0.1 to a tenth of the time.

Question: is there anything that grows with time alone, a queue that nobody serves for one?
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from pathlib import Path

import psutil
import pytest

from jobs import refunds
from jobs.settlements import settlements
from tests.support import observer
from tests.support.observer import PlainRecord, unique
from tests.support.processes import Child, running_module

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(3_600)]

IDLE_S, BUSY_S = 600.0, 1_800.0
SHARE = float(os.environ.get("SOAK_SHARE", "1"))
WARM_UP = 0.2  # of the time: connections, metadata, allocators
GROWTH_MB, MOST_MB = 5.0, 100.0
IDLE_PARTITIONS = 200
A_SECOND = 500
_MODULE = """
from eos import InputBatch, Job, OutputBatch

def copy(batch: InputBatch) -> list[OutputBatch]:
    return [OutputBatch({out!r}, batch.values, batch.keys)]

job = Job(name={name!r}, inputs=[{source!r}], outputs=[{out!r}], transform_batch=copy)
"""


def worker_of(child: Child) -> psutil.Process:
    """The worker process of an `eos run` with one worker and no spare."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for process in psutil.Process(child.pid).children():
            if any(part.startswith("eos worker") for part in process.cmdline()):
                return process
        time.sleep(0.2)
    raise AssertionError("\n".join(child.lines))


def watched(child: Child, seconds: float) -> list[float]:
    """The worker's resident memory in MB, over and over."""
    worker, seen = worker_of(child), []
    for _ in range(100):
        time.sleep(seconds / 100)
        assert child.alive, "\n".join(child.lines)
        seen.append(worker.memory_info().rss / 1e6)
    return seen


def expect_flat(seen: list[float]) -> None:
    """Medians, since one look may fall into a burst."""
    settled = seen[int(len(seen) * WARM_UP) :]
    tenth = len(settled) // 10
    first, last = sorted(settled[:tenth])[tenth // 2], sorted(settled[-tenth:])[tenth // 2]
    shown = f"{first:.1f} MB, and {last:.1f} at the end; at most {max(seen):.1f}"
    assert last - first < GROWTH_MB, shown
    assert max(seen) < MOST_MB, shown


def test_an_idle_job_of_200_partitions_does_not_grow(bootstrap: str, tmp_path: Path) -> None:
    source, out, name = unique("idle"), unique("out"), unique("job").replace(".", "-")
    observer.create_topics(bootstrap, {source: IDLE_PARTITIONS, out: 1})
    (tmp_path / "idle_copy.py").write_text(_MODULE.format(name=name, source=source, out=out))
    line = ["run", "idle_copy:job", "--app-dir", str(tmp_path), "--start", "earliest"]
    line += ["--set", f"kafka.bootstrap_servers={bootstrap}", "--set", "workers.spare=false"]
    with running_module("eos.cli", *line) as child:
        expect_flat(watched(child, IDLE_S * SHARE))


def test_the_refunds_job_at_work_does_not_grow(bootstrap: str) -> None:
    for topic in sorted(refunds.job.read_topics | refunds.job.written_topics):
        observer.create_topics(bootstrap, {topic: 4})
    ended = threading.Event()

    def feed() -> None:
        for seed in itertools.count():
            if ended.wait(1.0):
                return
            records = [PlainRecord(one.value, one.key) for one in settlements(seed=seed, count=A_SECOND)]
            observer.produce_plain(bootstrap, refunds.SETTLEMENTS, records)

    feeding = threading.Thread(target=feed)
    line = ["run", "jobs.refunds:job", "--start", "earliest", "--set", "workers.spare=false"]
    line += ["--set", f"kafka.bootstrap_servers={bootstrap}", "--set", f"group={unique('refunds')}"]
    feeding.start()
    try:
        with running_module("eos.cli", *line) as child:
            expect_flat(watched(child, BUSY_S * SHARE))
    finally:
        ended.set()
        feeding.join()
