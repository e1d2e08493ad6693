"""eos beside other ways to copy exactly once: one input, interleaved rounds, every output checked."""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from bench.broker import broker
from bench.contender import MEBIBYTE
from bench.contenders import CONTENDERS, Contender
from bench.copying import CopyBench, Outcome, Workload, interleaved, line_of, loaded, ratios
from bench.peers.listed import make_ready
from bench.plot import plot
from bench.progress import progress
from bench.results import Row, say, show, spread, write

OWN = tuple(CONTENDERS[name] for name in ("eos", "eos-record", "a", "b"))
REFERENCE = "eos"
TRIAL_RECORDS = 20_000
WARM = ("eos", "java", "java-tuned")
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
    with broker(bootstrap) as servers:
        with loaded(servers, replace(workload, records=TRIAL_RECORDS)) as bench:
            failed = _try_out(bench, contenders)  # it warms the broker up as well
        contenders = [one for one in contenders if one.name not in failed]
        left_out |= failed
        outcomes = _measured(servers, contenders, workload, rounds)
        long = [one for one in contenders if one.name in WARM]
        wide = replace(workload, records=warm.records)
        warm_outcomes = _measured(servers, long, wide, warm.rounds) if warm.rounds else []

    _show(f"peers: {workload}, {rounds} rounds", contenders, outcomes, left_out)
    if warm_outcomes:
        _show(f"warm: {wide}, {warm.rounds} rounds", long, warm_outcomes, {})
    path = write("peers", {**asdict(workload), "left_out": left_out}, [*outcomes, *warm_outcomes])
    plot([(one.name, [o for o in outcomes if o.contender == one.name]) for one in contenders], path)
    return not failed and all(outcome.exact for outcome in (*outcomes, *warm_outcomes))


def _measured(
    servers: str, contenders: Sequence[Contender], workload: Workload, rounds: int
) -> list[Outcome]:
    outcomes = []
    with loaded(servers, workload) as bench, progress(rounds * len(contenders)) as step:
        for number, contender in interleaved(contenders, rounds):
            step(f"{workload.records:,} records, round {number}/{rounds} {contender.name}")
            outcomes.append(bench.measure(contender, number))
            say(f"round {number}/{rounds} {line_of(outcomes[-1])}")
    return outcomes


def _try_out(bench: CopyBench, contenders: Sequence[Contender]) -> dict[str, str]:
    """Who fails at a few records, and why: one that does not work here must not end the run of the others."""
    failed = {}
    with progress(len(contenders)) as step:
        for contender in contenders:
            step(f"trying {contender.name}")
            try:
                outcome = bench.measure(contender, 0)
            except (RuntimeError, subprocess.TimeoutExpired, TimeoutError) as error:
                failed[contender.name] = " ".join(str(error).split())[-SHOWN_CHARACTERS:]
            else:
                if not outcome.exact:
                    failed[contender.name] = f"NOT EXACT: {outcome.records} of {TRIAL_RECORDS} records"
            say(f"tried {contender.name:>15}: {failed.get(contender.name, 'exact')}")
    return failed


def _show(
    title: str, contenders: Sequence[Contender], outcomes: Sequence[Outcome], left_out: Mapping[str, str]
) -> None:
    rows = [_row(contender.name, outcomes) for contender in contenders]
    rows += [{**dict.fromkeys(rows[0], "-"), "contender": name} for name in left_out]
    notes = [contender.what for contender in contenders]
    notes += [f"left out: {why}" for why in left_out.values()]
    show(title, rows, notes)


def _row(name: str, outcomes: Sequence[Outcome]) -> Row:
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
        "exact": "yes" if all(outcome.exact for outcome in own) else "NO",
    }
