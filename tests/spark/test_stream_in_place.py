"""A stream whose rows stay in the tasks that read them: its shards are the input's partitions, and a replay finds the same ones."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from eos.prove.ledgers import shards_behind
from eos.spark.events import BatchResumed, LedgerSharded
from eos.spark.jobs import StreamJob
from eos.spark.source import read_stream
from eos.spark.stream.log_entry import LogEntry
from eos.spark.stream.log_rules import LedgerError
from eos.spark.stream.sink import ExactlyOnceSink, exactly_once_sink
from tests.support.observer import (
    PlainRecord,
    committed_offsets,
    create_topics,
    produce_plain,
    read_committed,
    unique,
)
from tests.support.patience import PATIENCE_S
from tests.support.sink_faults import Accident, with_accident
from tests.support.spark_faults import SMALL_BATCHES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from eos.settings import Settings

pytestmark = pytest.mark.broker

FirstOf = Callable[["DataFrame"], "DataFrame"]
# Rows go on to the next operator one by one.
_SINGLY = SMALL_BATCHES | {"spark.sql.execution.arrow.maxRecordsPerBatch": "1"}
PARTITIONS = 3
IN_PLACE = f"in place, {PARTITIONS} tasks"


class Query:
    """A query over topics of three partitions, and what it did."""

    def __init__(self, spark: SparkSession, settings: Settings, bootstrap: str, directory: Path) -> None:
        self.spark, self.settings, self.bootstrap = spark, settings, bootstrap
        self.output, self.name = unique("out"), unique("query")
        self.topics: list[str] = []
        self.checkpoint = directory / "checkpoint"
        self.events: list[Any] = []
        self.wanted: Counter[bytes] = Counter()
        self.source_options: dict[str, str] = {}
        self.add_topic("a")
        create_topics(bootstrap, {self.output: 2})

    def add_topic(self, name: str) -> None:
        self.topics.append(unique(name))
        create_topics(self.bootstrap, {self.topics[-1]: PARTITIONS})

    def add_partitions(self, count: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for done in admin.create_partitions([NewPartitions(self.topics[0], count)]).values():
            done.result(PATIENCE_S)

    def load(self, *partitions: int, topic: int = 0, count: int = 20) -> None:
        """So many new records in each of these partitions."""
        start = self.wanted.total()
        values = [b"v%d" % i for i in range(start, start + count * len(partitions))]
        records = [
            PlainRecord(value, b"k%d" % (i % 7), partitions[i % len(partitions)])
            for i, value in enumerate(values)
        ]
        produce_plain(self.bootstrap, self.topics[topic], records)
        self.wanted.update(values)

    def sink(self, shards: int = PARTITIONS, **given: Any) -> ExactlyOnceSink:
        return exactly_once_sink(
            self.settings,
            name=self.name,
            outputs=[self.output],
            shards=shards,
            listener=self.events.append,
            **{"inputs": self.topics} | given,
        )

    def run(
        self,
        sink: ExactlyOnceSink,
        of_stream: FirstOf = lambda frame: frame,
        of_batch: FirstOf = lambda frame: frame,
        *,
        source: DataFrame | None = None,
    ) -> Any:
        """Until it has caught up; returns Spark's query."""
        records = read_stream(self.spark, self.settings, self.topics, checkpoint=str(self.checkpoint))
        if self.source_options:
            kafka = {"kafka.bootstrap.servers": self.bootstrap, "kafka.isolation.level": "read_committed"}
            kafka |= {"subscribe": ",".join(self.topics), "startingOffsets": "earliest"}
            records = self.spark.readStream.format("kafka").options(**kafka, **self.source_options).load()
        rows = of_stream(source if source is not None else records).select("key", "value")
        writer = rows.writeStream.foreachBatch(lambda frame, batch: sink(of_batch(frame), batch))
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()
        return query

    def fail_in(self, *shards: int, **how: Any) -> None:
        """Run until the tasks of these shards of the first batch have failed for good; the other ones have written."""
        faulty = with_accident(self.sink(), Accident.BEFORE_COMMIT, *shards, tries=9)
        with pytest.raises(StreamingQueryException, match="an accident"):
            self.run(faulty, **how)

    def forget_that_spark_counts_it_as_done(self) -> None:
        for done in (self.checkpoint / "commits").iterdir():
            done.unlink()

    def entries(self) -> list[LogEntry]:
        """Of the shards of the last batch."""
        found: list[LogEntry] = []
        while not found or len(found) < found[0].shards:
            group = f"{self.name}.ledger.{len(found)}"
            offset, metadata = committed_offsets(self.bootstrap, group, [(self.output, 0)])[self.output, 0]
            entry = LogEntry.parse(offset or 0, metadata)
            assert entry is not None
            found.append(entry)
        return found

    def expect_once(self) -> None:
        """Every record of the input, once."""
        assert Counter(r.value for r in read_committed(self.bootstrap, self.output)) == self.wanted

    def divisions(self) -> list[tuple[int, bool]]:
        return [(e.shards, e.in_place) for e in self.events if isinstance(e, LedgerSharded)]

    def resumed(self) -> list[tuple[int, list[int]]]:
        return [(e.batch, list(e.written)) for e in self.events if isinstance(e, BatchResumed)]


@pytest.fixture
def query(spark: SparkSession, settled: Callable[..., Settings], bootstrap: str, tmp_path: Path) -> Query:
    return Query(spark, settled(spark__twin_wait_ms=20_000), bootstrap, tmp_path)


def placement(sink: ExactlyOnceSink) -> str:
    assert sink.lastProgress is not None
    found = sink.lastProgress["sink"]["placement"]
    assert isinstance(found, str)
    return found


def by_key(frame: DataFrame) -> DataFrame:
    return frame.repartition(5, "key")


def with_a_table(frame: DataFrame) -> DataFrame:
    table = frame.sparkSession.range(3).select(F.col("id").cast("int").alias("partition"))
    return frame.join(F.broadcast(table), "partition")


def unchanged(rows: Any) -> Any:
    return rows


def slowly(rows: Any) -> Any:
    """Half a second for each row of a partition."""
    for part in rows:
        for place in range(part.num_rows):
            time.sleep(0.5)
            yield part.slice(place, 1)


# --- which of the two ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of_stream", "of_batch"),
    [
        (lambda df: df, lambda df: df),
        (lambda df: df.where("length(value) > 0"), lambda df: df.where("offset >= 0") if "offset" in df.columns else df),
        (lambda df: df.select("key", "value").mapInArrow(unchanged, "key BINARY, value BINARY"),
         lambda df: df.mapInArrow(unchanged, "key BINARY, value BINARY")),
    ],
    ids=["copied", "filtered", "in Python"],
)  # fmt: skip
def test_rows_of_a_row_wise_plan_are_written_by_the_tasks_that_read_them(
    query: Query, of_stream: FirstOf, of_batch: FirstOf
) -> None:
    query.load(0, 1, 2)
    sink = query.sink()
    progress = query.run(sink, of_stream, of_batch).lastProgress
    query.expect_once()
    assert placement(sink) == IN_PLACE
    assert [(one.next_batch, one.in_place) for one in query.entries()] == [(1, True)] * PARTITIONS
    assert [one.checksum.rows for one in query.entries()] == [20] * PARTITIONS
    assert progress["numInputRows"] == query.wanted.total()  # Spark counts what it reads as ever


@pytest.mark.parametrize(
    ("of_stream", "of_batch", "moved_by"),
    [
        (by_key, lambda df: df, "Exchange"),
        (lambda df: df, lambda df: df.coalesce(1), "Coalesce"),
        pytest.param(lambda df: df.coalesce(2), lambda df: df, "Coalesce", marks=pytest.mark.slow),
        (lambda df: df, lambda df: df.where("value < 'v2'").unionByName(df.where("value >= 'v2'")), "Union"),
        (lambda df: df.where("partition = 0").unionByName(df.where("partition <> 0")), lambda df: df, "Union"),
        pytest.param(with_a_table, lambda df: df, "BroadcastHashJoin", marks=pytest.mark.slow),
        (lambda df: df, lambda df: df.groupBy("key", "value").agg(F.count("*")), "HashAggregate"),
        pytest.param(lambda df: df, lambda df: df.cache(), "InMemoryTableScan", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_rows_that_an_operator_takes_out_of_their_task_are_shuffled_by_key(
    query: Query, of_stream: FirstOf, of_batch: FirstOf, moved_by: str
) -> None:
    query.load(0, 1, 2)
    sink = query.sink()
    query.run(sink, of_stream, of_batch)
    query.expect_once()
    assert placement(sink) == f"shuffled to {PARTITIONS} tasks by {moved_by}"
    assert not any(one.in_place for one in query.entries())


def test_a_source_that_splits_partitions_or_is_not_kafka_is_shuffled_by_key(query: Query) -> None:
    query.load(0, 1, 2)
    query.source_options = {"minPartitions": "7"}
    sink = query.sink()
    query.run(sink)
    query.expect_once()
    assert placement(sink) == f"shuffled to {PARTITIONS} tasks by Scan"

    query.name, query.checkpoint = unique("rate"), query.checkpoint.with_name("rate")
    rate = query.spark.readStream.format("rate-micro-batch")
    rows = rate.options(rowsPerBatch=30, numPartitions=2, startTimestamp=1).load()
    rows = rows.selectExpr("CAST(value AS STRING) AS key", "CAST(concat('r', value) AS BINARY) AS value")
    sink = query.sink(inputs=[])
    query.run(sink, source=rows)
    query.wanted.update(b"r%d" % i for i in range(30))
    query.expect_once()
    assert placement(sink) == f"shuffled to {PARTITIONS} tasks by MicroBatchScan"


def test_more_partitions_than_a_batch_may_have_transactions_are_shuffled_by_key(query: Query) -> None:
    query.load(0, 1, 2)
    sink = query.sink(shards=2)
    query.run(sink)
    query.expect_once()
    assert placement(sink) == "shuffled to 2 tasks by sink_shards=2"


# --- the shards of a batch ----------------------------------------------------------------------------


def test_two_topics_have_a_shard_for_each_partition_also_for_those_with_nothing_new(query: Query) -> None:
    query.add_topic("b")
    query.load(0, 2)
    query.load(1, topic=1)
    sink = query.sink(shards=8)
    query.run(sink)
    query.load(2, topic=1)
    query.run(sink)
    query.expect_once()
    assert placement(sink) == "in place, 1 task"
    assert [(one.next_batch, one.shards, one.in_place) for one in query.entries()] == [(2, 6, True)] * 6
    assert [one.checksum.rows for one in query.entries()] == [0, 0, 0, 0, 0, 20]
    assert query.divisions() == [(6, True)]


def test_a_batch_that_no_task_reads_moves_every_shard_on(query: Query) -> None:
    """Spark plans one where partitions were added that have no record yet."""
    query.load(0, 1, 2)
    query.run(query.sink(shards=5))
    query.add_partitions(5)
    query.run(query.sink(shards=5))
    assert [(one.next_batch, one.shards, one.in_place) for one in query.entries()] == [(2, 5, True)] * 5
    query.load(3)
    query.run(query.sink(shards=5))
    query.expect_once()
    assert [one.next_batch for one in query.entries()] == [3] * 5


@pytest.mark.parametrize("inputs", ["known", "not known"])
def test_a_batch_that_is_run_again_has_the_rows_of_each_shard_in_that_shard_again(
    query: Query, inputs: str
) -> None:
    """Each shard's rows are compared with what is written of it."""
    given = {} if inputs == "known" else {"inputs": None}
    query.add_topic("b")
    query.load(0, 1)
    query.load(1, 2, topic=1)
    query.run(query.sink(shards=6, **given))
    query.load(0, 1, 2)
    query.forget_that_spark_counts_it_as_done()
    query.run(query.sink(shards=6, **given))
    query.expect_once()
    assert query.resumed() == [(0, [0, 1, 2, 3, 4, 5])]
    assert all(one.checksum.input for one in query.entries())


@pytest.mark.parametrize(
    "accident",
    [
        Accident.DIES_BEFORE_COMMIT,
        pytest.param(Accident.DIES_AFTER_COMMIT, marks=pytest.mark.slow),
        Accident.UNANSWERED,
    ],
    ids=lambda accident: accident.name.lower(),
)
def test_a_task_that_fails_around_its_commit_is_tried_again_and_writes_once(
    query: Query, accident: Accident
) -> None:
    query.load(0, 1, 2)
    sink = with_accident(query.sink(), accident, 0, 2)
    query.run(sink)
    query.expect_once()
    assert placement(sink) == IN_PLACE


def test_a_batch_that_is_begun_keeps_its_shards_where_partitions_are_added_or_fewer_are_allowed(
    query: Query,
) -> None:
    query.load(0, 1, 2)
    query.fail_in(1)
    query.add_partitions(5)
    query.load(3, 4)
    query.run(query.sink(shards=2))
    assert query.resumed() == [(0, [0, 2])]
    query.expect_once()
    assert query.divisions() == [(3, True), (2, False)]
    query.load(0, 4)
    query.run(query.sink(shards=5))
    query.expect_once()
    assert query.divisions() == [(3, True), (2, False), (5, True)]


def test_a_trial_waits_for_the_shards_that_a_batch_has(query: Query) -> None:
    """Fewer than a batch may have."""
    query.load(0, 1, 2)
    settings = query.settings.model_copy(
        update={"spark": query.settings.spark.model_copy(update={"sink_shards": 5})}
    )
    job = StreamJob(name=query.name, inputs=query.topics, outputs=[query.output], transform=lambda df: df)
    assert shards_behind(job.identity(settings), settings) == 0
    query.fail_in(1)
    assert shards_behind(job.identity(settings), settings) == 1
    query.run(query.sink())
    assert shards_behind(job.identity(settings), settings) == 0


def test_rows_that_take_longer_to_compute_than_a_transaction_may_live_are_gathered_first(
    query: Query, settled: Callable[..., Settings]
) -> None:
    """In place a transaction is open while its rows are computed."""
    query.settings = settled(transaction__timeout_ms=6_000)
    query.load(0, 1, count=20)
    for name, value in _SINGLY.items():
        query.spark.conf.set(name, value)  # the first row begins the transaction
    sink = query.sink()
    try:
        query.run(sink, lambda df: df.select("key", "value").mapInArrow(slowly, "key BINARY, value BINARY"))
    finally:
        for name in _SINGLY:
            query.spark.conf.unset(name)
    query.expect_once()
    gathered = "shuffled to 3 tasks by an expired transaction"
    assert placement(sink) == gathered
    assert [(one.next_batch, one.in_place) for one in query.entries()] == [(1, True)] * PARTITIONS
    query.load(0, 2)
    query.run(sink)
    assert placement(sink) == gathered, (
        "for each batch of this sink, so that not each waits for a timeout first"
    )
    sink = query.sink()
    query.load(0, 1, 2)
    query.run(sink)
    query.expect_once()
    assert placement(sink) == IN_PLACE
    assert query.divisions() == [(PARTITIONS, True)], "the shards stay the input's partitions"


# --- from one of the two to the other -----------------------------------------------------------------


@pytest.mark.parametrize("change", ["plan", "source"])
def test_a_batch_that_was_begun_in_place_is_refused_where_its_rows_leave_their_tasks_now(
    query: Query, change: str
) -> None:
    query.load(0, 1, 2)
    if change == "source":
        query.source_options = {"maxOffsetsPerTrigger": "1000"}
    query.fail_in(1)
    written = Counter(r.value for r in read_committed(query.bootstrap, query.output))
    assert written.total() == 40
    before, sink = dict(query.source_options), query.sink()
    if change == "source":
        query.source_options |= {"minPartitions": "7"}
    with pytest.raises(StreamingQueryException):
        query.run(sink, by_key if change == "plan" else lambda frame: frame)
    assert isinstance(sink.failure, LedgerError)
    text = str(sink.failure)
    assert "batch 0 was begun in place, one shard for each of 3 input partitions, of which [0, 2] are" in text
    by = "Exchange" if change == "plan" else "Scan"
    assert f"shuffled by key to 3 shards, by {by}" in text
    assert "adopt" not in text, "to write all of it again is no way out"
    assert Counter(r.value for r in read_committed(query.bootstrap, query.output)) == written
    query.source_options = before
    query.run(query.sink())
    query.expect_once()
    assert query.resumed() == [(0, [0, 2])]


def test_a_batch_that_is_written_in_place_is_left_as_it_is_once_a_person_accepts_it(query: Query) -> None:
    """The driver was killed between the last shard's commit and Spark's count, and the plan has changed since."""
    query.load(0, 1, 2)
    query.run(query.sink())
    query.forget_that_spark_counts_it_as_done()
    sink = query.sink()
    with pytest.raises(StreamingQueryException):
        query.run(sink, by_key)
    assert "All of it is written" in str(sink.failure)
    token = str(sink.failure).partition("--adopt ")[2].split()[0]
    query.load(0, 1)
    sink = query.sink(adopt=token)
    query.run(sink, by_key)
    query.expect_once()
    assert placement(sink) == f"shuffled to {PARTITIONS} tasks by Exchange"


def test_a_batch_that_was_begun_behind_a_shuffle_is_finished_behind_one(query: Query) -> None:
    """Also one of an earlier version of eos, whose entries say nothing of it."""
    query.load(0, 1, 2)
    query.fail_in(1, of_stream=by_key)
    assert "in-place" not in "".join(
        metadata
        for _, metadata in committed_offsets(
            query.bootstrap, f"{query.name}.ledger.0", [(query.output, 0)]
        ).values()
    )
    query.run(query.sink())
    query.expect_once()
    assert query.resumed() == [(0, [0, 2])]
    assert query.divisions() == [(3, False)]
    query.load(0, 1)
    sink = query.sink()
    query.run(sink)
    query.expect_once()
    assert placement(sink).startswith("in place")
    assert query.divisions() == [(3, False), (3, True)]


def test_a_batch_that_comes_out_otherwise_in_place_is_refused(query: Query) -> None:
    query.load(0, 1, 2)
    query.fail_in(1)
    sink = query.sink()
    with pytest.raises(StreamingQueryException):
        query.run(sink, lambda df: df.withColumn("value", F.concat("value", F.lit("!").cast("binary"))))
    assert "gives other rows" in str(sink.failure)
    query.run(query.sink())
    query.expect_once()
