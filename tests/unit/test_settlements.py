"""The input of the refunds processor: the same for a seed, skewed, poisoned; or a user's own."""

from __future__ import annotations

import argparse
import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from eos.records import OutputBatch
from jobs.refund_rules import (
    InvalidSettlementError,
    Rejection,
    Settlement,
    decide,
    parse_settlement,
)
from jobs.settlements import POISONS, KeyValue, Writer, from_ndjson, load, main, settlements

COUNT = 10_000
PARSED = 3_000  # of them


@pytest.fixture(scope="module")
def generated() -> list[KeyValue]:
    return list(settlements(COUNT, seed=1))


@pytest.fixture(scope="module")
def events(generated: list[KeyValue]) -> list[tuple[bytes | None, Settlement]]:
    """Those of ``generated`` that are settlements, with their keys."""
    parsed = ((record.key, settlement(record)) for record in generated[:PARSED])
    return [(key, event) for key, event in parsed if event is not None]


def settlement(record: KeyValue) -> Settlement | None:
    try:
        return parse_settlement(record.value)
    except InvalidSettlementError:
        return None


def is_settlement(record: KeyValue) -> bool:
    return settlement(record) is not None


def test_first_thousand_records_are_pinned() -> None:
    """Other Pythons and machines must make the same bytes; a change here changes every figure of the demo."""
    digest = hashlib.sha256()
    for key, value in settlements(1000, seed=1, poison_share=0.05):
        digest.update(repr((key, value)).encode())

    assert digest.hexdigest() == "d6dcf044cc4d67db1d1c99a6739c5b3b7332f448fb7f31bc8f4b80d1a64a352a"


def test_seeds_differ_and_shorter_runs_are_prefixes(generated: list[KeyValue]) -> None:
    assert list(settlements(100, seed=1)) == generated[:100]
    assert list(settlements(100, seed=2)) != generated[:100]


def test_poison_replaces_records_and_changes_no_other() -> None:
    clean = list(settlements(500, seed=1, poison_share=0))
    poisoned = list(settlements(500, seed=1, poison_share=0.1))

    assert all(is_settlement(record) for record in clean)
    assert all(a == b or not is_settlement(b) for a, b in zip(clean, poisoned, strict=True))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_share_of_poison_is_as_asked(share: float) -> None:
    poisoned = sum(not is_settlement(record) for record in settlements(1500, seed=3, poison_share=share))

    assert poisoned / 1500 == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("kind", POISONS)
def test_each_kind_of_poison_is_no_settlement(kind: str, generated: list[KeyValue]) -> None:
    event = parse_settlement(generated[0].value).model_dump(mode="json")

    with pytest.raises(InvalidSettlementError):
        parse_settlement(POISONS[kind](event))


def test_every_kind_of_poison_takes_its_turn() -> None:
    values = [value for _, value in settlements(len(POISONS), seed=1, poison_share=1)]

    assert len(set(values)) == len(POISONS)
    assert None in values
    assert b"" in values


def test_merchants_are_skewed(generated: list[KeyValue]) -> None:
    """Zipf over 1000: the first has 1/7.49 of the events, the tenth a tenth of that, and many have a few."""
    counts = Counter(record.key for record in generated)

    assert counts[b"m-0000"] / COUNT == pytest.approx(1 / 7.485, rel=0.1)
    assert counts[b"m-0009"] / counts[b"m-0000"] == pytest.approx(1 / 10, rel=0.3)
    assert 900 < len(counts) <= 1000


def test_every_outcome_of_the_rules_occurs(events: list[tuple[bytes | None, Settlement]]) -> None:
    found = Counter(audit.rejection for _, event in events for audit in decide(event).audits)

    # too_many_refunds needs more than a hundred in one event, which no scenario asks for.
    assert set(found) == {None, *Rejection} - {Rejection.TOO_MANY_REFUNDS}
    assert any(not event.refund_requests for _, event in events)


def test_ids_are_unique_and_keys_are_the_merchants(events: list[tuple[bytes | None, Settlement]]) -> None:
    assert len({event.settlement_id for _, event in events}) == len(events)
    assert all(key == event.merchant_id.encode() for key, event in events)
    assert len(events) > PARSED * 0.9


def test_ndjson_lines_are_taken_byte_for_byte_and_empty_ones_skipped(generated: list[KeyValue]) -> None:
    line = generated[0].value
    assert line is not None

    loaded = list(from_ndjson([b"\xef\xbb\xbf" + line + b"\r\n", b"\n", b"  \r\n", b"{oops\n", line]))

    assert loaded == [generated[0], KeyValue(None, b"{oops"), generated[0]]


def test_load_writes_in_batches_without_timestamps_and_tells_its_progress(generated: list[KeyValue]) -> None:
    """Without: the events' own are in the past, and retention might delete them before they are read."""
    written: list[OutputBatch] = []
    told: list[int] = []

    total = load(generated[:25], "settlements", written.append, progress=told.append, batch_records=10)

    assert total == 25
    assert told == [10, 10, 5]
    assert [(r.key, r.value) for batch in written for r in batch] == generated[:25]
    assert all(batch.topic == "settlements" and batch.timestamps_ms is None for batch in written)


class Kafka:
    """Stands in for a connection: keeps what is written."""

    def __init__(self) -> None:
        self.options: argparse.Namespace | None = None
        self.written: list[OutputBatch] = []

    @contextmanager
    def connect(self, options: argparse.Namespace) -> Iterator[Writer]:
        self.options = options
        yield self.written.append


SERVERS = ("--bootstrap-servers", "127.0.0.1:9092")


def test_command_loads_generated_records(generated: list[KeyValue]) -> None:
    kafka = Kafka()

    assert main([*SERVERS, "--count", "20", "--topic", "t"], kafka.connect) == 20
    assert [(r.key, r.value) for batch in kafka.written for r in batch] == generated[:20]
    assert kafka.options is not None
    assert (kafka.options.bootstrap_servers, kafka.options.topic) == ("127.0.0.1:9092", "t")


def test_command_loads_a_file(tmp_path: Path) -> None:
    kafka = Kafka()
    path = tmp_path / "mine.ndjson"
    path.write_bytes(b"{}\n\n[]\n")

    assert main([*SERVERS, "--file", str(path)], kafka.connect) == 2
    assert [r.value for r in kafka.written[0]] == [b"{}", b"[]"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--file", "no/such.ndjson"], "--file no/such.ndjson: No such file or directory"),
        (["--file", "/"], "--file /: Is a directory"),
        (["--count", "0"], "0 is not 1 or more"),
        (["--poison-share", "2"], "2 is not between 0.0 and 1.0"),
    ],
)
def test_wrong_argument_is_said_before_anything_is_connected(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kafka = Kafka()

    with pytest.raises(SystemExit) as ended:
        main([*SERVERS, *arguments], kafka.connect)

    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert kafka.options is None
