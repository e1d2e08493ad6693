"""The sources of a query, held against its checkpoint before Spark plans a batch: none of them lacks a topic that it has read.

Spark knows a source by its place in the query. A topic that its place has no more it takes for deleted, and says so only behind the
plan of the next batch. That plan is in the checkpoint then, and fails with the topic and without.
"""

from __future__ import annotations

from itertools import chain

from pyspark.sql import DataFrame

from eos.errors import ConfigError
from eos.spark.session.checkpoint import Checkpoint
from eos.spark.session.jvm import analysed, kind_of, nodes
from eos.spark.stream.plans import planned_sources

_SOURCES = ("StreamingRelationV2", "StreamingRelation")


def refuse_left_out(frame: DataFrame, checkpoint: Checkpoint) -> None:
    """Refuse a query in which a source does not read what it has read in the last planned batch, or reads what another one has.

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
    if any(
        one.get("subscribe") is None or str(one.get("failOnDataLoss")).lower() == "false" for one in options
    ):
        return
    reads = [{topic.strip() for topic in one.get("subscribe").split(",")} for one in options]
    has_read = [{p.topic for p in one} for one in planned_sources(checkpoint, planned[-1])]
    if len(reads) != len(has_read):  # one that is read at two places of the query may be one source
        reads, has_read = [set(chain(*reads))], [set(chain(*has_read))]
    for place, (now, before) in enumerate(zip(reads, has_read, strict=True), 1):
        others_now, others_before = (set(chain(*one[: place - 1], *one[place:])) for one in (reads, has_read))
        if moved := sorted((before - now) & others_now | (now - before) & others_before):
            raise ConfigError(
                f"source {place} of the query {'has read' if moved[0] in before else 'reads'} {', '.join(moved)}, as another source does; its "
                f"checkpoint {checkpoint} says otherwise. Spark knows a source by its place in the query, and would begin anew there. Nothing "
                "was read or written. Fix: the same topics as before in each source, and the sources in the same order"
            )
        if left_out := ", ".join(sorted(before - now)):
            first = ""
            if planned[-1] not in checkpoint.batches("commits"):
                first = f"start with it until batch {planned[-1]} is written, which was planned with it, and then "
            raise ConfigError(
                f"the query has read {left_out}, as its checkpoint {checkpoint} says, and does not read that any more. Spark would take it "
                "for deleted. Nothing was read or written. Fix: name the same topics as before. To read it no more, so that what is left "
                f"of it is never processed, {first}start once with --skip-deleted (in code: skip_deleted=True of read_stream or start_stream)"
            )
