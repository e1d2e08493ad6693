"""Source: the input topics: what the cluster says of their logs, and their committed records as a DataFrame.

The records are read by Spark's Kafka connector: planned ranges, a snapshot, or a stream.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property

from pyspark.errors import IllegalArgumentException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from eos import retry
from eos.errors import ConfigError, EosError, RetriableError, UnavailableError, UnclassifiedError
from eos.group.committed import offsets_at
from eos.group.topics import TopicIds, known_partitions, refuse_where_agreed
from eos.kafka.admin import Admin, Mark
from eos.offsets import OffsetVector, Partition
from eos.settings import Settings
from eos.spark.plan import SHARD, InputPlan, OffsetRange
from eos.spark.session.checkpoint import Checkpoint
from eos.spark.session.checks import drops_last_polls, require_classic
from eos.spark.session.java_options import java_client_options

_FETCH_MAX_WAIT_MS = "10"  # small batches otherwise wait 0.5 s per task for more (500 partitions: 133 s)
# At each poll the connector seeks, which drops what was fetched ahead, and asks where the log begins and ends
# (InternalKafkaConsumer.fetch). With 500 records of 100 bytes in a poll, Java's default, the broker sent most of them several times:
# 2.0 s for 2,000,000 records instead of 1.4, 0.9 s of the broker's processor time instead of 0.3. A poll is at most a fetch, 1 MiB of
# the log, which compressed may be much more in memory. So only where the session does not keep polls for minutes.
_MAX_POLL_RECORDS = "5000"
# One consumer per partition is made for each run, so what it does beside fetching counts.
_TUNED = {
    "auto.include.jmx.reporter": "false",  # hundreds of MBeans per consumer, which lives too briefly to be looked at
    "enable.metrics.push": "false",  # KIP-714: a request to the broker at the start and one at the end
}  # the two took a quarter of the processor time of reading 500 partitions with 200 records each
# How long a task waits for a record that its log does not have any more. Spark's 120 s, times four tries, were 481 s.
_POLL_MS = 30_000


class InputLogs:
    """What the cluster says of topics and logs: it asks until ``open_timeout_s`` have passed; then it is an UnavailableError.

    ``gone`` makes the error for topics that were deleted, where it is not a group's offsets that say where to go on.
    """

    def __init__(
        self, settings: Settings, *, gone: Callable[[Iterable[str]], ConfigError] | None = None
    ) -> None:
        self._settings = settings
        self._gone = gone
        self._timeout_s = settings.open_timeout_s

    @cached_property
    def admin(self) -> Admin:
        """The client that asks."""
        return Admin.of(self._settings)

    def at(self, mark: Mark, partitions: Collection[Partition]) -> OffsetVector:
        """The offset of a mark in each log."""
        return offsets_at(self._settings, mark, partitions, admin=self.admin)

    def partitions(self, *topics: str) -> list[Partition]:
        """All partitions of topics; a ConfigError if one of them does not exist."""
        return known_partitions(self.admin, topics, timeout_s=self._timeout_s)

    def ids_now(self, topics: Collection[str]) -> Mapping[str, str]:
        """The ids of the topics that exist. What is read after it counts in these topics, or its commit is refused."""
        ids = TopicIds(self._settings)
        return retry.ask(lambda slice_s: ids.now(topics, slice_s), timeout_s=self._timeout_s)

    def ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """The ids of topics that all existed a moment ago; a ConfigError if one was deleted."""
        if not topics:
            return {}
        return TopicIds(self._settings).of(topics, timeout_s=self._timeout_s, gone=self._gone)

    def refuse_recreated(
        self, expected: Iterable[tuple[str, str]], ids: Mapping[str, str] | None = None
    ) -> None:
        """Raise OffsetGapError if a topic was deleted and created anew since it had its id of (topic, id).

        Args:
            expected: (topic, id).
            ids: that were asked for just now; of another topic nothing is said.

        Raises:
            UnavailableError: brokers tell different ids of one.
        """
        asked = {(topic, topic_id) for topic, topic_id in expected if ids is None or topic in ids}
        topics = {topic for topic, _ in asked}
        try:
            refuse_where_agreed(asked, self.ids(topics) if ids is None else ids, lambda: self.ids(topics))
        except RetriableError as error:
            raise UnavailableError(str(error)) from error


def blamed(settings: Settings, topics: Collection[str], error: EosError) -> EosError:
    """An error that a topic which does not exist any more may have caused: then that one's, and no record or broker is at fault."""
    try:
        InputLogs(settings).partitions(*topics)
    except ConfigError as absent:
        return absent
    except EosError as unknown:
        error.add_note(f"whether the topics still exist could not be asked: {unknown}")
    return error


def read_input(spark: SparkSession, settings: Settings, plan: InputPlan) -> DataFrame:
    """The records of the plan's ranges: Spark's Kafka columns with headers, and ``shard``.

    One task per range, in offset order. A committed offset that has fallen off the log fails the query
    (failOnDataLoss); `eos.spark.batch.planning.refuse_gone` says whether that is why one failed.

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
        ConfigError: the topic does not exist, no brokers are named, or the session lacks the Kafka connector or is one of Spark
            Connect.
        UnavailableError: the cluster did not answer in time.
    """
    require_classic(spark)
    logs = InputLogs(settings)
    partitions = logs.partitions(topic)
    # The end first: a beginning that moves on in between makes a gap, which fails, and not a negative range.
    ends, begins = logs.at(Mark.LAST_STABLE, partitions), logs.at(Mark.START, partitions)
    ranges = [OffsetRange(p, begins[p], ends[p]) for p in partitions if begins[p] < ends[p]]
    if ranges:
        return _read(spark, settings, ranges, f"snapshot-{topic}")
    one = [OffsetRange(p, begins[p], begins[p]) for p in partitions[:1]]
    return _read(spark, settings, one, f"snapshot-{topic}").where(F.lit(False))


def read_stream(
    spark: SparkSession,
    settings: Settings,
    topics: Sequence[str],
    *,
    checkpoint: str,
    max_offsets_per_batch: int | None = None,
    skip_deleted: bool = False,
) -> DataFrame:
    """The records of these topics as a streaming DataFrame: Spark's Kafka columns with headers, and ``shard``.

    ``shard`` is the partition's number. It is there so that transforms for batches work here too; the sink divides
    its output by other means.

    Where the query stands is in its checkpoint once that has a batch; ``input.start`` is for the first start alone. A
    checkpoint that is lost later is found by the sink, whose commit log knows the query.

    Args:
        spark: the session.
        settings: how to reach the cluster, and where to start.
        topics: the input topics.
        checkpoint: the query's checkpointLocation, to see whether this is its first start.
        max_offsets_per_batch: offsets of all partitions together that one batch takes; all that are there if None.
        skip_deleted: go on behind input that was deleted before it was read: for one start, when an `OffsetGapError` has said
            so and a person accepts that those records are never processed.

    Raises:
        ConfigError: nothing says where to start, no brokers are named, or the session has no Kafka connector or is one of Spark
            Connect.
    """
    require_classic(spark)
    start = settings.input.start
    if start == "fail":
        if not Checkpoint(spark, checkpoint).has_batches():
            raise ConfigError(
                f"the checkpoint {checkpoint!r} has no batch yet, and nothing says where to start. Fix, for the first "
                "start, and again if that one failed: --start earliest (all input) or --start latest (only new input); "
                "or name the checkpoint that was used"
            )
        start = "earliest"  # without effect: the checkpoint says where
    options = {"subscribe": ",".join(topics), "startingOffsets": start}
    if max_offsets_per_batch is not None:
        options["maxOffsetsPerTrigger"] = str(max_offsets_per_batch)
    options |= _options(spark, settings, f"{'-'.join(topics)}-spark")
    options["failOnDataLoss"] = str(not skip_deleted).lower()
    frame = _loaded(lambda: spark.readStream.format("kafka").options(**options).load())
    return frame.withColumn(SHARD, F.col("partition"))


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
    options = {
        # With assign Spark wants an offset for every partition named, so only those of the plan are named.
        "assign": json.dumps(partitions),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        **{f"kafka.{name}": value for name, value in _TUNED.items()},
        **_options(spark, settings, group_prefix),
    }
    return _loaded(lambda: spark.read.format("kafka").options(**options).load())


def _options(spark: SparkSession, settings: Settings, group_prefix: str) -> dict[str, str]:
    """What every reader gets: only what is committed, all of it, and from the cluster of the settings."""
    large_polls = {"kafka.max.poll.records": _MAX_POLL_RECORDS} if drops_last_polls(spark) else {}
    return {
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        "kafkaConsumer.pollTimeoutMs": str(_POLL_MS),
        "groupIdPrefix": group_prefix,
        "kafka.fetch.max.wait.ms": _FETCH_MAX_WAIT_MS,
        **large_polls,
        **{f"kafka.{name}": value for name, value in java_client_options(settings).items()},
        "kafka.isolation.level": "read_committed",
    }


def _loaded(load: Callable[[], DataFrame]) -> DataFrame:
    try:
        return load()
    except Exception as error:
        if "Failed to find data source" in str(error) or "DATA_SOURCE_NOT_FOUND" in str(error):
            raise ConfigError(
                "this Spark session has no Kafka connector. Fix: its jars in spark.jars (`eos spark jars` prints "
                "them), or --packages org.apache.spark:spark-sql-kafka-0-10_2.13:<Spark's version>"
            ) from error
        if isinstance(error, IllegalArgumentException):
            raise ConfigError(
                f"Spark's Kafka source refuses an option: {error}. Fix: the table [spark.client]"
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
