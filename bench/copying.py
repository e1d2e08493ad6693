"""How fast records are copied: contenders in interleaved rounds over one loaded input."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from bench.broker import broker
from bench.check import Output, committed_records, read_loaded, read_output
from bench.contender import MEBIBYTE, Arguments
from bench.contenders import CONTENDERS, REFERENCES, Contender
from bench.goals import at_least, at_most, ratios
from bench.plot import plot
from bench.process import running
from bench.progress import progress
from bench.results import Row, say, show, spread, write
from bench.topics import PARTITIONS, VALUE_BYTES, create_topic, delete_topic, load

WARM_UP = CONTENDERS["b"]
LARGE_BYTES = 10_000
LARGE_AIM = 0.95  # of b's rate, with records of that size
SLOWEST_RATE = 4_000  # records per second: below it a contender is taken to hang
SLACK_SECONDS = 120.0


@dataclass(frozen=True)
class Workload:
    """What is copied, and how."""

    records: int
    transaction_ms: int
    partitions: int = PARTITIONS
    value_bytes: int = VALUE_BYTES

    def __str__(self) -> str:
        return (
            f"{self.records:,} records of {self.value_bytes:,} bytes, {self.partitions} partitions, "
            f"transactions of {self.transaction_ms} ms"
        )


@dataclass(frozen=True)
class Outcome:
    """One contender in one round. Rates in records per second, sizes in bytes.

    Attributes:
        warm_rate: the rate of all but the first fifth.
        start_seconds: from the process's start to the first append.
        markers: per partition, how many transactions the log shows.
        wrong: where the output is not the input, or the group's offsets do not stand for all of it.
    """

    contender: str
    round: int
    rate: float
    warm_rate: float
    records: int
    exact: bool
    seconds: float
    start_seconds: float
    cpu_seconds: float
    startup_cpu_seconds: float
    commits: int
    commit_ms: float | None
    markers: int
    peak_rss: int
    rss_at_20_percent: int
    rss_at_100_percent: int
    wrong: str = ""

    @property
    def cpu_per_million(self) -> float:
        """Client CPU seconds per million records, the start of the interpreter left out."""
        return (self.cpu_seconds - self.startup_cpu_seconds) / self.records * 1e6


def run(names: Sequence[str], workload: Workload, *, rounds: int, bootstrap: str | None) -> bool:
    """Run the benchmark and print its table; True if every output was exact and every target was met."""
    contenders = [CONTENDERS[name] for name in names]
    outcomes: list[Outcome] = []
    with (
        broker(bootstrap) as servers,
        loaded(servers, workload) as bench,
        progress(1 + rounds * len(contenders)) as step,
    ):
        step("warming up")
        bench.measure(WARM_UP, 0)  # the broker's compiler and the page cache; not counted
        for number, contender in interleaved(contenders, rounds):
            step(f"round {number}/{rounds} {contender.name}")
            outcomes.append(bench.measure(contender, number))
            say(f"round {number}/{rounds} {line_of(outcomes[-1])}")
    rows = [_row(contender, outcomes) for contender in contenders]
    show(f"copy: {workload}, {rounds} rounds", rows, [contender.what for contender in contenders])
    met = [_goals_met(contender, outcomes, workload) for contender in contenders]
    plot(outcomes, write("copy", asdict(workload), outcomes))
    return all(outcome.exact for outcome in outcomes) and all(met)


def interleaved(contenders: Sequence[Contender], rounds: int) -> Iterator[tuple[int, Contender]]:
    """Every contender once in every round. Each begins with another, so that none always follows the same one."""
    for number in range(1, rounds + 1):
        shift = (number - 1) % len(contenders)
        for contender in (*contenders[shift:], *contenders[:shift]):
            yield number, contender


def line_of(outcome: Outcome) -> str:
    """An outcome in one line."""
    return f"{outcome.contender:>15}: {outcome.rate / 1000:7.0f} k/s{'' if outcome.exact else f'  NOT EXACT: {outcome.wrong}'}"


@contextmanager
def loaded(bootstrap: str, workload: Workload) -> Iterator[CopyBench]:
    """Load an input topic, which is removed at the block's end."""
    topic = f"bench-input-{time.time_ns()}"
    create_topic(bootstrap, topic, workload.partitions)
    try:
        say(f"loading {workload.records:,} records")
        load(bootstrap, topic, workload.records, workload.value_bytes)
        yield CopyBench(bootstrap, topic, read_loaded(bootstrap, topic, workload.records), workload)
    finally:
        delete_topic(bootstrap, topic)


class CopyBench:
    """A loaded input, and contenders that copy it, each to an output and under a group of its own."""

    def __init__(self, bootstrap: str, topic: str, loaded: Output, workload: Workload) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._loaded = loaded
        self._workload = workload

    def measure(self, contender: Contender, number: int) -> Outcome:
        """Run a contender until it has caught up, and read what it left behind.

        Raises:
            RuntimeError: it ended with an error.
            subprocess.TimeoutExpired: it did not end.
            TimeoutError: it left a transaction open.
        """
        name = f"bench-{contender.name}-{number}-{time.time_ns()}"
        create_topic(self._bootstrap, name, self._workload.partitions)
        try:
            return self._measure(contender, number, name)
        finally:
            delete_topic(self._bootstrap, name)

    def _measure(self, contender: Contender, number: int, name: str) -> Outcome:
        arguments = Arguments(
            bootstrap=self._bootstrap,
            input=self._topic,
            output=name,
            group=name,
            transaction_ms=self._workload.transaction_ms,
            until_caught_up=True,
        )
        with running(contender, arguments) as process:
            process.wait(SLACK_SECONDS + self._loaded.records / SLOWEST_RATE)
        report = process.report
        assert report is not None, "the block ended without an error, so there is a report"
        output = read_output(self._bootstrap, name)
        committed = committed_records(self._bootstrap, name, self._topic)
        wrong = _difference(output, self._loaded, committed)
        if wrong:  # whether it is the log that is so, or what was read of it
            wrong += (
                f"; read again: {_difference(read_output(self._bootstrap, name), self._loaded, committed)}"
            )
        length_ms = output.last_append_ms - output.first_append_ms
        commit_seconds = report.commit_seconds
        return Outcome(
            contender=contender.name,
            round=number,
            rate=output.records_per_second,
            warm_rate=output.rate_behind(0.2),
            records=output.records,
            exact=not wrong,
            seconds=report.seconds,
            start_seconds=(output.first_append_ms - process.started_ms) / 1000,
            cpu_seconds=process.cpu_seconds,
            startup_cpu_seconds=report.startup_cpu_seconds,
            commits=report.commits,
            commit_ms=None if commit_seconds is None else commit_seconds / max(report.commits, 1) * 1000,
            markers=output.markers,
            peak_rss=max(report.peak_rss_bytes, *(sample.rss_bytes for sample in process.samples)),
            rss_at_20_percent=process.rss_bytes_at(output.first_append_ms + 0.2 * length_ms),
            rss_at_100_percent=process.rss_bytes_at(output.last_append_ms),
            wrong=wrong,
        )


def _difference(output: Output, loaded: Output, committed: int) -> str:
    """What is not as it should be, partition by partition: a contender that places keys otherwise is none to compare with."""
    if (output.shares, committed) == (loaded.shares, loaded.records):
        return ""
    pairs = enumerate(zip(output.shares, loaded.shares, strict=True))
    other = [f"partition {n} has {mine[0]} of {all_of[0]}" for n, (mine, all_of) in pairs if mine != all_of]
    return "; ".join(
        [f"{output.records} of {loaded.records} records, {committed} of them committed", *other[:5]]
    )


def _row(contender: Contender, outcomes: Sequence[Outcome]) -> Row:
    own = [outcome for outcome in outcomes if outcome.contender == contender.name]
    rates = [outcome.rate / 1000 for outcome in own]
    commit_ms = [outcome.commit_ms for outcome in own if outcome.commit_ms is not None]
    row = {
        "contender": contender.name,
        "k records/s (min med max)": f"{min(rates):.0f} {statistics.median(rates):.0f} {max(rates):.0f}",
    }
    for reference in REFERENCES:
        row[f"/{reference}"] = spread(ratios(outcomes, contender.name, reference, "rate"))
    row["CPU s/M"] = f"{statistics.median(outcome.cpu_per_million for outcome in own):.2f}"
    row["start CPU s"] = f"{statistics.median(outcome.startup_cpu_seconds for outcome in own):.2f}"
    row["peak MB"] = f"{max(outcome.peak_rss for outcome in own) / MEBIBYTE:.0f}"
    row["MB at 20 %, 100 %"] = (
        f"{max(outcome.rss_at_20_percent for outcome in own) / MEBIBYTE:.0f} "
        f"{max(outcome.rss_at_100_percent for outcome in own) / MEBIBYTE:.0f}"
    )
    row["commits"] = f"{statistics.median(outcome.commits for outcome in own):.0f}"
    row["ms/commit"] = f"{statistics.median(commit_ms):.1f}" if commit_ms else "-"
    row["exact"] = "yes" if all(outcome.exact for outcome in own) else "NO"
    return row


def _goals_met(contender: Contender, outcomes: Sequence[Outcome], workload: Workload) -> bool:
    """Say of each goal of a contender whether it is met."""
    large = workload.value_bytes >= LARGE_BYTES  # there the broker's disk and the copying of bytes decide
    rates = {"b": LARGE_AIM} if large and contender.rate_targets else contender.rate_targets
    met = [
        at_least(aim, f"{contender.name} rate / {other}", ratios(outcomes, contender.name, other, "rate"))
        for other, aim in rates.items()
    ]
    for other, aim in () if large else contender.cpu_targets.items():
        cpu = ratios(outcomes, contender.name, other, "cpu_per_million")
        met.append(at_most(aim, f"{contender.name} CPU / {other}", cpu))
    return all(met)
