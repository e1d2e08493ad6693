"""The rows of a streaming batch, divided into shards: each shard's in one task, with a digest of all that is written."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from eos.spark.by_number import by_number
from eos.spark.endmarks import MARKS
from eos.spark.output import OutputColumns
from eos.spark.sink_task import DIGEST, HASH, SHARD

_ORDER = "eos_order"
_LAST = 2**63 - 1
_BESIDE_TOPIC = ("partition", "key", "value", "headers", "timestamp")


def sharded(frame: DataFrame, columns: OutputColumns, shards: int) -> DataFrame:
    """The rows of each shard in a task of its own, in the order of the frame's tasks, with end marks behind them.

    A task's number is its shard's. The marks (see `eos.spark.endmarks`) are rows without a hash.
    """
    rows = columns.select(frame).withColumns({HASH: _place(columns), DIGEST: _digest(columns)})
    numbered = rows.select(
        "*",
        F.pmod(F.col(HASH), F.lit(shards)).cast("int").alias(SHARD),
        F.monotonically_increasing_id().alias(_ORDER),
    )
    own = {SHARD: F.floor(F.col("id") / MARKS).cast("int"), _ORDER: F.lit(_LAST)}
    marks = frame.sparkSession.range(0, MARKS * shards, 1, 1).select(
        *(
            own.get(field.name, F.lit(None).cast(field.dataType)).alias(field.name)
            for field in numbered.schema.fields
        )
    )
    gathered = by_number(numbered.unionByName(marks), shards, SHARD)
    return gathered.sortWithinPartitions(_ORDER).drop(_ORDER)


def _place(columns: OutputColumns) -> Column:
    """The hash that divides rows into shards: of the key alone where there is one, so that its records keep their order."""
    names = set(columns.names)
    whose = ["topic"] if "topic" in names else []
    place = F.xxhash64(*whose, "value")
    if "partition" in names:
        place = F.when(F.isnotnull("partition"), F.xxhash64(*whose, "partition")).otherwise(place)
    if "key" in names:
        place = F.when(F.isnotnull("key"), F.xxhash64("key")).otherwise(place)
    return place


def _digest(columns: OutputColumns) -> Column:
    """The hash of all that a record is made of, so that one that came out otherwise is seen.

    xxhash64 passes over NULLs: a key without a value would have the hash of a value without a key. So it is also said
    which are NULL, and of headers too. A topic that is no column is the only output.
    """
    names = columns.names
    nulls = [F.isnull(name) if name in names else F.lit(True) for name in _BESIDE_TOPIC]
    whole = [F.col("topic") if "topic" in names else F.lit(columns.outputs[0])]
    whole += [F.col(name) for name in _BESIDE_TOPIC if name in names]
    if "headers" in names:
        nulls.append(F.transform("headers", lambda header: F.isnull(header["value"])))
    return F.xxhash64(*nulls, *whole)
