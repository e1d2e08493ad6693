"""``python -m bench``: the command line of the benchmarks."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from bench import copying, latency, starting
from bench.contenders import CONTENDERS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a benchmark; 0 if every output was exact and every target was met, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Copy records in transactions: what it costs."
    )
    commands = parser.add_subparsers(dest="command", required=True)

    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--bootstrap", help="a running broker (default: one is started)")
    shared.add_argument("--rounds", type=_positive, default=3)
    shared.add_argument("--transaction-ms", type=_positive, default=100)
    shared.add_argument(
        "--contenders",
        type=_contenders,
        default=list(CONTENDERS),
        help=f"of {', '.join(CONTENDERS)} (default: all)",
    )

    copy = commands.add_parser("copy", parents=[shared], help="catch up on a backlog: records per second")
    copy.add_argument("--records", type=_positive, default=1_000_000)

    delay = commands.add_parser("latency", parents=[shared], help="an even stream: delay from end to end")
    delay.add_argument("--rate", type=_positive, default=2000, help="records per second")
    delay.add_argument("--seconds", type=float, default=20.0, help="measured time per contender and round")

    batches = commands.add_parser("spark", help="Spark's writers over one plan: records per second")
    batches.add_argument("--bootstrap", help="a running broker (default: one is started)")
    batches.add_argument("--rounds", type=_positive, default=3)
    batches.add_argument("--records", type=_positive, default=2_000_000)

    start = commands.add_parser(
        "start", help="a run without input, and the replacement of a killed worker: seconds"
    )
    start.add_argument("--bootstrap", help="a running broker (default: one is started)")
    start.add_argument("--rounds", type=_positive, default=5)
    start.add_argument(
        "--eos",
        action="append",
        help="the command to measure, that of another tree too; may be repeated (default: eos)",
    )

    given = parser.parse_args(arguments)
    if given.command == "spark":
        from bench import spark  # not before it is asked for: it needs PySpark

        names = list(spark.CONTENDERS)
        good = spark.run(names, records=given.records, rounds=given.rounds, bootstrap=given.bootstrap)
    elif given.command == "start":
        good = starting.run(given.eos or ["eos"], rounds=given.rounds, bootstrap=given.bootstrap)
    elif given.command == "copy":
        good = copying.run(
            given.contenders,
            records=given.records,
            rounds=given.rounds,
            transaction_ms=given.transaction_ms,
            bootstrap=given.bootstrap,
        )
    else:
        good = latency.run(
            given.contenders,
            rate=given.rate,
            seconds=given.seconds,
            rounds=given.rounds,
            transaction_ms=given.transaction_ms,
            bootstrap=given.bootstrap,
        )
    return 0 if good else 1


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        msg = f"{text} is not a positive number"
        raise argparse.ArgumentTypeError(msg)
    return number


def _contenders(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in CONTENDERS]:
        msg = f"{', '.join(unknown)}: known are {', '.join(CONTENDERS)}"
        raise argparse.ArgumentTypeError(msg)
    return names


if __name__ == "__main__":
    # Both signals leave through the blocks that end contenders and the broker.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
