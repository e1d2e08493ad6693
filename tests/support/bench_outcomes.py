"""Outcomes of the benchmark, as a run would give them."""

from __future__ import annotations

from bench.copying import Outcome


def outcome(
    contender: str = "eos", number: int = 1, rate: float = 100_000.0, *, exact: bool = True
) -> Outcome:
    return Outcome(
        contender=contender,
        round=number,
        rate=rate,
        warm_rate=2 * rate,
        records=1_000_000,
        exact=exact,
        seconds=10.0,
        start_seconds=1.25,
        cpu_seconds=12.0,
        startup_cpu_seconds=2.0,
        commits=10,
        commit_ms=None,
        markers=11,
        peak_rss=1 << 20,
        rss_at_20_percent=0,
        rss_at_100_percent=0,
    )
