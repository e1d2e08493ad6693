"""A loop's job applied by Spark writes the records that the loop writes: byte by byte, in order, dead letters too."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from eos.errors import ConfigError, TransformError, UsageError
from eos.events import ignore_event
from eos.job import Job
from eos.runner.worker import run
from eos.settings import Settings
from eos.spark.batch.batch import ExactlyOnceBatch
from eos.spark.transform import records_transform
from tests.support import observer
from tests.support.batch_records import POISON, per_batch, per_record
from tests.support.observer import PlainRecord
from tests.support.settings import settings_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.exactly_once import SeenRecord

pytestmark = pytest.mark.broker

Make = Callable[[str, str, str, str], Job]
Content = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


@pytest.fixture
def source(bootstrap: str) -> str:
    made = observer.unique("in")
    observer.create_topics(bootstrap, {made: 2})
    records = [
        PlainRecord(
            b"v%d" % i if i % 5 else None, b"k%d" % i if i % 7 else None, i % 2, (("n", b"%d" % i),) * (i % 3)
        )
        for i in range(120)
    ]
    records[40] = PlainRecord(POISON, b"bad", 0, (("n", b"1"),))
    observer.produce_plain(bootstrap, made, records)
    return made


def settings(bootstrap: str, **others: str) -> Settings:
    return settings_of(bootstrap, **{"input__start": "earliest", "poison__policy": "dead-letter"} | others)


def job_with_topics(bootstrap: str, source: str, make: Make) -> Job:
    topics = [observer.unique(name) for name in ("copies", "audit", "dead")]
    observer.create_topics(bootstrap, dict.fromkeys(topics, 3))
    return make(source, *topics)


def by_origin(records: list[SeenRecord], topics: list[str]) -> dict[tuple[object, ...], list[Content]]:
    """Per output topic, output partition and input partition, what was written there in order."""
    found = defaultdict(list)
    for record in records:
        headers = dict(record.headers)
        origin = headers.get("from") or b"%b-" % (headers["eos.deadletter.partition"] or b"")
        content = (record.key, record.value, record.headers)
        # Records without a key are spread at random.
        place = record.partition if record.key is not None else None
        found[topics.index(record.topic), place, origin.split(b"-")[0]].append(content)
    return {
        place: contents if place[1] is not None else sorted(contents, key=str)
        for place, contents in found.items()
    }


@pytest.mark.parametrize("make", [per_record, per_batch])
def test_the_records_are_those_of_the_loop(
    spark: SparkSession, bootstrap: str, source: str, make: Make
) -> None:
    by_loop = job_with_topics(bootstrap, source, make)
    by_spark = job_with_topics(bootstrap, source, make)
    looped = settings(bootstrap, group=observer.unique("loop"))
    run(by_loop, looped, stop=threading.Event(), until_caught_up=True, listener=ignore_event)

    sparked = settings(bootstrap, group=observer.unique("spark"))
    batch = ExactlyOnceBatch(
        spark, sparked, name="records", inputs=[source], outputs=sorted(by_spark.written_topics)
    )
    batch.run(records_transform(by_spark, sparked))

    loop_topics, spark_topics = ([*job.outputs, str(job.dead_letters)] for job in (by_loop, by_spark))
    expected = by_origin(observer.read_committed(bootstrap, *loop_topics), loop_topics)
    found = by_origin(observer.read_committed(bootstrap, *spark_topics), spark_topics)
    assert found == expected
    assert sum(map(len, found.values())) > 150
    # Timestamps that the job set; the others are of the clock.
    stamped = {
        r.headers: r.timestamp_ms
        for r in observer.read_committed(bootstrap, loop_topics[0])
        if r.headers[-2][1]
    }
    for record in observer.read_committed(bootstrap, spark_topics[0]):
        if int((dict(record.headers)["from"] or b"").split(b"-")[1]) % 3 == 0:
            assert record.timestamp_ms == stamped[record.headers]


def test_the_poison_policy_stop_names_the_record(spark: SparkSession, bootstrap: str, source: str) -> None:
    job = job_with_topics(bootstrap, source, per_record)
    stopping = settings(bootstrap, group=observer.unique("stop"), poison__policy="stop")
    batch = ExactlyOnceBatch(
        spark, stopping, name="records", inputs=[source], outputs=sorted(job.written_topics)
    )
    with pytest.raises(TransformError, match="offset 20") as caught:
        batch.run(records_transform(job, stopping))
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == (source, 0, 20)
    origins = {
        dict(r.headers)["from"] for r in observer.read_committed(bootstrap, *sorted(job.written_topics))
    }
    assert not any((origin or b"").startswith(b"0-") for origin in origins)


def test_what_is_wrong_with_the_job_is_said_on_the_driver(bootstrap: str) -> None:
    job = Job(name="records", inputs=["in"], outputs=["out"], transform=lambda _: [])
    with pytest.raises(UsageError, match="needs a topic"):
        records_transform(job, settings(bootstrap))
    with pytest.raises(ConfigError, match="declares no settings"):
        records_transform(job, settings(bootstrap, job__x="1", poison__policy="skip"))
