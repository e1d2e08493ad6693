"""The rows of a streaming batch, divided into shards by what they are, with a digest of all that is written."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from eos.spark.endmarks import END, mark_by_shuffle
from eos.spark.output import OutputColumns
from eos.spark.source import SHARD

HASH, DIGEST = "eos_hash", "eos_digest"

_BESIDE_TOPIC = ("partition", "key", "value", "headers", "timestamp")


def sharded(frame: DataFrame, columns: OutputColumns, shards: int) -> DataFrame:
    """The rows of each shard in a task of its own, in the order of the frame's tasks, with end marks behind them."""
    rows = columns.select(frame).withColumns({HASH: _place(columns), DIGEST: _digest(columns)})
    numbered = rows.withColumns({SHARD: F.pmod(F.col(HASH), F.lit(shards)).cast("int"), END: F.lit(False)})
    return mark_by_shuffle(frame.sparkSession, numbered, range(shards), tasks=shards)


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
