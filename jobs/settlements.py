"""Input for the refunds processor: made from a seed, or read from a user's own NDJSON file.

    python -m jobs.settlements --count 100000 --seed 1 --bootstrap-servers 127.0.0.1:9092
    python -m jobs.settlements --file mine.ndjson --bootstrap-servers 127.0.0.1:9092

A seed gives the same bytes on every Python and machine. Only Random.random() keeps its sequence
between Python versions (https://docs.python.org/3/library/random.html#notes-on-reproducibility), and
only the basic operations of IEEE 754 are exact everywhere, so nothing else is used: no choices(), no
power, no uuid, no clock.
"""

from __future__ import annotations

import argparse
import codecs
import json
import sys
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import accumulate, cycle, islice
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, NamedTuple

from eos import EosError, OutputBatch, Settings, TransactionalProducer
from jobs.refund_rules import InvalidSettlementError, parse_settlement

Event = dict[str, Any]
Writer = Callable[[OutputBatch], object]

_ENCODER = json.JSONEncoder(separators=(",", ":"))  # json.dumps would build one for each call


class KeyValue(NamedTuple):
    """A record to load: the key is the merchant's id, where one is known."""

    key: bytes | None
    value: bytes | None


class _Scenario(NamedTuple):
    percent_of_events: int
    percents_of_amount: tuple[int, ...] = ()  # one refund request each
    change: Callable[[Event], None] | None = None


def _ask_in_another_currency(event: Event) -> None:
    event["refund_requests"][0]["currency"] = "GBP"


def _repeat_a_refund_id(event: Event) -> None:
    first, second = event["refund_requests"]
    second["refund_id"] = first["refund_id"]


def _leave_unsettled(event: Event) -> None:
    event["status"] = "pending"


_SCENARIOS = (
    _Scenario(40),
    _Scenario(35, (30,)),
    _Scenario(11, (25, 50)),
    _Scenario(5, (100,)),
    _Scenario(3, (70, 60, 20)),  # the second is over the settled amount, the third fits again
    _Scenario(2, (20, 20), _ask_in_another_currency),
    _Scenario(2, (10, 10), _repeat_a_refund_id),
    _Scenario(1, (0,)),
    _Scenario(1, (50,), _leave_unsettled),
)


def _json(event: Event) -> bytes:
    return _ENCODER.encode(event).encode()


def _without(event: Event, name: str) -> Event:
    return {key: value for key, value in event.items() if key != name}


# Every way to be no settlement; each ends in the dead-letter topic.
POISONS: Mapping[str, Callable[[Event], bytes | None]] = MappingProxyType(
    {
        "invalid JSON": lambda event: _json(event)[:-1],
        "not UTF-8": lambda event: _json(event).replace(b'"settled"', b'"\xff\xfe"'),
        "missing field": lambda event: _json(_without(event, "payment_id")),
        "wrong type": lambda event: _json(event | {"amount_minor": str(event["amount_minor"])}),
        "negative amount": lambda event: _json(event | {"amount_minor": -event["amount_minor"]}),
        "empty value": lambda _: b"",
        "tombstone": lambda _: None,
    }
)

_MERCHANTS = 1000
_CURRENCIES = ("EUR", "USD", "JPY")
_REASONS = ("damaged", "late", "not as described", "changed my mind", "fraud")
_FIRST_EVENT = datetime(2026, 1, 1, tzinfo=UTC)


def settlements(count: int, seed: int, poison_share: float = 0.01) -> Iterator[KeyValue]:
    """Settlement events from a seed; the first n of a longer run are those of a run of n.

    Merchants follow Zipf's law: of 1000, the r-th gets a share of events proportional to 1/r.

    Args:
        count: how many records.
        seed: which ones.
        poison_share: how many of them are no settlements, from 0.0 to 1.0; the kinds of POISONS take turns.
    """
    random = Random(seed).random  # noqa: S311 - reproducible data, no secret
    merchant_weights = list(accumulate(1 / rank for rank in range(1, _MERCHANTS + 1)))
    scenario_weights = list(accumulate(scenario.percent_of_events for scenario in _SCENARIOS))
    poisons = cycle(POISONS.values())
    for number in range(count):
        merchant = f"m-{_draw(merchant_weights, random):04d}"
        scenario = _SCENARIOS[_draw(scenario_weights, random)]
        event = _event(number, merchant, scenario, random)
        # Drawn for every record, so that another share changes no other event.
        is_poison = random() < poison_share
        yield KeyValue(merchant.encode(), next(poisons)(event) if is_poison else _json(event))


def _draw(cumulative_weights: Sequence[float], random: Callable[[], float]) -> int:
    # hi: the product may be rounded up to the last weight itself, whose place would be one too far.
    return bisect(cumulative_weights, random() * cumulative_weights[-1], hi=len(cumulative_weights) - 1)


def _event(number: int, merchant: str, scenario: _Scenario, random: Callable[[], float]) -> Event:
    amount_minor = 100 + int(random() * 100_000)
    currency = _CURRENCIES[int(random() * len(_CURRENCIES))]
    reason = _REASONS[int(random() * len(_REASONS))]
    created_at = f"{(_FIRST_EVENT + timedelta(seconds=number)).replace(tzinfo=None).isoformat()}Z"
    event: Event = {
        "settlement_id": f"s-{number:08d}",
        "merchant_id": merchant,
        "payment_id": f"p-{number:08d}",
        "amount_minor": amount_minor,
        "currency": currency,
        "status": "settled",
        "refund_requests": [
            {
                "refund_id": f"r-{number:08d}-{index}",
                "amount_minor": amount_minor * percent // 100,
                "currency": currency,
                "reason": reason,
                "created_at": created_at,
            }
            for index, percent in enumerate(scenario.percents_of_amount)
        ],
    }
    if scenario.change is not None:
        scenario.change(event)
    return event


def from_ndjson(lines: Iterable[bytes]) -> Iterator[KeyValue]:
    """A user's own events, one per line, byte for byte. Empty lines are skipped.

    A line that is no settlement is loaded too, without a key: where it ends up is for the job to decide.
    """
    for number, line in enumerate(lines):
        text = line.removeprefix(codecs.BOM_UTF8) if number == 0 else line
        if value := text.strip():
            yield KeyValue(_key(value), value)


def _key(value: bytes) -> bytes | None:
    try:
        return parse_settlement(value).merchant_id.encode()
    except InvalidSettlementError:
        return None


def load(
    records: Iterable[KeyValue],
    topic: str,
    write: Writer,
    *,
    progress: Callable[[int], object] = lambda _: None,
    batch_records: int = 10_000,
) -> int:
    """Write records to a topic, a batch at a time, and return how many.

    Args:
        records: what to write.
        topic: where to.
        write: writes one batch; in one transaction, if it is to be there whole or not at all.
        progress: told after each batch how many records it had.
        batch_records: records of a batch.
    """
    remaining = iter(records)
    total = 0
    while batch := list(islice(remaining, batch_records)):
        # No timestamps: the client's clock gives them. Those of the events are in the past, and Kafka
        # deletes by a record's timestamp (retention.ms, 7 days), perhaps before the job has read it.
        write(OutputBatch(topic, [record.value for record in batch], [record.key for record in batch]))
        progress(len(batch))
        total += len(batch)
    return total


def main(
    arguments: Sequence[str],
    open_writer: Callable[[argparse.Namespace], AbstractContextManager[Writer]],
    progress: Callable[[int], object] = lambda _: None,
) -> int:
    """The command: load what the arguments say and return how many records that were.

    Args:
        arguments: the command line without the program's name.
        open_writer: connects; of its argument it needs bootstrap_servers and topic.
        progress: see load().

    Raises:
        SystemExit: 2, for a wrong argument or a file that cannot be opened; said on stderr.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        if options.file is None:
            records = settlements(options.count, options.seed, options.poison_share)
        else:
            try:  # before connecting: a mistyped path should not wait for a broker
                lines = stack.enter_context(options.file.open("rb"))
            except OSError as error:
                parser.error(f"--file {options.file}: {error.strerror}")
            records = from_ndjson(lines)
        write = stack.enter_context(open_writer(options))
        return load(records, options.topic, write, progress=progress)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jobs.settlements", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT,…")
    parser.add_argument("--topic", default="settlements")
    parser.add_argument("--file", type=Path, help="load this NDJSON file instead of generated events")
    parser.add_argument("--count", type=_natural, default=100_000, help="how many records to generate")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--poison-share", type=_share, default=0.01, help="0.0 to 1.0: records that do not parse"
    )
    return parser


def _natural(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def _share(text: str) -> float:
    number = float(text)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0.0 and 1.0")
    return number


@contextmanager
def kafka_writer(options: argparse.Namespace) -> Iterator[Writer]:
    """Write each batch in a transaction of its own, so that an interrupted load leaves whole batches only."""
    settings = Settings.load(
        overrides={"kafka.bootstrap_servers": options.bootstrap_servers, "group": options.topic}
    )
    with TransactionalProducer(settings, app="load-settlements") as producer:

        def write(batch: OutputBatch) -> None:
            with producer.transaction() as txn:
                txn.produce_batch(batch.topic, batch)

        yield write


def _shown_on_terminal() -> Callable[[int], object]:
    done = 0

    def tell(count: int) -> None:
        nonlocal done
        done += count
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{done:,} records")

    return tell


if __name__ == "__main__":
    try:
        loaded = main(sys.argv[1:], kafka_writer, _shown_on_terminal())
    except EosError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    sys.stdout.write(f"{loaded} records loaded\n")
