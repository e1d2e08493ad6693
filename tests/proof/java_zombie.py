"""A7 with a stranger: a Java producer takes our transactional.id, as a job that was ported and left running does.

It writes to our output and never commits. Kafka's own performance tool is that producer, so nothing has to be compiled;
the one that also commits our offsets is a source file, which needs a JDK.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from eos.base.deadline import Deadline
from eos.exits import ExitCode
from eos.offsets import Partition
from eos.shards import PartitionShard
from tests.proof.arena import Arena, shared_arena
from tests.proof.row import Cell, Outcome, Row
from tests.support.jobs_for_faults import FaultJob, fault_job
from tests.support.observer import committed_offsets, read_uncommitted
from tests.support.processes import Child, running_module

WORKER = Path(__file__).with_name("StrangeWorker.java")
_WAIT_S = 180.0
_RECORDS = 200
_MOST = 8  # strangers; ours believes the fourth fence in ten minutes
_OURS = re.compile(rb"(out|audit) ")
_MODES = ("ours goes on", "ours believes the fourth fence", "ours finds its offsets")


class _Place:
    """A job in `eos run`, which owns one partition, and a Java producer with its id."""

    def __init__(self, arena: Arena, stack: ExitStack, directory: Path) -> None:
        self.arena, self._stack, self._directory = arena, stack, directory
        self.job: FaultJob = fault_job(arena.bootstrap, partitions=1)
        self.shard = PartitionShard(self.job.name, self.job.group, Partition(self.job.inputs[0], 0))
        self._loaded = 0
        self._strangers = 0

    def load(self) -> None:
        """More input."""
        self.job.load(self.arena.bootstrap, _RECORDS, f"{self._loaded}-", partitions=[0])
        self._loaded += _RECORDS

    def run(self) -> Child:
        """`eos run`, until it is stopped or ends."""
        given = {
            "kafka.bootstrap_servers": self.arena.bootstrap,
            "ownership.mode": "partition",
            "ownership.partitions": f'["{self.job.inputs[0]}:0"]',
            "ownership.ordinal": "0",
            "transaction.timeout_ms": "60000",
            "transaction.interval_ms": "50",
            "observe.http_port": "0",
        }
        options = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
        environment = self.job.environment
        command = ["run", "tests.support.jobs_for_faults:fault", "--start", "earliest", *options]
        return self._stack.enter_context(running_module("eos.cli", *command, env=environment))

    @contextmanager
    def performing(self) -> Iterator[subprocess.Popen[bytes]]:
        """Kafka's own tool writes to our output under our id, in a transaction without end."""
        command = [
            *self._java("org.apache.kafka.tools.ProducerPerformance"),
            *("--bootstrap-server", self.arena.bootstrap, "--topic", self.job.out),
            *("--num-records", "1000000", "--record-size", "20", "--throughput", "50"),
            *("--transactional-id", self.shard.transactional_id, "--transaction-duration-ms", "3600000"),
            *("--command-property", "transaction.timeout.ms=600000", "linger.ms=0"),
        ]
        with self._started(command) as process:
            yield process

    @contextmanager
    def working(self, records: int) -> Iterator[subprocess.Popen[bytes]]:
        """A Java worker of the same job: it commits so many records with our offsets, and leaves others open."""
        command = [
            *self._java(str(WORKER)),
            *(self.arena.bootstrap, self.shard.transactional_id, self.job.group, self.job.inputs[0]),
            *(self.job.out, self.job.audit, str(records)),
        ]
        with self._started(command) as process:
            yield process

    def wait_for_stranger(self, more_than: int) -> None:
        """Until the stranger's records are in our output, though nobody may see them yet."""
        if not Deadline(_WAIT_S).wait_for(lambda: self.strange_records() > more_than):
            raise TimeoutError("the Java producer wrote nothing")

    def strange_records(self) -> int:
        """How many there are, committed or not."""
        seen = read_uncommitted(self.arena.bootstrap, self.job.out)
        return sum(_OURS.match(one.value or b"") is None for one in seen)

    def committed(self) -> int:
        """The group's offset."""
        here = (self.job.inputs[0], 0)
        return committed_offsets(self.arena.bootstrap, self.job.group, [here])[here][0] or 0

    def wait_for_commits(self) -> None:
        """Until all input is committed."""
        if not Deadline(_WAIT_S).wait_for(lambda: self.committed() >= self._loaded):
            raise TimeoutError(f"{self.committed()} of {self._loaded} records are committed")

    def against(self) -> list[str]:
        """What speaks against exactly-once in the end."""
        try:
            self.wait_for_commits()
            self.job.check(self.arena.bootstrap)
        except (AssertionError, TimeoutError) as error:
            return [str(error)]
        return []

    def _java(self, main: str) -> list[str]:
        return ["java", "-Xmx128m", "-cp", self.arena.kafka.classpath, main]

    @contextmanager
    def _started(self, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
        self._strangers += 1
        with (self._directory / f"stranger-{self._strangers}.log").open("wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait(_WAIT_S)

    def runs(self, ours: Child) -> bool:
        """Whether it still does."""
        return ours.alive

    def is_fenced(self, number: int) -> bool:
        """Whether the n-th stranger was told so."""
        return bool(re.search("ProducerFenced|InvalidProducerEpoch", self.said(number)))

    def said(self, number: int) -> str:
        """What the n-th stranger has printed."""
        return (self._directory / f"stranger-{number}.log").read_text(errors="replace")


def _fenced(place: _Place, number: int) -> list[str]:
    """Kafka's tool prints the errors of its records, and goes on."""
    if Deadline(_WAIT_S).wait_for(lambda: place.is_fenced(number)):
        return []
    return [f"the Java producer was not fenced: {place.said(number)[-300:]}"]


def once(arena: Callable[[], Arena], directory: Path) -> Outcome:
    """A stranger without offsets of ours proves nothing: ours looks, goes on, and fences it."""
    with ExitStack() as stack:
        place = _Place(arena(), stack, directory)
        place.load()
        ours = place.run()
        place.wait_for_commits()
        with place.performing():
            place.wait_for_stranger(0)
            began = time.monotonic()
            place.load()
            place.wait_for_commits()
            took = time.monotonic() - began
            against = _fenced(place, 1)
        if not ours.alive:
            against.append(f"ours has ended: {ours.lines[-1:]}")
        ours.terminate()
        ours.wait(_WAIT_S)
        return Outcome(
            faults=1,
            records=place.committed(),
            anomalies=[*against, *place.against()],
            recoveries_s=[took],
            note=f"{place.strange_records()} records of the stranger, none visible",
        )


def again_and_again(arena: Callable[[], Arena], directory: Path) -> Outcome:
    """A stranger that a supervisor restarts: ours doubts three fences, ends by the fourth, and comes back when asked to."""
    with ExitStack() as stack:
        place = _Place(arena(), stack, directory)
        place.load()
        ours = place.run()
        place.wait_for_commits()
        against: list[str] = []
        came = 0
        while not against and place.runs(ours) and came < _MOST:
            came += 1
            with place.performing():
                before = place.strange_records()
                place.wait_for_stranger(before)
                place.load()
                Deadline(_WAIT_S).wait_for(partial(_is_over, place, came, ours))
                if not place.runs(ours):
                    against += _told(ours)
                    successor = place.run()
                    place.wait_for_commits()
                    against += _fenced(place, came)
                    successor.terminate()
                    successor.wait(_WAIT_S)
        if place.runs(ours):
            against.append(f"{came} strangers did not end ours")
        return Outcome(
            faults=came,
            records=place.committed(),
            anomalies=[*against, *place.against()],
            note=f"ours ended by the fence of stranger {came}; {place.strange_records()} records of strangers, none visible",
        )


def with_offsets(arena: Callable[[], Arena], directory: Path) -> Outcome:
    """A stranger that commits our offsets is another owner: ours ends with the code for that at once."""
    if shutil.which("javac") is None:
        return Outcome(faults=0, records=0, skipped=True, note="there is no JDK to run a Java source with")
    with ExitStack() as stack:
        place = _Place(arena(), stack, directory)
        place.load()
        ours = place.run()
        place.wait_for_commits()
        os.killpg(ours.pid, signal.SIGSTOP)  # with its worker: it is the zombie of the two
        place.load()
        with place.working(_RECORDS // 2):
            place.wait_for_stranger(0)
            os.killpg(ours.pid, signal.SIGCONT)
            place.load()
            against = _told(ours)
            successor = place.run()
            place.wait_for_commits()
            against += _fenced(place, 1)
        successor.terminate()
        successor.wait(_WAIT_S)
        return Outcome(
            faults=1,
            records=place.committed(),
            anomalies=[*against, *place.against()],
            note=next((one for one in reversed(ours.lines) if "owner" in one), "")[:300],
        )


def _is_over(place: _Place, number: int, ours: Child) -> bool:
    return place.is_fenced(number) or not ours.alive


def _told(ours: Child) -> list[str]:
    code = ours.wait(_WAIT_S)
    said = "\n".join(ours.lines[-20:])
    found = [] if code == ExitCode.FENCED else [f"ours ended with exit code {code}: {said[-500:]}"]
    if "owner" not in said or "Fix" not in said:
        found.append(f"nothing names another owner and the fix: {said[-500:]}")
    return found


def _cells() -> Iterator[Cell]:
    for name, run in zip(_MODES, (once, again_and_again, with_offsets), strict=True):
        for seed in range(2):
            yield Cell(
                name=f"a Java producer with our id: {name}, {seed}",
                run=partial(run, shared_arena),
                minutes=0.6,
            )


A7_JAVA = Row(
    id="A7-java",
    title="a Java producer takes our transactional.id",
    goal=6,
    counts="strangers",
    cells=_cells,
)
