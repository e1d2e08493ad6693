"""Source: exactly the planned offset ranges as a DataFrame, read with read_committed by Spark's Kafka connector."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from eos import retry
from eos.errors import ConfigError, UnclassifiedError
from eos.group.topic_ids import TopicIds, refuse_recreated
from eos.kafka.admin import Admin, Mark
from eos.kafka.config import client_config
from eos.offsets import Partition
from eos.settings import Settings
from eos.spark.java import java_client_options
from eos.spark.plan import DELETED, SHORTER, InputPlan, OffsetRange, gap

SHARD = "shard"
# One consumer per partition is made for each run, so what it does beside fetching counts.
_TUNED = {
    "fetch.max.wait.ms": "10",  # small batches otherwise wait 0.5 s per task for more (500 partitions: 133 s)
    "auto.include.jmx.reporter": "false",  # hundreds of MBeans per consumer, which nobody could look at in time
    "enable.metrics.push": "false",  # KIP-714 asks the broker at the start and tells it at the end
}  # the last two took a quarter of the processor time of reading 500 partitions with 200 records each
# How long a task waits for a record that its log does not have any more. Spark's 120 s, times four tries, were 481 s.
_POLL_MS = 30_000
_KAFKA_RELATION = "org.apache.spark.sql.kafka010.KafkaRelation"
_KAFKA_TASK = "org.apache.spark.sql.kafka010.KafkaSourceRDDPartition"


def read_input(spark: SparkSession, settings: Settings, plan: InputPlan) -> DataFrame:
    """The records of the plan's ranges: Spark's Kafka columns with headers, and ``shard``.

    One task per range, in offset order. A committed offset that has fallen off the log fails the query
    (failOnDataLoss); :func:`refuse_gone` says whether that is why one failed.

    Raises:
        ConfigError: the plan is empty, no brokers are named, or the session lacks the Kafka connector.
    """
    if not plan.ranges:
        raise ConfigError("the plan has no ranges: there is nothing to read")
    frame = _read(spark, settings, plan.ranges, f"{plan.group}-spark")
    return frame.withColumn(SHARD, _shard_column(plan))


def read_snapshot(spark: SparkSession, settings: Settings, topic: str) -> DataFrame:
    """The records of a topic from its beginning to the last stable offset of this moment.

    It is no part of the input: no group, no offsets are committed for it. The end is fixed here, so a task that
    is tried again reads the same records.

    Raises:
        ConfigError: the topic does not exist, no brokers are named, or the session lacks the Kafka connector.
        UnavailableError: the cluster did not answer in time.
    """
    admin = Admin(client_config(settings))
    within_s = settings.open_deadline_s
    shapes = retry.ask(lambda timeout_s: admin.topics([topic], timeout_s), within_s=within_s)
    if topic not in shapes:
        raise ConfigError(f"topic {topic!r} does not exist. Fix: create it; eos never creates topics")
    partitions = [Partition(topic, number) for number in range(shapes[topic].partitions)]
    # The end first: a beginning that moves on in between makes a gap, which fails, and not a negative range.
    ends = retry.ask(
        lambda timeout_s: admin.offsets_at(Mark.LAST_STABLE, partitions, timeout_s), within_s=within_s
    )
    begins = retry.ask(
        lambda timeout_s: admin.offsets_at(Mark.START, partitions, timeout_s), within_s=within_s
    )
    ranges = [OffsetRange(p, begins[p], ends[p]) for p in partitions if begins[p] < ends[p]]
    if ranges:
        return _read(spark, settings, ranges, f"snapshot-{topic}")
    one = [OffsetRange(p, begins[p], begins[p]) for p in partitions[:1]]
    return _read(spark, settings, one, f"snapshot-{topic}").where(F.lit(False))


def refuse_gone(settings: Settings, plan: InputPlan) -> None:
    """Refuse a plan whose records are not all in the log any more, or whose topics are others by now.

    Spark would wait for records beyond the end of a log for minutes, task by task and try by try.

    Raises:
        OffsetGapError: naming the first such partition or topic.
        ConfigError: a topic does not exist any more.
        UnavailableError: the cluster did not answer in time.
    """
    within_s = settings.open_deadline_s
    topics = {one.partition.topic for one in plan}
    expected = {(one.partition.topic, one.topic_id) for one in plan}
    refuse_recreated(expected, TopicIds(settings).of(topics, within_s=within_s))
    admin = Admin(client_config(settings))
    partitions = [one.partition for one in plan]

    def at(mark: Mark) -> Mapping[Partition, int]:
        return retry.ask(lambda timeout_s: admin.offsets_at(mark, partitions, timeout_s), within_s=within_s)

    begins, high = at(Mark.START), at(Mark.HIGH_WATERMARK)
    for one in plan:
        if one.start < begins[one.partition]:
            raise gap(one.partition, one.start, f"the log begins at {begins[one.partition]}", DELETED)
        if one.end > high[one.partition]:
            ends = f"the log, which ended at {one.end} or later when the run was planned, ends at {high[one.partition]}"
            raise gap(one.partition, one.start, ends, SHORTER)


def kafka_relation(frame: DataFrame) -> Any | None:
    """The connector's own object behind a DataFrame of :func:`read_input`; None if the plan shows none."""
    return next((r for r in map(relation_of, _leaves(_physical(frame))) if r is not None), None)


def relation_of(node: Any) -> Any | None:
    """The Kafka relation that a leaf of a physical plan scans; None for any other node."""
    if node.getClass().getSimpleName() != "RowDataSourceScanExec":
        return None
    relation = node.relation()
    return relation if relation.getClass().getName() == _KAFKA_RELATION else None


def ranges_by_task(java_rdd: Any) -> list[OffsetRange] | None:
    """The range that each task of a JVM RDD reads; None unless every task is one Kafka range."""
    found = []
    for task in java_rdd.partitions():
        if task.getClass().getName() != _KAFKA_TASK:
            return None
        one = task.offsetRange()
        of = one.topicPartition()
        found.append(OffsetRange(Partition(of.topic(), of.partition()), one.fromOffset(), one.untilOffset()))
    return found


def require_planned(found: Iterable[OffsetRange], plan: InputPlan) -> None:
    """Hold what Spark is about to read against the plan.

    Raises:
        UnclassifiedError: they differ; nothing was read yet.
    """
    listed = sorted(found, key=lambda one: (one.partition, one.start))
    if listed != list(plan.ranges):
        odd = next((one for one in listed if one not in plan.ranges), None) or "one range less"
        raise UnclassifiedError(f"Spark's Kafka source would read {odd}, which is not what was planned")


# --- inside ----------------------------------------------------------------------------------------------


def _read(
    spark: SparkSession, settings: Settings, ranges: Iterable[OffsetRange], group_prefix: str
) -> DataFrame:
    partitions: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for one in ranges:
        topic, number = one.partition
        partitions.setdefault(topic, []).append(number)
        starts.setdefault(topic, {})[str(number)] = one.start
        ends.setdefault(topic, {})[str(number)] = one.end
    options: Mapping[str, str] = {
        # With assign Spark wants an offset for every partition named, so only those of the plan are named.
        "assign": json.dumps(partitions),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        "kafkaConsumer.pollTimeoutMs": str(_POLL_MS),
        "groupIdPrefix": group_prefix,
        **{f"kafka.{name}": value for name, value in _TUNED.items()},
        **{f"kafka.{name}": value for name, value in java_client_options(settings).items()},
        "kafka.isolation.level": "read_committed",
    }
    try:
        return spark.read.format("kafka").options(**options).load()
    except Exception as error:
        if "Failed to find data source" in str(error) or "DATA_SOURCE_NOT_FOUND" in str(error):
            raise ConfigError(
                "this Spark session has no Kafka connector. Fix: its jars in spark.jars (`eos spark jars` prints "
                "them), or --packages org.apache.spark:spark-sql-kafka-0-10_2.13:<Spark's version>"
            ) from error
        raise


def _shard_column(plan: InputPlan) -> Column:
    """A partition's place in the plan: its number, plus how many partitions the topics before have."""
    base: dict[str, int] = {}
    for place, partition in enumerate(plan.partitions):
        if place != base.setdefault(partition.topic, place) + partition.number:
            raise UnclassifiedError(f"{partition}: the partitions of a topic are numbered without gaps")
    number = F.col("partition").cast("int")
    topics = sorted({one.partition.topic for one in plan})
    if len(topics) == 1:
        return number + base[topics[0]] if base[topics[0]] else number
    places = F.create_map(*[F.lit(item) for topic in topics for item in (topic, base[topic])])
    return number + places[F.col("topic")]


def _physical(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().executedPlan()  # noqa: SLF001 - PySpark shows no plan objects


def _leaves(node: Any) -> Iterable[Any]:
    children = node.children()
    if children.isEmpty():
        yield node
    for place in range(children.size()):
        yield from _leaves(children.apply(place))
