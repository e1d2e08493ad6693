"""Under fire: the rows whose cells are trials of `eos prove`, by what happens to the job."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, islice

from tests.proof.row import Cell, Row
from tests.proof.trials import trial
from tests.prove.naive_loops import MISTAKES

GROUP = "eos.prove.tagged:job --set transaction.interval_ms=30"
PARTITIONS = f"{GROUP} --set ownership.mode=partition --set ownership.instances=2"
OWN_LOOP = (
    "tests.proof.jobs:copy --set group=relay-originals "
    "--run 'exec python docs/examples/own_loop.py \"$EOS_KAFKA__BOOTSTRAP_SERVERS\" originals copies'"
)
REFUNDS = "jobs.refunds:job -c conf/refunds.toml"
SPARK_BATCH = "jobs.refunds_batch:job -c conf/refunds_batch.toml --rate 100"
SPARK_STREAM = "jobs.refunds_stream:job -c conf/refunds_stream.toml --rate 100"
_NAIVE = "tests.proof.jobs:copy --set ownership.mode=partition --set ownership.instances=2"
_STARTS_MIN = 0.4
# Kills, a zombie that has just produced, commits that are answered as if they were fenced, offsets that cannot be added.
_CONVICTS = "--seed 3894 --faults 5 --only kill,error,zombie"


def _each(
    jobs: tuple[str, ...], faults: str, *, cells: int, seed: int, of: int, seconds: float
) -> Iterator[Cell]:
    """Cells of these jobs in turn, each of so many faults with a seed of its own, judged after each fault."""
    for number, job in enumerate(islice(cycle(jobs), cells)):
        yield trial(
            f"{job} --seed {seed + number} --faults {of} {faults} --quiet 0.2 --each",
            minutes=_STARTS_MIN + of * seconds / 60,
        )


def _kills() -> Iterator[Cell]:
    """Both ownerships, a loop of one's own, a job with dead letters."""
    jobs = (GROUP, PARTITIONS, GROUP, OWN_LOOP, REFUNDS)
    yield from _each(jobs, "--only kill", cells=20, seed=1_000, of=25, seconds=7)
    yield _naive("no-transaction", "--seed 1000 --faults 10 --only kill")


def _ends() -> Iterator[Cell]:
    yield from _each((GROUP, PARTITIONS, OWN_LOOP), "--only term", cells=5, seed=2_000, of=20, seconds=6)


def _bounces() -> Iterator[Cell]:
    faults = "--only broker/killed,broker/stopped --brokers 3"
    yield from _each((GROUP, PARTITIONS, OWN_LOOP), faults, cells=3, seed=3_000, of=10, seconds=20)


def _stalls() -> Iterator[Cell]:
    faults = "--only broker/paused --brokers 3"
    yield from _each((GROUP, PARTITIONS, OWN_LOOP), faults, cells=3, seed=4_000, of=20, seconds=12)


def _packets() -> Iterator[Cell]:
    jobs = (GROUP, PARTITIONS, GROUP, OWN_LOOP)
    yield from _each(jobs, "--only drop", cells=15, seed=6_000, of=24, seconds=6)


def _zombies() -> Iterator[Cell]:
    yield from _each((GROUP, PARTITIONS), "--only zombie", cells=10, seed=7_000, of=20, seconds=14)
    yield _naive("no-comparison", _CONVICTS)


def _expiries() -> Iterator[Cell]:
    jobs = (GROUP, PARTITIONS, GROUP, OWN_LOOP, GROUP)
    yield from _each(jobs, "--only expiry", cells=5, seed=9_000, of=10, seconds=20)


def _errors() -> Iterator[Cell]:
    yield from _each((GROUP, PARTITIONS), "--only error", cells=10, seed=11_000, of=20, seconds=6)


def _spark() -> Iterator[Cell]:
    for number, job in enumerate(islice(cycle((SPARK_BATCH, SPARK_BATCH, SPARK_STREAM)), 6)):
        yield trial(f"{job} --seed {12_000 + number} --faults 17 --only kill", minutes=8)


def _mix() -> Iterator[Cell]:
    """Nothing is waited for between the faults: they meet a job that still recovers from the last one.

    A loop without transactions gets the faults of each seed, too; the other mistakes get those that they cannot survive.
    """
    jobs = (GROUP, PARTITIONS, f"{GROUP} --brokers 3", REFUNDS)
    for number, job in enumerate(islice(cycle(jobs), 20)):
        faults = f"--seed {13_000 + number} --faults 15"
        yield trial(f"{job} {faults}", minutes=4.5)
        yield _naive("no-transaction", faults, minutes=4.5)
    yield from (_naive(mistake, _CONVICTS) for mistake in MISTAKES)


def _naive(mistake: str, faults: str, *, minutes: float = 2) -> Cell:
    program = f"--run 'exec python tests/prove/naive_loops.py {mistake}'"
    return trial(f"{_NAIVE} {faults} {program}", minutes=minutes, naive=True)


ROWS = (
    Row(
        id="A1",
        title="a worker gets kill -9, at a request or between two",
        goal=500,
        counts="kills",
        cells=_kills,
    ),
    Row(id="A2", title="a worker or an instance gets SIGTERM", goal=100, counts="ends", cells=_ends),
    Row(
        id="A3",
        title="one of three brokers is killed, or stopped in order",
        goal=30,
        counts="bounces",
        cells=_bounces,
    ),
    Row(id="A4", title="one of three brokers stands still", goal=60, counts="stalls", cells=_stalls),
    Row(
        id="A6",
        title="a request or its answer is lost or doubled, or its connection reset",
        goal=360,
        counts="requests",
        cells=_packets,
    ),
    Row(
        id="A7",
        title="an instance stands still, another one takes over and commits, and it wakes up",
        goal=200,
        counts="zombies",
        cells=_zombies,
    ),
    Row(
        id="A9",
        title="a worker stands still in a transaction until the coordinator has aborted it",
        goal=50,
        counts="expiries",
        cells=_expiries,
    ),
    Row(
        id="A11",
        title="the broker does what a request says, and its answer is an error",
        goal=200,
        counts="answers",
        cells=_errors,
    ),
    Row(
        id="A12",
        title="a task, an executor, the driver of a Spark batch or stream, or its Java machine, gets kill -9",
        goal=100,
        counts="kills",
        cells=_spark,
    ),
    Row(id="A13", title="all of them in one, and input that changes", goal=300, counts="faults", cells=_mix),
)
