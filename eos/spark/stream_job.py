"""StreamJob: a Structured Streaming query that a user declares, and how it is run to its end."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from typing import NoReturn

from pyspark.sql import SparkSession

from eos.events import BatchResumed, Event, LedgerSharded, Listener, TransactionCommitted, ignore_event
from eos.job import Job
from eos.settings import Settings
from eos.settings.binding import own_settings
from eos.spark.declared import Declared
from eos.spark.script import parser, run_submitted
from eos.spark.source import read_stream
from eos.spark.stream_writer import StreamRun, write_stream

log = logging.getLogger("eos.spark")


class StreamJob(Declared[Settings]):
    """A Structured Streaming query: input topics, output topics, and a deterministic transform of streaming DataFrames.

    Args:
        name: letters, digits, '_' and '-'; the app part of every transactional.id, and the default group.
        inputs: the topics that are read, from a checkpoint on.
        outputs: every topic that the transform writes to; a new ledger stands on the first one's partition 0.
        transform: from Spark's Kafka columns to the output columns, see `exactly_once_sink`.
        transform_factory: is called once per start with the settings, and returns the ``transform``. Exactly one of the two
            is given.
        settings: a pydantic model of the job's own settings (table ``[job]``), for a factory.

    Raises:
        UsageError: the declaration contradicts itself.
    """

    @classmethod
    def applying(cls, job: Job, *, name: str) -> StreamJob:
        """A loop's job as a query: its transform, applied to each record, and its own settings.

        Args:
            job: what `eos run` runs.
            name: of the query; not the loop's, because both may run, each under its group.
        """
        return cls._applying(job, name, lambda settings: settings)


def start_stream(
    job: StreamJob,
    spark: SparkSession,
    settings: Settings,
    *,
    checkpoint: str,
    available_now: bool = False,
    max_offsets_per_batch: int | None = None,
    adopt: str | None = None,
    skip_deleted: bool = False,
    listener: Listener = ignore_event,
) -> StreamRun:
    """Start a job's query, from its checkpoint if there is one.

    Args:
        job: what to run.
        spark: the session.
        settings: how to reach the cluster, where to start for the first time, table ``[spark]``.
        checkpoint: where the query keeps its place; one directory per query, never shared, copied or restored.
        available_now: end when all input that is there now is processed.
        max_offsets_per_batch: see `read_stream`.
        adopt: see `exactly_once_sink`.
        skip_deleted: see `read_stream`.
        listener: called with each event (``eos.events``), on the driver.

    Raises:
        ConfigError: a setting is wrong, nothing says where to start, or the session has no Kafka connector. What else
            is wrong with the session comes from `StreamRun.wait`.
    """
    own_settings(job, settings)
    records = read_stream(
        spark,
        settings,
        job.inputs,
        checkpoint=checkpoint,
        max_offsets_per_batch=max_offsets_per_batch,
        skip_deleted=skip_deleted,
    )
    writer = write_stream(
        job.transformed(records, settings),
        settings,
        name=job.name,
        inputs=job.inputs,
        outputs=job.outputs,
        adopt=adopt,
        listener=listener,
    )
    return writer.start(checkpoint, available_now=available_now)


def main(job: StreamJob, arguments: Sequence[str] | None = None) -> NoReturn:
    """The body of a script for ``spark-submit``: run the query until it ends, and exit with the codes of `eos run`.

    Raises:
        SystemExit: always.
    """
    options = _parsed(job, arguments)

    def work(spark: SparkSession, settings: Settings) -> None:
        run = start_stream(
            job,
            spark,
            settings,
            checkpoint=options.checkpoint,
            available_now=options.available_now,
            max_offsets_per_batch=options.max_offsets_per_batch,
            adopt=options.adopt,
            skip_deleted=options.skip_deleted,
            listener=_logged,
        )
        run.wait()
        run.sink.refresh()

    run_submitted(job.name, lambda: Settings.load(options.config, {"input.start": options.start}), work)


def _parsed(job: StreamJob, arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser(
        f"Run {job.name}: each record's outputs exactly once.",
        "a query begins whose checkpoint has no batch yet",
    )
    options.add_argument("--checkpoint", required=True, metavar="DIR", help="where the query keeps its place")
    options.add_argument(
        "--available-now", action="store_true", help="end when all present input is processed"
    )
    options.add_argument("--max-offsets-per-batch", type=int, metavar="N")
    options.add_argument("--adopt", metavar="TOKEN", help="once: what a refusal said to pass")
    options.add_argument(
        "--skip-deleted",
        action="store_true",
        help="once: go on behind input that was deleted before it was read",
    )
    return options.parse_args(arguments)


def _logged(event: Event) -> None:
    """The lines that a submitted query writes; a listener of one's own has more."""
    match event:
        case TransactionCommitted():
            log.info("committed: %s, %d records, %.3f s", event.shard, event.records_out, event.seconds)
        case BatchResumed():
            log.warning("batch %d resumed: shards %s are written", event.batch, list(event.written))
        case LedgerSharded():
            log.warning(
                "ledger begins with batch %d: %d shards (were %d)", event.batch, event.shards, event.was
            )
