"""An input that a query has read and reads no more: refused before Spark plans a batch without it.

Spark takes such a topic for a deleted one. It says so only behind the plan of the first batch without it, and names no way
back: that batch is in the checkpoint then, and fails with and without the topic.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from eos.errors import ConfigError
from eos.spark.session.checkpoint import Checkpoint
from eos.spark.session.jvm import analysed, kind_of, nodes
from eos.spark.stream.marks import planned_offsets

_SOURCES = ("StreamingRelationV2", "StreamingRelation")


def refuse_left_out(frame: DataFrame, checkpoint: Checkpoint) -> None:
    """Refuse a query that does not read a topic any more which its last planned batch has read.

    A query of other sources too is left alone: only its own source knows what a checkpoint's line of it means.

    Args:
        frame: the query's, before it is started.
        checkpoint: its place.

    Raises:
        ConfigError: names the topics.
        UnreadableError: the plan of the last batch is not whole.
    """
    planned = checkpoint.batches("offsets")
    sources = [node for node in nodes(analysed(frame)) if kind_of(node) in _SOURCES]
    if not planned or any(kind_of(one) != _SOURCES[0] or one.sourceName() != "kafka" for one in sources):
        return
    options = [one.extraOptions() for one in sources]
    if any(one.get("subscribe") is None or one.get("failOnDataLoss") == "false" for one in options):
        return
    named = {topic.strip() for one in options for topic in one.get("subscribe").split(",")}
    if left_out := sorted(
        {partition.topic for partition in planned_offsets(checkpoint, planned[-1])} - named
    ):
        topics = ", ".join(left_out)
        raise ConfigError(
            f"the query has read {topics}, as its checkpoint {checkpoint} says, and does not read that any more. Spark would take it for "
            f"deleted. Nothing was read or written. Fix: name {topics} among the inputs again. To read it no more, so that what is left "
            "of it is never processed, start once with --skip-deleted (in code: skip_deleted=True of read_stream or start_stream)"
        )
