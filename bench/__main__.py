"""``python -m bench``: the command line of the benchmarks."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterable, Sequence

from bench import copying, latency, moments, peering
from bench.contenders import CONTENDERS
from bench.copying import Workload
from bench.peers.listed import PEERS
from bench.topics import PARTITIONS, VALUE_BYTES


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a benchmark; 0 if every output was exact and every target was met, else 1."""
    given = _parser().parse_args(arguments)
    good: bool = given.run(given)
    return 0 if good else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Copy records in transactions: what it costs."
    )
    commands = parser.add_subparsers(dest="command", required=True)

    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--bootstrap", help="a running broker (default: one is started)")
    shared.add_argument("--rounds", type=_positive, default=3)

    transactions = argparse.ArgumentParser(add_help=False, parents=[shared])
    transactions.add_argument("--transaction-ms", type=_positive, default=100)

    chosen = argparse.ArgumentParser(add_help=False, parents=[transactions])
    chosen.add_argument(
        "--contenders",
        type=_names(CONTENDERS),
        default=list(CONTENDERS),
        help=f"of {', '.join(CONTENDERS)} (default: all)",
    )

    copy = commands.add_parser("copy", parents=[chosen], help="catch up on a backlog: records per second")
    copy.add_argument("--records", type=_positive, default=1_000_000)
    copy.add_argument("--partitions", type=_positive, default=PARTITIONS)
    copy.add_argument("--value-bytes", type=_positive, default=VALUE_BYTES, help="at least 50")
    copy.set_defaults(run=_copy)

    delay = commands.add_parser("latency", parents=[chosen], help="an even stream: delay from end to end")
    delay.add_argument("--rate", type=_positive, default=2000, help="records per second")
    delay.add_argument("--seconds", type=float, default=20.0, help="measured time per contender and round")
    delay.set_defaults(run=_latency)

    for name, (what, _) in moments.MOMENTS.items():
        moment = commands.add_parser(name, parents=[shared], help=f"{what}: seconds")
        moment.set_defaults(run=_moment)

    peers = commands.add_parser(
        "peers", parents=[transactions], help="eos beside others who copy exactly once"
    )
    peers.add_argument(
        "--peers", type=_names(PEERS), default=list(PEERS), help=f"of {', '.join(PEERS)} (default: all)"
    )
    peers.add_argument("--records", type=_positive, default=1_000_000)
    peers.add_argument("--warm-records", type=_positive, default=5_000_000, help="of the long run")
    peers.add_argument("--warm-rounds", type=int, default=1, help="of the long run; 0 leaves it out")
    peers.set_defaults(run=_peers)

    batches = commands.add_parser(
        "spark", parents=[shared], help="Spark's writers over one plan: records per second"
    )
    batches.add_argument("--records", type=_positive, default=2_000_000)
    batches.set_defaults(run=_spark)

    databases = commands.add_parser(
        "sql", parents=[shared], help="a table filled from a topic, and an outbox relayed: rows per second"
    )
    databases.add_argument("--records", type=_positive, default=300_000)
    databases.set_defaults(run=_sql)
    return parser


def _copy(given: argparse.Namespace) -> bool:
    workload = Workload(given.records, given.transaction_ms, given.partitions, given.value_bytes)
    return copying.run(given.contenders, workload, rounds=given.rounds, bootstrap=given.bootstrap)


def _latency(given: argparse.Namespace) -> bool:
    return latency.run(
        given.contenders,
        rate=given.rate,
        seconds=given.seconds,
        rounds=given.rounds,
        transaction_ms=given.transaction_ms,
        bootstrap=given.bootstrap,
    )


def _moment(given: argparse.Namespace) -> bool:
    return moments.run(given.command, rounds=given.rounds, bootstrap=given.bootstrap)


def _peers(given: argparse.Namespace) -> bool:
    return peering.run(
        given.peers,
        Workload(given.records, given.transaction_ms),
        rounds=given.rounds,
        warm=peering.Warm(given.warm_records, given.warm_rounds),
        bootstrap=given.bootstrap,
    )


def _spark(given: argparse.Namespace) -> bool:
    from bench import spark  # not before it is asked for: it needs PySpark

    names = list(spark.CONTENDERS)
    return spark.run(names, records=given.records, rounds=given.rounds, bootstrap=given.bootstrap)


def _sql(given: argparse.Namespace) -> bool:
    from bench import sql  # not before it is asked for: it needs SQLAlchemy

    return sql.run(records=given.records, rounds=given.rounds, bootstrap=given.bootstrap)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        msg = f"{text} is not a positive number"
        raise argparse.ArgumentTypeError(msg)
    return number


def _names(known: Iterable[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            msg = f"{', '.join(unknown)}: known are {', '.join(known)}"
            raise argparse.ArgumentTypeError(msg)
        return names

    return parse


if __name__ == "__main__":
    # Both signals leave through the blocks that end contenders and the broker.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
