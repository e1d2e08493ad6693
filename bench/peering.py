"""eos beside other ways to copy exactly once: one input, interleaved rounds, every output checked."""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from bench.broker import broker
from bench.contender import MEBIBYTE
from bench.contenders import CONTENDERS, Contender
from bench.copying import Outcome, Workload, interleaved, line_of, loaded
from bench.goals import at_least, ratios
from bench.peers.listed import make_ready
from bench.plot import plot
from bench.progress import progress
from bench.results import Row, say, show, spread, write

OWN = tuple(CONTENDERS[name] for name in ("eos", "eos-record", "a", "b"))
REFERENCE = "eos"
TRIAL_RECORDS = 20_000
JAVA = ("java", "java-tuned")
JAVA_AIM = 1.2  # of the rate of a loop in Java that has been compiled
WARM = ("b", "eos", *JAVA)  # b: what the client has in Python, whatever is around it
SHOWN_CHARACTERS = 300


@dataclass(frozen=True)
class Warm:
    """The long run: records, and how many times; 0 leaves it out."""

    records: int
    rounds: int


def run(peers: Sequence[str], workload: Workload, *, rounds: int, warm: Warm, bootstrap: str | None) -> bool:
    """Run the benchmark, print its tables and draw its plot; True if every output was exact."""
    ready, left_out = make_ready(peers)
    for name, why in left_out.items():
        say(f"{name} is left out: {why}")
    contenders = [*OWN, *ready]
    failed: dict[str, str] = {}
    few, many = replace(workload, records=TRIAL_RECORDS), replace(workload, records=warm.records)
    with broker(bootstrap) as servers:
        _measured(
            servers, contenders, few, 1, failed
        )  # not counted: who works here at all; it warms the broker up
        outcomes = _measured(servers, contenders, workload, rounds, failed)
        long = [one for one in contenders if one.name in WARM] if warm.rounds else []
        warm_outcomes = _measured(servers, long, many, warm.rounds, failed)

    left_out |= failed
    _show(f"peers: {workload}", rounds, contenders, outcomes, left_out)
    if warm_outcomes:
        _show(f"warm: {many}", warm.rounds, long, warm_outcomes, {})
    for name in JAVA:
        at_least(JAVA_AIM, f"eos rate / {name}, warm", ratios(warm_outcomes, REFERENCE, name, "rate"))
    path = write("peers", {**asdict(workload), "left_out": left_out}, [*outcomes, *warm_outcomes])
    if outcomes:
        plot(outcomes, path)
    return not failed


def _measured(
    servers: str, contenders: Sequence[Contender], workload: Workload, rounds: int, failed: dict[str, str]
) -> list[Outcome]:
    """The exact outcomes. Who fails once is named in ``failed`` and left out from then on: the others go on."""
    outcomes: list[Outcome] = []
    if not contenders:
        return outcomes
    with loaded(servers, workload) as bench, progress(rounds * len(contenders)) as step:
        for number, contender in interleaved(contenders, rounds):
            step(f"{workload.records:,} records, round {number}/{rounds} {contender.name}")
            if contender.name in failed:
                continue
            try:
                outcome = bench.measure(contender, number)
            except (RuntimeError, subprocess.TimeoutExpired, TimeoutError) as error:
                failed[contender.name] = " ".join(str(error).split())[-SHOWN_CHARACTERS:]
                say(f"{contender.name} failed: {failed[contender.name]}")
                continue
            say(f"{workload.records:,} records, round {number}/{rounds} {line_of(outcome)}")
            if outcome.exact:
                outcomes.append(outcome)
            else:
                failed[contender.name] = f"NOT EXACT: {outcome.records:,} of {workload.records:,} records"
    return outcomes


def _show(
    title: str,
    rounds: int,
    contenders: Sequence[Contender],
    outcomes: Sequence[Outcome],
    left_out: Mapping[str, str],
) -> None:
    measured = [one for one in contenders if any(outcome.contender == one.name for outcome in outcomes)]
    rows = [_row(one.name, outcomes, rounds) for one in measured]
    columns = rows[0] if rows else ("contender",)
    rows += [
        {**dict.fromkeys(columns, "-"), "contender": name}
        for name in left_out
        if name not in {one.name for one in measured}
    ]
    if rows:
        show(f"{title}, {rounds} rounds", rows)
    for one in measured:
        say(f"  {one.name}: {one.what}")
    for name, why in left_out.items():
        say(f"  {name} was left out: {why}")


def _row(name: str, outcomes: Sequence[Outcome], rounds: int) -> Row:
    own = [outcome for outcome in outcomes if outcome.contender == name]

    def middle(figures: Sequence[float], digits: int = 0) -> str:
        return f"{statistics.median(figures):.{digits}f}"

    rates = [outcome.rate / 1000 for outcome in own]
    return {
        "contender": name,
        "k records/s (min med max)": f"{min(rates):.0f} {statistics.median(rates):.0f} {max(rates):.0f}",
        f"/{REFERENCE}": spread(ratios(outcomes, name, REFERENCE, "rate")),
        "k/s after 1/5": middle([outcome.warm_rate / 1000 for outcome in own]),
        "CPU s/M": middle([outcome.cpu_per_million for outcome in own], 2),
        "start s": middle([outcome.start_seconds for outcome in own], 1),
        "start CPU s": middle([outcome.startup_cpu_seconds for outcome in own], 2),
        "peak MB": f"{max(outcome.peak_rss for outcome in own) / MEBIBYTE:.0f}",
        "transactions": middle([outcome.markers for outcome in own]),
        "exact": f"{len(own)} of {rounds}",
    }
