"""How soon a record is seen: from the moment it is stamped to the moment a read_committed reader has its copy."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import orjson
from confluent_kafka import Consumer, TopicPartition

from bench import pauses
from bench.broker import broker
from bench.contender import MEBIBYTE, Arguments
from bench.contenders import CONTENDERS, Contender
from bench.copying import interleaved
from bench.generator import Generator
from bench.goals import at_most, ratios
from bench.process import running
from bench.results import Row, say, show, spread, write
from bench.topics import PARTITIONS, create_topic, delete_topic

WARM_UP = CONTENDERS["b"]
WARM_UP_SECONDS = 4.0  # of every run: the contender starts; not counted
DRAIN_SECONDS = 10.0
_FEWEST = 100
REFERENCE = "b"
LEAST = "c"  # without transactions
LOOK = "b-look"  # the reference with a look that eos has in each transaction
DEFAULT_MS = 100
CPU_AIM = 1.2  # of what the raw loop uses, with transactions of that length …
SHORT_COMMIT_AIM, SHORT_CPU_AIM = (
    1.1,
    1.3,
)  # … and of its commit's time and its processor time, with shorter ones


@dataclass(frozen=True)
class Outcome:
    """One contender in one round; delays in milliseconds.

    Attributes:
        apart_p99_ms: of the records in whose time the broker stood still at no moment; None if that is not known.
        broker_pauses: how often it stood still while the records came that count; None if that is not known.
        cpu_share: how much of a processor was used while the records came that count; a start is not in it.
        slow_ms: of the slowest hundredth of the records, on average: until they were produced to the output …
        slow_after_ms: … and from then on until they were seen.
    """

    contender: str
    round: int
    records: int
    missing: int
    doubled: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    slow_ms: float
    slow_after_ms: float
    commits: int
    commit_ms: float | None
    commit_p99_ms: float | None
    cpu_seconds: float
    cpu_share: float
    peak_rss: int
    apart_p99_ms: float | None = None
    broker_pauses: int | None = None

    @property
    def cpu_per_commit(self) -> float:
        """Seconds of processor time for each transaction: who commits beside its loop makes more of them in the same time."""
        return self.cpu_seconds / max(self.commits, 1)

    @property
    def met_pauses_alone(self) -> bool:
        """Whether too few records met no pause of the broker to say how late those came."""
        return self.broker_pauses is not None and self.apart_p99_ms is None


class TooFewError(RuntimeError):
    """Of a run too few records were seen to say how late they came."""


def run(
    names: Sequence[str],
    *,
    rate: int,
    seconds: float,
    rounds: int,
    transaction_ms: int,
    bootstrap: str | None,
) -> bool:
    """Run the benchmark and print its table; True if all was measured, and no record was missing or doubled."""
    contenders = [CONTENDERS[name] for name in names]
    outcomes: list[Outcome] = []
    whole = True
    with (
        tempfile.TemporaryDirectory() as directory,
        broker(bootstrap, pauses_log := Path(directory) / "pauses.log") as servers,
    ):
        say("warming up")  # a cold broker's commits take hundreds of milliseconds; not counted
        measure = partial(
            _measure, bootstrap=servers, rate=rate, transaction_ms=transaction_ms, pauses_log=pauses_log
        )
        try:
            measure(WARM_UP, 0, seconds=WARM_UP_SECONDS)
        except TooFewError as error:
            say(f"warming up: {error}")
        for number, contender in interleaved(contenders, rounds):
            try:
                outcomes.append(measure(contender, number, seconds=seconds))
            except TooFewError as error:
                whole = False
                say(f"round {number}/{rounds} {contender.name:>12}: not measured: {error}")
            else:
                say(f"round {number}/{rounds} {contender.name:>12}: p99 {outcomes[-1].p99_ms:.1f} ms")
    title = (
        f"latency: {rate:,} records/s for {seconds:g} s, {rounds} rounds, transactions of {transaction_ms} ms"
    )
    show(title, [_row(c, outcomes) for c in contenders], [c.what for c in contenders])
    met = _goals_met(outcomes, transaction_ms)
    write("latency", {"rate": rate, "seconds": seconds, "transaction_ms": transaction_ms}, outcomes)
    exact = not any(outcome.missing or outcome.doubled for outcome in outcomes)
    return met and exact and whole and not any(outcome.met_pauses_alone for outcome in outcomes)


def _goals_met(outcomes: Sequence[Outcome], transaction_ms: int) -> bool:
    """Hold eos against the raw loop: what it costs, and with short transactions how long a commit takes."""
    for what, field in (("commit", "commit_ms"), ("% of a core", "cpu_share")):
        if limit := ratios(outcomes, LOOK, REFERENCE, field):
            say(f"        {LOOK} {what} / {REFERENCE}: {spread(limit)}, the look alone")
    for name in ("eos", LOOK):
        if each := ratios(outcomes, name, REFERENCE, "cpu_per_commit"):
            say(f"        {name} CPU of a transaction / {REFERENCE}: {spread(each)}")
    if transaction_ms >= DEFAULT_MS:
        return at_most(
            CPU_AIM, f"eos % of a core / {REFERENCE}", ratios(outcomes, "eos", REFERENCE, "cpu_share")
        )
    if least := ratios(outcomes, LEAST, REFERENCE, "p99_ms"):
        say(f"        {LEAST} p99 / {REFERENCE}: {spread(least)}, were a transaction to cost nothing")
    met = [
        at_most(
            SHORT_COMMIT_AIM, f"eos commit / {REFERENCE}", ratios(outcomes, "eos", REFERENCE, "commit_ms")
        ),
        at_most(
            SHORT_CPU_AIM, f"eos % of a core / {REFERENCE}", ratios(outcomes, "eos", REFERENCE, "cpu_share")
        ),
    ]
    return all(met)


def _measure(
    contender: Contender,
    number: int,
    *,
    bootstrap: str,
    rate: int,
    seconds: float,
    transaction_ms: int,
    pauses_log: Path,
) -> Outcome:
    name = f"bench-{contender.name}-{number}-{time.time_ns()}"
    source, target = f"{name}-input", f"{name}-output"
    create_topic(bootstrap, source)
    create_topic(bootstrap, target)
    arguments = Arguments(
        bootstrap=bootstrap,
        input=source,
        output=target,
        group=name,
        transaction_ms=transaction_ms,
        until_caught_up=False,
    )
    generator = Generator(bootstrap, source, rate, WARM_UP_SECONDS + seconds)
    try:
        with running(contender, arguments) as process:
            began_ms = time.time() * 1000
            generator.start()
            delays, doubled = _read(bootstrap, target, generator)
            ended_ms = time.time() * 1000
        report = process.report
        assert report is not None, "the block ended without an error, so there is a report"
    finally:
        generator.stop()
        delete_topic(bootstrap, source)
        delete_topic(bootstrap, target)
    counted = sorted(delays[n] for n in range(int(WARM_UP_SECONDS * rate), generator.sent) if n in delays)
    if len(counted) < _FEWEST:
        msg = f"{contender.name}: {len(delays)} of {generator.sent} records were seen within {DRAIN_SECONDS:g} s of the last"
        raise TooFewError(msg)
    percentiles = statistics.quantiles([delay.seen_ms for delay in counted], n=100)
    slowest = counted[-max(1, len(counted) // 100) :]
    slow_ms = statistics.fmean(delay.produced_ms for delay in slowest)
    stood_still = pauses.read(pauses_log) if pauses_log.exists() else None
    counted_from_ms = began_ms + WARM_UP_SECONDS * 1000
    commit_seconds, commit_p99 = report.commit_seconds, report.commit_p99_seconds
    return Outcome(
        contender=contender.name,
        round=number,
        records=len(counted),
        missing=generator.sent - len(delays),
        doubled=doubled,
        p50_ms=percentiles[49],
        p99_ms=percentiles[98],
        max_ms=counted[-1].seen_ms,
        slow_ms=slow_ms,
        slow_after_ms=statistics.fmean(delay.seen_ms for delay in slowest) - slow_ms,
        commits=report.commits,
        commit_ms=None if commit_seconds is None else commit_seconds / max(report.commits, 1) * 1000,
        commit_p99_ms=None if commit_p99 is None else commit_p99 * 1000,
        cpu_seconds=process.cpu_seconds - report.startup_cpu_seconds,
        cpu_share=process.cpu_share(counted_from_ms, ended_ms),
        peak_rss=max(report.peak_rss_bytes, *(sample.rss_bytes for sample in process.samples)),
        apart_p99_ms=None if stood_still is None else _p99_apart(counted, stood_still),
        broker_pauses=None
        if stood_still is None
        else len(pauses.within(stood_still, counted_from_ms, ended_ms)),
    )


def _p99_apart(counted: Sequence[_Delay], stood_still: list[pauses.Pause]) -> float | None:
    """Of the records that met no pause; None if those are too few."""
    apart = [
        d.seen_ms for d in counted if not pauses.met(d.stamped_ms, d.stamped_ms + d.seen_ms, stood_still)
    ]
    return statistics.quantiles(apart, n=100)[98] if len(apart) >= _FEWEST else None


class _Delay(NamedTuple):
    """From the moment a record is stamped, in milliseconds, until its copy is seen; until it is produced, by its timestamp."""

    seen_ms: float
    produced_ms: float
    stamped_ms: float  # since the epoch


def _read(bootstrap: str, topic: str, generator: Generator) -> tuple[dict[int, _Delay], int]:
    """Read until every record has come or the drain time is over: delay by number, and how many came twice."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic}-reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, partition) for partition in range(PARTITIONS)])
    delays: dict[int, _Delay] = {}
    epoch_ms = (time.time_ns() - time.monotonic_ns()) / 1e6
    doubled = 0
    drain_until: float | None = None
    while drain_until is None or (len(delays) < generator.sent and time.monotonic() < drain_until):
        if drain_until is None and generator.done:
            drain_until = time.monotonic() + DRAIN_SECONDS
        message = consumer.poll(0.1)
        if message is None or message.error() is not None:
            continue
        now = time.monotonic_ns()
        stamped = orjson.loads(message.value() or b"")["amount"]
        number = int.from_bytes(message.key() or b"")
        doubled += number in delays
        stamped_ms = stamped / 1e6
        produced_ms = message.timestamp()[1] - epoch_ms - stamped_ms
        delays[number] = _Delay(now / 1e6 - stamped_ms, produced_ms, epoch_ms + stamped_ms)
    consumer.close()
    return delays, doubled


def _row(contender: Contender, outcomes: Sequence[Outcome]) -> Row:
    own = [outcome for outcome in outcomes if outcome.contender == contender.name]
    if not own:
        return {"contender": contender.name, "p50 ms (min med max)": "not measured"}
    row = {"contender": contender.name}
    for title, figures in (
        ("p50 ms (min med max)", [outcome.p50_ms for outcome in own]),
        ("p99 ms", [outcome.p99_ms for outcome in own]),
        ("max ms", [outcome.max_ms for outcome in own]),
        ("slowest 1 %: ms to produce", [outcome.slow_ms for outcome in own]),
        ("then", [outcome.slow_after_ms for outcome in own]),
    ):
        row[title] = f"{min(figures):.1f} {statistics.median(figures):.1f} {max(figures):.1f}"
    apart = [outcome.apart_p99_ms for outcome in own if outcome.apart_p99_ms is not None]
    row["p99 ms without the broker's pauses"] = (
        "not measured, all met one"
        if any(outcome.met_pauses_alone for outcome in own)
        else f"{statistics.median(apart):.1f}"
        if apart
        else "-"
    )
    found = [outcome.broker_pauses for outcome in own if outcome.broker_pauses is not None]
    row["pauses"] = f"{statistics.median(found):.0f}" if found else "-"
    commit_ms = [outcome.commit_ms for outcome in own if outcome.commit_ms is not None]
    row["commits"] = f"{statistics.median(outcome.commits for outcome in own):.0f}"
    row["ms/commit"] = f"{statistics.median(commit_ms):.1f}" if commit_ms else "-"
    p99_ms = [outcome.commit_p99_ms for outcome in own if outcome.commit_p99_ms is not None]
    row["p99 ms/commit"] = f"{statistics.median(p99_ms):.1f}" if p99_ms else "-"
    row["CPU s"] = f"{statistics.median(outcome.cpu_seconds for outcome in own):.2f}"
    row["% of a core"] = f"{statistics.median(outcome.cpu_share for outcome in own) * 100:.1f}"
    row["peak MB"] = f"{max(outcome.peak_rss for outcome in own) / MEBIBYTE:.0f}"
    row["missing, doubled"] = f"{sum(o.missing for o in own)}, {sum(o.doubled for o in own)}"
    return row
