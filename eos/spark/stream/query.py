"""write_stream: a streaming DataFrame, its exactly-once sink and its checkpoint as one query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from eos.errors import EosError, OffsetGapError, UsageError
from eos.events import Listener, ignore_event
from eos.settings import Settings
from eos.spark.session.checkpoint import Checkpoint
from eos.spark.session.checks import require_classic
from eos.spark.session.thrown import OF_SPARK
from eos.spark.stream.damaged import named
from eos.spark.stream.sink import PAST_DELETED, ExactlyOnceSink, exactly_once_sink
from eos.spark.stream.sources import refuse_left_out
from eos.spark.write.failures import from_spark, input_gone


@dataclass(frozen=True)
class StreamRun:
    """A query that runs, and its sink."""

    query: StreamingQuery
    sink: ExactlyOnceSink
    checkpoint: Checkpoint | None = None  # named in errors

    def wait(self) -> None:
        """Wait until the query ends: when it has caught up, was stopped, or failed.

        Raises:
            EosError: what it failed of; also what the sink refused where a function for foreachBatch has caught that: Spark then
                counts the batch as done.
        """
        try:
            self.query.awaitTermination()
        except OF_SPARK as error:
            self.sink.rests()
            if self.sink.failure is not None:
                raise self.sink.failure from error
            # Found while the batch was planned, before the sink is called.
            if gone := input_gone(error):
                raise OffsetGapError(f"{gone} {PAST_DELETED}") from error
            raise named(self.sink.meaning_of(error), self.checkpoint) from error
        self.sink.rests()
        if self.sink.failure is not None:
            raise self.sink.failure


class StreamWriter:
    """A streaming DataFrame and its sink, before they are started; made by `write_stream`.

    Attributes:
        sink: the `ExactlyOnceSink` that each batch is given to.
    """

    def __init__(self, frame: DataFrame, sink: ExactlyOnceSink, name: str) -> None:
        self._frame = frame
        self._name = name
        self.sink = sink

    def start(
        self, checkpoint: str, *, available_now: bool = False, processing_time: str | None = None
    ) -> StreamRun:
        """Start the query, from its checkpoint if there is one.

        It is ``frame.writeStream.queryName(name).foreachBatch(sink).option("checkpointLocation", checkpoint).start()``.

        Args:
            checkpoint: where the query keeps its place; one directory per query, never shared, copied or restored, and the
                one that `read_stream` was given.
            available_now: end when all input that is there now is processed.
            processing_time: begin a batch so often, ``"10 seconds"`` for example; each as soon as the one before has ended
                if not given.

        Raises:
            UsageError: both are given, or Spark refuses the query.
            LedgerError, OffsetGapError: as `ExactlyOnceSink`, where that shows before a batch.
            ConfigError: it reads a topic no more that its last batch has read.
            EosError: what else kept Spark from starting it.
        """
        if available_now and processing_time is not None:
            raise UsageError(
                "available_now=True and processing_time: a query ends, or goes on so often. Fix: one of them"
            )
        writer = self._frame.writeStream.foreachBatch(self.sink).queryName(self._name)
        writer = writer.option("checkpointLocation", checkpoint)
        if available_now:
            writer = writer.trigger(availableNow=True)
        elif processing_time is not None:
            writer = writer.trigger(processingTime=processing_time)
        place = Checkpoint(self._frame.sparkSession, checkpoint)
        self.sink.starts(checkpoint, spark=self._frame.sparkSession)
        try:
            refuse_left_out(self._frame, place)
            return StreamRun(writer.start(), self.sink, place)
        except (EosError, *OF_SPARK) as error:
            self.sink.rests()
            raise named(error if isinstance(error, EosError) else from_spark(error), place) from error


def write_stream(
    frame: DataFrame,
    settings: Settings,
    *,
    name: str,
    outputs: Sequence[str],
    inputs: Sequence[str] | None = None,
    shards: int | None = None,
    adopt: str | None = None,
    listener: Listener = ignore_event,
) -> StreamWriter:
    """A streaming DataFrame to be written exactly once; ``.start(checkpoint)`` starts the query.

    >>> run = write_stream(frame, settings, name="copies", inputs=["in"], outputs=["out"]).start("…")  # doctest: +SKIP
    >>> run.wait()                                                                                     # doctest: +SKIP

    It is the short way for a query that writes its batches whole: the sink is that of `exactly_once_sink`, whose arguments
    these are; ``name`` is the query's in Spark's UI too. The rows of ``frame``, made of `read_stream`, have the columns of
    :mod:`eos.spark.write.output`. A function of your own for ``foreachBatch`` (a fan-out, for example) calls such a sink itself.

    Raises:
        ConfigError: a setting, name or topic is wrong, or the frame is one of Spark Connect.
        UsageError: the frame is no streaming one, or outputs is empty, or one string.
    """
    require_classic(frame)
    if not frame.isStreaming:
        raise UsageError(
            "write_stream was given a DataFrame that is no stream. Fix: one that is made of read_stream(…); a batch is written by "
            "ExactlyOnceBatch"
        )
    sink = exactly_once_sink(
        settings, name=name, outputs=outputs, inputs=inputs, shards=shards, adopt=adopt, listener=listener
    )
    return StreamWriter(frame, sink, name)
