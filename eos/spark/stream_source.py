"""The source of a streaming query: committed records of Kafka topics, from a stated start or the query's checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from eos.errors import ConfigError
from eos.settings import Settings
from eos.spark.checkpoint import Checkpoint
from eos.spark.java import java_client_options
from eos.spark.source import SHARD

# Small batches otherwise wait 0.5 s per task for the broker to gather more.
_FETCH_MAX_WAIT_MS = 10


def read_stream(
    spark: SparkSession,
    settings: Settings,
    topics: Sequence[str],
    *,
    checkpoint: str,
    max_offsets_per_batch: int | None = None,
) -> DataFrame:
    """The records of these topics as a streaming DataFrame: Spark's Kafka columns with headers, and ``shard``.

    ``shard`` is the partition's number. It is there so that transforms for batches work here too; the sink divides
    its output by other means.

    Where the query stands is in its checkpoint once that has a batch; ``input.start`` is for the first start alone. A
    checkpoint that is lost later is found by the sink, whose ledger knows the query.

    Args:
        spark: the session.
        settings: how to reach the cluster, and where to start.
        topics: the input topics.
        checkpoint: the query's checkpointLocation, to see whether this is its first start.
        max_offsets_per_batch: offsets of all partitions together that one batch takes; all that are there if None.

    Raises:
        ConfigError: nothing says where to start, no brokers are named, or the session has no Kafka connector.
    """
    start = settings.input.start
    if start == "fail":
        if not Checkpoint(spark, checkpoint).has_batches():
            raise ConfigError(
                f"the checkpoint {checkpoint!r} has no batch yet, and nothing says where to start. Fix, for the first "
                "start, and again if that one failed: --start earliest (all input) or --start latest (only new input); "
                "or name the checkpoint that was used"
            )
        start = "earliest"  # without effect: the checkpoint says where
    options = {
        "subscribe": ",".join(topics),
        "startingOffsets": start,
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        "groupIdPrefix": f"{'-'.join(topics)}-spark",
        "kafka.fetch.max.wait.ms": str(_FETCH_MAX_WAIT_MS),
        **{f"kafka.{name}": value for name, value in java_client_options(settings).items()},
        "kafka.isolation.level": "read_committed",
    }
    if max_offsets_per_batch is not None:
        options["maxOffsetsPerTrigger"] = str(max_offsets_per_batch)
    try:
        return (
            spark.readStream.format("kafka").options(**options).load().withColumn(SHARD, F.col("partition"))
        )
    except Exception as error:
        if "Failed to find data source" in str(error) or "DATA_SOURCE_NOT_FOUND" in str(error):
            raise ConfigError(
                "this Spark session has no Kafka connector. Fix: its jars in spark.jars (`eos spark jars` prints them)"
            ) from error
        raise
