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
SINK = "tests.proof.database_jobs:sink --set transaction.interval_ms=50"
OWNING_SINK = f"{SINK} --set ownership.mode=partition --set ownership.instances=2"
RELAY = "tests.proof.database_jobs:relay --input tests.proof.database_jobs:orders --set transaction.interval_ms=50"
RELAYS = RELAY.replace(":relay", ":shared_relay")
_NAIVE_DATABASES = "tests.prove.naive_databases"
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


def _sink_kills() -> Iterator[Cell]:
    yield from _of_a_database((OWNING_SINK, SINK), "--only kill --each", cells=20, seed=16_000, of=10)
    for mistake, faults in (
        ("offsets-first", "--seed 14 --faults 2 --only kill"),
        ("offsets-behind", "--seed 14 --faults 2 --only kill"),
        ("dedup-without-lock", "--seed 329 --faults 2 --only zombie"),
    ):
        owned = "--set ownership.mode=partition --set ownership.instances=2"
        yield _naive_database(
            f"{_NAIVE_DATABASES}:sink --input {_NAIVE_DATABASES}:payments {owned}", mistake, faults
        )


def _relay_kills() -> Iterator[Cell]:
    yield from _of_a_database((RELAYS, RELAY), "--only kill --each", cells=10, seed=17_000, of=10)
    relay = f"{_NAIVE_DATABASES}:relay --input {_NAIVE_DATABASES}:orders"
    yield _naive_database(relay, "by-id", "--seed 1 --faults 1 --only pause")


def _sink_databases() -> Iterator[Cell]:
    yield from _of_a_database((OWNING_SINK, SINK), "--only database", cells=5, seed=18_000, of=10)


def _relay_databases() -> Iterator[Cell]:
    yield from _of_a_database((RELAYS, RELAY), "--only database", cells=5, seed=19_000, of=10)


def _databases_mix() -> Iterator[Cell]:
    """Every kind that can happen to them."""
    for number, job in enumerate((OWNING_SINK, RELAY, SINK, RELAYS)):
        yield trial(f"{job} --seed {20_000 + number} --faults 10 --quiet 0.2", minutes=3)


def _of_a_database(jobs: tuple[str, ...], faults: str, *, cells: int, seed: int, of: int) -> Iterator[Cell]:
    for number, job in enumerate(islice(cycle(jobs), cells)):
        words = f"--seed {seed + number} --faults {of} {faults} --quiet 0.2"
        yield trial(f"{job} {words}", minutes=_STARTS_MIN + of * 6 / 60)


def _naive_database(job: str, mistake: str, faults: str) -> Cell:
    program = f"--run 'exec python tests/prove/naive_databases.py {mistake}'"
    return trial(f"{job} {faults} --quiet 0.2 {program}", minutes=2, naive=True)


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


def _each_kind_of_job() -> Iterator[Cell]:
    """In turn, so that after any number of cells all kinds have met about as many faults: ten cells, 200 faults, for each."""
    minutes = {SINK: 5.0, RELAYS: 5.0, SPARK_BATCH: 10.0, SPARK_STREAM: 10.0}
    kinds = (GROUP, PARTITIONS, OWN_LOOP, SINK, RELAYS, SPARK_BATCH, SPARK_STREAM)
    for number, job in enumerate(islice(cycle(kinds), 10 * len(kinds))):
        yield trial(f"{job} --seed {14_000 + number} --faults 20", minutes=minutes.get(job, 3.0))


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
    Row(
        id="A16",
        title="a worker that writes to tables gets kill -9: inside a transaction of the database, at its COMMIT, or between two",
        goal=200,
        counts="kills",
        cells=_sink_kills,
    ),
    Row(
        id="A17",
        title="a worker that relays an outbox gets kill -9: at a request, at a statement of the database, or between two",
        goal=100,
        counts="kills",
        cells=_relay_kills,
    ),
    Row(
        id="A18",
        title="the database of a job that writes to tables is killed or paused, or loses connections, a COMMIT or the answer to one",
        goal=50,
        counts="database faults",
        cells=_sink_databases,
    ),
    Row(
        id="A19",
        title="the same to the database of an outbox",
        goal=50,
        counts="database faults",
        cells=_relay_databases,
    ),
    Row(
        id="A20",
        title="all kinds in one, of jobs with a database at one end",
        goal=40,
        counts="faults",
        cells=_databases_mix,
    ),
    Row(id="A13", title="all of them in one, and input that changes", goal=300, counts="faults", cells=_mix),
    Row(
        id="A14",
        title="all kinds in one, 200 for each kind of job: by group, by partition, a loop of one's own, tables, an outbox, Spark batch and stream",
        goal=1_400,
        counts="faults",
        cells=_each_kind_of_job,
    ),
)
