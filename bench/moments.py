"""How long the moments last in which nothing comes out: a start, a takeover, a worker that joins."""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from confluent_kafka.admin import AdminClient

from bench.broker import broker
from bench.check import read_output
from bench.contender import Arguments
from bench.contenders import CONTENDERS
from bench.generator import Generator
from bench.goals import at_most
from bench.job_process import JobRun, worker_of
from bench.process import running, wait
from bench.results import say, show, write
from bench.topics import PARTITIONS, create_topic, delete_topic
from bench.visible import Visible

RATE = 2000  # records per second, of the stream that a moment interrupts
SETTLED_SECONDS = 3.0
STREAM_SECONDS = 120.0
WAIT_SECONDS = 60.0
ASK_SECONDS = 0.5
START, TAKEOVER, MOVES = (
    "eos run, a new group",
    "kill -9 to the replacement's first visible record",
    "silence of a partition that moves, the longest",
)
AIMS = {START: 0.5, TAKEOVER: 0.5, MOVES: 0.3}  # seconds at most


@dataclass(frozen=True)
class Moment:
    """One measured time, in one round."""

    what: str
    round: int
    seconds: float
    exact: bool = True


Measure = Callable[[str, int], list[Moment]]


def run(name: str, *, rounds: int, bootstrap: str | None) -> bool:
    """Measure one of `MOMENTS`, print its table; True if every output was exact."""
    what, measure = MOMENTS[name]
    found: list[Moment] = []
    with broker(bootstrap) as servers:
        say("warming up")
        measure(servers, 0)  # a cold broker's first transactions; not counted
        for number in range(1, rounds + 1):
            for one in measure(servers, number):
                found.append(one)
                say(
                    f"round {number}/{rounds} {one.what}: {one.seconds:.2f} s{'' if one.exact else '  NOT EXACT'}"
                )
    names = list(dict.fromkeys(one.what for one in found))
    rows = []
    for moment in names:
        seconds = [one.seconds for one in found if one.what == moment]
        rows.append(
            {
                "moment": moment,
                "s (min med max)": f"{min(seconds):.2f} {statistics.median(seconds):.2f} {max(seconds):.2f}",
                "exact": "yes" if all(one.exact for one in found if one.what == moment) else "NO",
            }
        )
    show(f"{what}, {rounds} rounds", rows)
    met = [
        at_most(aim, f"{moment}, s", [one.seconds for one in found if one.what == moment])
        for moment, aim in AIMS.items()
    ]
    write(name, {"rounds": rounds}, found)
    return all(met) and all(one.exact for one in found)


def start(servers: str, number: int) -> list[Moment]:
    """From the start of a process to its exit, where there is nothing to do."""
    moments = []
    with _topics(servers, "start") as (source, target):
        job = JobRun(servers, source, target)
        for what in (START, "eos run, again"):
            began = time.monotonic()
            with job.running("--until-caught-up") as process:
                code = wait(process, WAIT_SECONDS)
                seconds = time.monotonic() - began
            moments.append(Moment(what, number, seconds, exact=code == 0))
        for name in ("eos", "b"):
            arguments = Arguments(
                bootstrap=servers,
                input=source,
                output=target,
                group=f"{target}-{name}",
                transaction_ms=100,
                until_caught_up=True,
            )
            began = time.monotonic()
            with running(CONTENDERS[name], arguments) as contender:
                contender.wait(WAIT_SECONDS)
                seconds = time.monotonic() - began
            moments.append(Moment(CONTENDERS[name].what, number, seconds))
    return moments


def takeover(servers: str, number: int) -> list[Moment]:
    """From kill -9 of the only worker to the first record of its replacement that a reader sees."""
    with _stream(servers, "takeover") as (job, generator, output), job.running() as process:
        output.until(lambda seen: seen is not None)
        output.for_seconds(SETTLED_SECONDS)
        worker = worker_of(process)
        killed, killed_ms = time.monotonic(), time.time_ns() // 1_000_000
        os.kill(worker, signal.SIGKILL)
        # What the killed one had appended before and not committed is never visible.
        output.until(lambda seen: seen is not None and seen.append_ms > killed_ms)
        seconds = output.seen[-1].at - killed
        exact = _drained(servers, job, generator, output)
    return [Moment(TAKEOVER, number, seconds, exact)]


def join(servers: str, number: int) -> list[Moment]:
    """How long partitions are silent around the start of a second worker."""
    with _stream(servers, "join") as (job, generator, output), job.running():
        output.until(lambda seen: seen is not None)
        output.for_seconds(SETTLED_SECONDS)
        before = set(_owners(servers, job.target).values())
        joining = time.monotonic()
        with job.running(ordinal=1), ThreadPoolExecutor(1) as asking:  # while this thread reads on
            settled = asking.submit(_two_owners, servers, job.target)
            output.until(lambda _: settled.done())
            output.for_seconds(SETTLED_SECONDS)
            owners = settled.result()
            exact = _drained(servers, job, generator, output)
    silences = {p: output.longest_silence(p, joining) for p in owners}
    moved = [silence for p, silence in silences.items() if owners[p] not in before]
    stayed = [silence for p, silence in silences.items() if owners[p] in before]
    return [
        Moment(MOVES, number, max(moved), exact),
        Moment("silence of a partition that stays, the longest", number, max(stayed), exact),
    ]


def _drained(servers: str, job: JobRun, generator: Generator, output: Visible) -> bool:
    """End the stream, wait for the rest of it, and compare partition by partition."""
    generator.stop()
    output.until(lambda _: len(output.seen) >= generator.sent)
    return read_output(servers, job.target).shares == read_output(servers, job.source).shares


@contextmanager
def _topics(servers: str, name: str) -> Iterator[tuple[str, str]]:
    source, target = (f"bench-{name}-{time.time_ns()}-{end}" for end in ("input", "output"))
    create_topic(servers, source)
    create_topic(servers, target)
    try:
        yield source, target
    finally:
        delete_topic(servers, source)
        delete_topic(servers, target)


@contextmanager
def _stream(servers: str, name: str) -> Iterator[tuple[JobRun, Generator, Visible]]:
    with _topics(servers, name) as (source, target):
        generator = Generator(servers, source, RATE, STREAM_SECONDS)
        output = Visible(servers, target)
        generator.start()
        try:
            yield JobRun(servers, source, target), generator, output
        finally:
            generator.stop()
            output.close()


def _two_owners(servers: str, group: str) -> Mapping[int, str]:
    """The members that have the partitions, once there are two."""
    deadline = time.monotonic() + WAIT_SECONDS
    while len(owners := _owners(servers, group)) < PARTITIONS or len(set(owners.values())) == 1:
        if time.monotonic() > deadline:
            msg = f"no second worker has a partition after {WAIT_SECONDS} s: {owners}"
            raise TimeoutError(msg)
        time.sleep(ASK_SECONDS)
    return owners


def _owners(servers: str, group: str) -> Mapping[int, str]:
    """The member that has each partition."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 4})
    described = admin.describe_consumer_groups([group])[group].result(WAIT_SECONDS)
    return {
        where.partition: member.member_id
        for member in described.members
        for where in member.assignment.topic_partitions
    }


MOMENTS: Mapping[str, tuple[str, Measure]] = {
    "start": ("start on an empty backlog to exit", start),
    "takeover": (f"takeover in a stream of {RATE:,} records/s", takeover),
    "join": (f"a worker joins, in a stream of {RATE:,} records/s", join),
}
