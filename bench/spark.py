"""Spark's writers over one plan, warm and interleaved: what exactly-once costs against Spark's own Kafka sink."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.streaming.readwriter import DataStreamWriter

from bench.broker import broker
from bench.check import Output, committed_records, read_loaded, read_output
from bench.contenders.raw_batch import produce_columns
from bench.goals import at_least, ratios
from bench.results import Row, say, show, spread, write
from bench.topics import PARTITIONER, PARTITIONS, create_topic, delete_topic, load
from eos import Settings
from eos.local.connector import provide_connector
from eos.local.java import find_java
from eos.spark.batch.batch import ExactlyOnceBatch
from eos.spark.batch.planning import plan_input
from eos.spark.session.session import build_session
from eos.spark.source import read_input
from eos.spark.stream.division import sharded
from eos.spark.stream.sink import exactly_once_sink
from eos.spark.write.endmarks import END
from eos.spark.write.output import OutputColumns

CORES = 2
REFERENCE = "sink"
STREAM_REFERENCE = "stream-sink"
AIMS = (
    ("partition", REFERENCE, 1.15),
    ("stream", STREAM_REFERENCE, 1.05),
)  # of the rates of Spark's own sinks
_STREAM_SECONDS = 600
_FLUSH_SECONDS = 60


@dataclass(frozen=True)
class Work:
    """What a contender is given: a session, settings of a group of its own, and where to read and write."""

    spark: SparkSession
    settings: Settings
    name: str
    source: str
    target: str
    scratch: Path

    @property
    def servers(self) -> str:
        """The bootstrap servers."""
        return self.settings.kafka.bootstrap_servers or ""

    def planned(self) -> DataFrame:
        """The input, with the same explicit ranges for everybody."""
        plan = plan_input(self.settings, [self.source], app=self.name, commit="partition")
        return read_input(self.spark, self.settings, plan)

    def stream(self) -> DataFrame:
        """The input as a stream, from its beginning to its present end."""
        options = {
            "kafka.bootstrap.servers": self.servers,
            "kafka.isolation.level": "read_committed",
            "subscribe": self.source,
            "startingOffsets": "earliest",
        }
        return self.spark.readStream.format("kafka").options(**options).load()

    def shuffled(self, batch: DataFrame) -> DataFrame:
        """A stream's batch as exactly_once_sink shuffles it, with all the columns that it adds."""
        return sharded(batch, OutputColumns.of(batch, [self.target]), self.settings.spark.sink_shards)

    def sink(self) -> dict[str, str]:
        """The options of Spark's own sink."""
        return {"kafka.bootstrap.servers": self.servers, "topic": self.target}


def transform(records: DataFrame) -> DataFrame:
    """A column transform: what is measured is the way, not the work."""
    kept = [name for name in ("shard",) if name in records.columns]
    return records.select(*kept, "key", F.upper(F.col("value").cast("string")).cast("binary").alias("value"))


def _read(work: Work) -> None:
    transform(work.planned()).write.format("noop").mode("append").save()


def _to_python(work: Work) -> None:
    _hand_over(transform(work.planned()))


def _hand_over(frame: DataFrame) -> None:
    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = sum(len(batch.column("value").to_pylist()) for batch in batches)
        yield pa.RecordBatch.from_pydict({"rows": [rows]})

    frame.mapInArrow(count, "rows BIGINT").collect()


def _to_producer(work: Work) -> None:
    _produce(work, transform(work.planned()))


def _to_transactions(work: Work) -> None:
    _produce(work, transform(work.planned()), transactions=True)


def _produce(work: Work, frame: DataFrame, *, transactions: bool = False) -> None:
    """Write by confluent-kafka as fast as it goes, and without a look at what became of a record: each task in a transaction, or none."""
    options: dict[str, str] = {"bootstrap.servers": work.servers, "partitioner": PARTITIONER}
    topic, name = work.target, work.name

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from confluent_kafka import Producer  # here: it cannot be pickled
        from pyspark import TaskContext

        if transactions:
            task = TaskContext.get()
            assert task is not None, "this runs in a task"
            options["transactional.id"] = f"{name}-{task.partitionId()}"
        producer, rows = Producer(options), 0
        if transactions:
            producer.init_transactions(_FLUSH_SECONDS)
            producer.begin_transaction()
        for batch in batches:
            values, keys = (batch.column(name).to_pylist() for name in ("value", "key"))
            produce_columns(producer, topic, values, keys)
            rows += len(values)
        if transactions:
            producer.commit_transaction(_FLUSH_SECONDS)
        else:
            producer.flush(_FLUSH_SECONDS)
        yield pa.RecordBatch.from_pydict({"rows": [rows]})

    frame.mapInArrow(write, "rows BIGINT").collect()


def _sink(work: Work) -> None:
    transform(work.planned()).write.format("kafka").options(**work.sink()).save()


def _partition(work: Work) -> None:
    batch = ExactlyOnceBatch(
        work.spark, work.settings, name=work.name, inputs=[work.source], outputs=[work.target]
    )
    batch.run(transform, commit="partition")


def _batch(work: Work) -> None:
    batch = ExactlyOnceBatch(
        work.spark, work.settings, name=work.name, inputs=[work.source], outputs=[work.target]
    )
    batch.run(transform, commit="batch")


def _stream_sink(work: Work) -> None:
    _finish(work, transform(work.stream()).writeStream.format("kafka").options(**work.sink()))


def _stream_shuffled(work: Work) -> None:
    def write(batch: DataFrame, _: int) -> None:
        unmarked(work.shuffled(batch)).write.format("kafka").options(**work.sink()).save()

    _finish(work, transform(work.stream()).writeStream.foreachBatch(write))


def unmarked(rows: DataFrame) -> DataFrame:
    """Shuffled rows without their end marks, and no column less: what nobody asks for Spark would not shuffle."""
    return rows.where(~F.col(END))


def _stream_to_python(work: Work) -> None:
    def hand_over(batch: DataFrame, _: int) -> None:
        _hand_over(work.shuffled(batch))

    _finish(work, transform(work.stream()).writeStream.foreachBatch(hand_over))


def _stream_to_producer(work: Work) -> None:
    def write(batch: DataFrame, _: int) -> None:
        _produce(work, unmarked(work.shuffled(batch)))

    _finish(work, transform(work.stream()).writeStream.foreachBatch(write))


def _stream(work: Work) -> None:
    sink = exactly_once_sink(work.settings, name=work.name, outputs=[work.target])
    _finish(work, transform(work.stream()).writeStream.foreachBatch(sink))


def _stream_by_key(work: Work) -> None:
    sink = exactly_once_sink(work.settings, name=work.name, outputs=[work.target])
    # It moves nothing, and to eos it might.
    moved = transform(work.stream()).coalesce(PARTITIONS)
    _finish(work, moved.writeStream.foreachBatch(sink))


def _finish(work: Work, writer: DataStreamWriter) -> None:
    writer = writer.option("checkpointLocation", str(work.scratch / work.name))
    query = writer.trigger(availableNow=True).start()
    if not query.awaitTermination(_STREAM_SECONDS):
        query.stop()
        msg = f"the query did not end within {_STREAM_SECONDS} s"
        raise TimeoutError(msg)


@dataclass(frozen=True)
class SparkContender:
    """A way to write. ``commits``: whether the group's offsets are in its transactions."""

    name: str
    what: str
    run: Callable[[Work], None]
    reference: str | None = None
    writes: bool = True
    commits: bool = False


CONTENDERS = {
    one.name: one
    for one in (
        SparkContender("read", "the input read and transformed, written nowhere", _read, writes=False),
        # No writer in Python can be faster.
        SparkContender(
            "to-python", "the same, handed to Python as Arrow batches", _to_python, REFERENCE, writes=False
        ),
        # … nor one that keeps a guarantee as fast as this.
        SparkContender(
            "to-producer",
            "the same, written by confluent-kafka without transactions",
            _to_producer,
            REFERENCE,
        ),
        # … or one that has no more of it than a transaction for each task: a stage that runs twice writes all of it twice.
        SparkContender(
            "to-transactions",
            "the same, each task in a transaction, without the input's offsets",
            _to_transactions,
            REFERENCE,
        ),
        SparkContender("sink", "Spark's own Kafka sink: at least once", _sink),
        SparkContender("partition", "eos, commit='partition'", _partition, REFERENCE, commits=True),
        SparkContender(
            "batch", "eos, commit='batch': one transaction, one writer", _batch, REFERENCE, commits=True
        ),
        SparkContender(
            "stream-sink", "Structured Streaming, Spark's own Kafka sink: at least once", _stream_sink
        ),
        # Of what the stream lacks against Spark's sink, the part that is the shuffle's.
        SparkContender(
            "stream-shuffled",
            "Spark's own Kafka sink for each batch, behind the shuffle of exactly_once_sink",
            _stream_shuffled,
            STREAM_REFERENCE,
        ),
        # Behind that shuffle, no writer in Python can be faster.
        SparkContender(
            "stream-to-python",
            "each batch, shuffled likewise, handed to Python as Arrow batches",
            _stream_to_python,
            STREAM_REFERENCE,
            writes=False,
        ),
        SparkContender(
            "stream-to-producer",
            "each batch, shuffled likewise, written by confluent-kafka without transactions",
            _stream_to_producer,
            STREAM_REFERENCE,
        ),
        SparkContender("stream", "Structured Streaming through exactly_once_sink", _stream, STREAM_REFERENCE),
        SparkContender(
            "stream-by-key",
            "the same where an operator may have moved rows: behind its shuffle by key",
            _stream_by_key,
            STREAM_REFERENCE,
        ),
    )
}


@dataclass(frozen=True)
class SparkOutcome:
    """One contender in one round."""

    contender: str
    round: int
    records: int
    seconds: float
    exact: bool

    @property
    def rate(self) -> float:
        return self.records / self.seconds


def run(names: Sequence[str], *, records: int, rounds: int, bootstrap: str | None) -> bool:
    """Run the benchmark and print its table; True if every output was exact and the aim was met."""
    contenders = [CONTENDERS[name] for name in names]
    outcomes: list[SparkOutcome] = []
    with broker(bootstrap) as servers, _session() as spark, tempfile.TemporaryDirectory() as scratch:
        topic = f"bench-input-{time.time_ns()}"
        create_topic(servers, topic)
        say(f"loading {records:,} records")
        load(servers, topic, records)
        loaded = read_loaded(servers, topic, records)
        try:
            for number in range(rounds + 1):
                shift = number % len(contenders)
                for contender in contenders[shift:] + contenders[:shift]:
                    outcome = _measure(
                        contender,
                        number,
                        spark=spark,
                        servers=servers,
                        source=topic,
                        loaded=loaded,
                        scratch=Path(scratch),
                    )
                    if number:  # the first round warms up compilers and caches
                        outcomes.append(outcome)
                    say(
                        f"round {number or 'warm-up'}/{rounds} {contender.name:>16}: {outcome.rate / 1000:7.0f} k/s"
                        f"{'' if outcome.exact else '  NOT EXACT'}"
                    )
        finally:
            delete_topic(servers, topic)
    title = (
        f"Spark: {records:,} records of 100 bytes, {PARTITIONS} partitions, local[{CORES}], {rounds} rounds"
    )
    show(title, [_row(one, outcomes) for one in contenders], [one.what for one in contenders])
    met = [
        at_least(aim, f"{name} / {reference}", ratios(outcomes, name, reference, "rate"))
        for name, reference, aim in AIMS
    ]
    write("spark", {"records": records, "cores": CORES}, outcomes)
    return all(met) and all(outcome.exact for outcome in outcomes)


@contextmanager
def _session() -> Iterator[SparkSession]:
    jars = provide_connector(Path(".eos"), java=find_java(), progress=say)
    spark = build_session("bench", f"local[{CORES}]", jars, {"spark.driver.memory": "2g"})
    try:
        yield spark
    finally:
        spark.stop()


def _measure(
    contender: SparkContender,
    number: int,
    *,
    spark: SparkSession,
    servers: str,
    source: str,
    loaded: Output,
    scratch: Path,
) -> SparkOutcome:
    name = f"bench-{contender.name}-{number}-{time.time_ns()}"
    overrides = {
        "kafka.bootstrap_servers": servers,
        "group": name,
        "input.start": "earliest",
        "transaction.timeout_ms": 300_000,
    }
    settings = Settings.load(overrides=overrides, environ={})
    create_topic(servers, name)
    try:
        began = time.monotonic()
        contender.run(Work(spark, settings, name, source, name, scratch))
        seconds = time.monotonic() - began
        exact = True
        if contender.writes:
            # Partition by partition: a contender that places keys otherwise than the loader is none to compare with.
            exact = read_output(servers, name).shares == loaded.shares
        if contender.commits:
            exact = exact and committed_records(servers, name, source) == loaded.records
    finally:
        delete_topic(servers, name)
        shutil.rmtree(scratch / name, ignore_errors=True)
    return SparkOutcome(contender.name, number, loaded.records, seconds, exact)


def _row(contender: SparkContender, outcomes: Sequence[SparkOutcome]) -> Row:
    own = [one for one in outcomes if one.contender == contender.name]
    rates = [one.rate / 1000 for one in own]
    against = ratios(outcomes, contender.name, contender.reference, "rate") if contender.reference else []
    return {
        "contender": contender.name,
        "k records/s (min med max)": f"{min(rates):.0f} {statistics.median(rates):.0f} {max(rates):.0f}",
        "k/s per core": f"{statistics.median(rates) / CORES:.0f}",
        "us/record": f"{1000 / statistics.median(rates):.2f}",
        "against": f"{contender.reference} {spread(against)}" if against else "-",
        "exact": ("yes" if all(one.exact for one in own) else "NO") if contender.writes else "-",
    }
