"""The Spark jobs: the batch writes what the loop writes, and the report says what the settlements come to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from eos.events import ignore_event
from eos.kafka.topics import create_topics, delete_topics
from eos.runner.worker import run
from eos.spark.running import run_job
from jobs import refunds, refunds_batch, settlement_report
from jobs.merchants import MERCHANTS, merchants
from jobs.settlements import KeyValue, settlements
from tests.support import observer
from tests.support.observer import PlainRecord, SeenRecord

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from tests.spark.conftest import Settled

pytestmark = pytest.mark.broker

RECORDS, PARTITIONS = 3_000, 3
Place = tuple[str, bytes | None]  # topic, key


@pytest.fixture(scope="module")
def loaded(bootstrap: str) -> list[SeenRecord]:
    """The jobs' own topics, with settlements, and with merchants of which one has changed its name."""
    config = {"bootstrap.servers": bootstrap}
    outputs = [*refunds.job.written_topics, settlement_report.SETTLEMENT_REPORT]
    topics = dict.fromkeys([refunds.SETTLEMENTS, *outputs], PARTITIONS) | {MERCHANTS: 2}
    delete_topics(config, topics)  # other tests of these jobs may have run on the same broker
    create_topics(config, topics)
    renamed = json.dumps({"merchant_id": "m-0000", "name": "Renamed", "country": "DE"}).encode()
    produce(bootstrap, MERCHANTS, [*merchants(500), KeyValue(b"m-0000", renamed)])
    return produce(bootstrap, refunds.SETTLEMENTS, settlements(RECORDS, seed=7))


def produce(bootstrap: str, topic: str, records: Iterable[KeyValue]) -> list[SeenRecord]:
    return observer.produce_plain(bootstrap, topic, [PlainRecord(one.value, one.key) for one in records])


def by_key(records: Iterable[SeenRecord]) -> dict[Place, list[tuple[object, ...]]]:
    """All that a reader sees of each key but the offsets, in order. A key is in one input partition."""
    found: dict[Place, list[tuple[object, ...]]] = defaultdict(list)
    for record in records:
        # What does not parse is keyed by its sender, so it has an order too; without a key there is none.
        found[record.topic, record.key].append(
            (record.partition, record.value, record.headers, record.timestamp_ms)
        )
    return found


def test_batch_writes_the_records_of_the_loop_in_their_order(
    spark: SparkSession, bootstrap: str, settled: Settled, loaded: list[SeenRecord]
) -> None:
    topics = sorted(refunds.job.written_topics)
    loop_group = observer.unique("refunds-loop")
    run(
        refunds.job,
        settled(group=loop_group),
        stop=threading.Event(),
        until_caught_up=True,
        listener=ignore_event,
    )
    of_loop = observer.read_committed(bootstrap, *topics)
    batch_group = observer.unique("refunds-batch")
    result = run_job(refunds_batch.job, spark, settled(group=batch_group))
    seen = observer.read_committed(bootstrap, *topics)
    places = {(record.topic, record.partition, record.offset) for record in of_loop}
    of_batch = [record for record in seen if (record.topic, record.partition, record.offset) not in places]

    assert len(of_loop) > RECORDS
    assert by_key(of_batch) == by_key(of_loop)
    assert result.records_out == len(of_batch)
    inputs = [(refunds.SETTLEMENTS, number) for number in range(PARTITIONS)]
    offsets = {
        group: {p: o for p, (o, _) in observer.committed_offsets(bootstrap, group, inputs).items()}
        for group in (loop_group, batch_group)
    }
    assert offsets[loop_group] == offsets[batch_group]
    assert not run_job(refunds_batch.job, spark, settled(group=batch_group)).shards


def test_report_says_what_the_settlements_of_its_range_come_to(
    spark: SparkSession, bootstrap: str, settled: Settled, loaded: list[SeenRecord]
) -> None:
    settled_minor: Counter[tuple[str, str]] = Counter()
    refunded_minor: Counter[tuple[str, str]] = Counter()
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    for record in loaded:
        for fact in settlement_report.facts_of(record.value):
            of = fact["merchant_id"], fact["currency"]
            settled_minor[of] += fact["settled_minor"]
            refunded_minor[of] += fact["refunded_minor"]
            if fact["reason"] is not None:
                reasons[fact["merchant_id"]][fact["reason"]] += 1

    group = observer.unique("report")
    result = run_job(settlement_report.job, spark, settled(group=group))

    reports = observer.read_committed(bootstrap, settlement_report.SETTLEMENT_REPORT)
    found_settled: Counter[tuple[str, str]] = Counter()
    found_refunded: Counter[tuple[str, str]] = Counter()
    for report in reports:
        said = json.loads(report.value or b"")
        assert report.key == f"{said['merchant_id']}|{said['day']}|{result.plan.identity}".encode()
        for total in said["totals"]:
            found_settled[said["merchant_id"], total["currency"]] += total["settled_minor"]
            found_refunded[said["merchant_id"], total["currency"]] += total["refunded_minor"]
        top = sorted(reasons[said["merchant_id"]].items(), key=lambda one: (-one[1], one[0]))[:3]
        assert [(one["reason"], one["refunds"]) for one in said["top_reasons"]] == top
    assert found_settled == settled_minor
    assert found_refunded == refunded_minor
    assert {json.loads(r.value or b"")["name"] for r in reports if (r.key or b"").startswith(b"m-0000|")} == {
        "Renamed"
    }
    assert len({report.key for report in reports}) == len(reports) == result.records_out
    stands = observer.committed_offsets(
        bootstrap, group, [(refunds.SETTLEMENTS, number) for number in range(PARTITIONS)]
    )
    assert {p: o for p, (o, _) in stands.items()} == {
        (one.partition.topic, one.partition.number): one.end for one in result.plan
    }


@pytest.mark.slow
def test_example_of_the_documentation_runs(bootstrap: str) -> None:
    create_topics({"bootstrap.servers": bootstrap}, {"payments": 2, "payment-fees": 2})
    payments = [
        PlainRecord(json.dumps({"merchant": f"m{i % 7}", "amount_minor": i * 200}).encode())
        for i in range(100)
    ]
    observer.produce_plain(bootstrap, "payments", payments)
    ended = subprocess.run(
        [sys.executable, "docs/examples/own_transform.py"],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"EOS_KAFKA__BOOTSTRAP_SERVERS": bootstrap},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "and again: 0 transactions" in ended.stdout
    fees = [json.loads(record.value or b"") for record in observer.read_committed(bootstrap, "payment-fees")]
    assert sum(fee["fee_minor"] for fee in fees) == sum(i * 3 for i in range(100))
