"""exactly_once_sink: what ``writeStream.foreachBatch`` calls to write each batch of a streaming query once."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from threading import Lock, Timer
from typing import Any, NoReturn

from pyspark.sql import DataFrame, SparkSession

from eos.errors import ConfigError, EosError, FencedError, OffsetGapError, RecordRefusedError, UsageError
from eos.events import Listener, guarded, ignore_event
from eos.job import checked_topics
from eos.settings import Settings
from eos.spark.analysis.lineage import require_running_batch
from eos.spark.events import LedgerRefreshed
from eos.spark.session.checkpoint import Checkpoint, RunningQuery, running_query
from eos.spark.session.checks import refuse_sending, require_classic, warn_of_session
from eos.spark.session.session import step
from eos.spark.session.thrown import OF_SPARK
from eos.spark.source import InputLogs, blamed
from eos.spark.stream.begun import found_at_a_start, plan_noted
from eos.spark.stream.commit_log import CommitLog
from eos.spark.stream.damaged import named
from eos.spark.stream.division import BatchRows
from eos.spark.stream.log_driver import CommitLogDriver
from eos.spark.stream.log_entry import Division, LogEntry
from eos.spark.stream.log_rules import BatchPlan
from eos.spark.stream.marks import input_of, refuse_lost_marks, refuse_unread, way_out
from eos.spark.stream.micro_batch import Progress, write_batch
from eos.spark.write.executor_check import require_fit_executor
from eos.spark.write.failures import InputGoneError, for_foreach_batch, from_spark, is_of_no_topic
from eos.spark.write.output import OutputColumns
from eos.spark.write.writer import ShardResult

log = logging.getLogger("eos.spark")

PAST_DELETED = (
    "Fix: to go on behind what is gone, so that it is never processed, start once with --skip-deleted "
    "(in code: skip_deleted=True of read_stream or start_stream), and then without it; where another refusal of this start was "
    "answered with --adopt, pass that too"
)


def exactly_once_sink(
    settings: Settings,
    *,
    name: str,
    outputs: Sequence[str],
    inputs: Sequence[str] | None = None,
    shards: int | None = None,
    adopt: str | None = None,
    listener: Listener = ignore_event,
) -> ExactlyOnceSink:
    """A function for ``writeStream.foreachBatch`` that makes each batch's records visible exactly once.

    >>> sink = exactly_once_sink(settings, name="refunds-stream", outputs=["refunds-emitted"])  # doctest: +SKIP
    >>> frame.writeStream.foreachBatch(sink).option("checkpointLocation", "…").start()          # doctest: +SKIP

    The rows of a batch are divided into shards; each is written in one transaction of its own together with its
    entry in a commit log in Kafka (`eos.spark.stream.log_rules`). A batch that Spark runs again, after a crash, skips the shards
    that are written.

    If every row is still in the task that has read it from Kafka, and the input has at most ``shards`` partitions, each of these is
    a shard, which that task writes in the input's order (`eos.spark.analysis.query_tasks`). If not, Spark shuffles the rows, and
    a shard is decided by a row's content alone: the hash of its key, whatever its topic. Then all records of a key are in one
    transaction of a batch, and keep the order that the rows of one task have before the sink. Rows without a key go by
    their partition if they name one, else by their value.

    A batch is written by one call. What goes to several topics is one frame, whose column ``topic`` says where each row
    goes; or each part has a sink with a name of its own.

    What leads to the sink must be deterministic: the same input offsets must give the same rows. Spark's
    ``current_timestamp()`` is, before the sink: it is the batch's, kept in the checkpoint; ``rand``, ``uuid`` and a
    user's clock are not.

    Args:
        settings: how to reach the cluster, the transaction's limits, table ``[spark]``.
        name: of the sink; with the group it makes the transactional.ids and names the ledger. One query at a time.
        outputs: the topics that may be written. A new commit log stands on the first one's partition 0, and stays there: it is
            found on any of them.
        inputs: the topics that the query reads on the cluster that it writes to; ``[]`` if it reads elsewhere. Of these it is
            seen when a topic was deleted and created anew, or a log was truncated, and the query would go on from offsets
            that count in another log. Not given: it is not seen, and a warning says so.
        shards: transactions that a batch is divided into, at most; ``spark.sink_shards`` if not given. A change takes effect
            with the first batch that is not begun.
        adopt: what a refusal said to pass; it decides for one batch of one query and has no effect afterwards.
        listener: called with each event (``eos.events``), on the driver.

    Raises:
        ConfigError: a setting, name or topic is wrong.
        UsageError: outputs is empty, or one string, or a topic is an input too.
    """
    group = settings.group_for(name)
    count = settings.spark.sink_shards if shards is None else shards
    if count < 1:
        raise ConfigError(f"shards={count}: a batch is divided into at least 1")
    outputs = checked_topics("outputs", outputs)
    if isinstance(inputs, str):
        raise UsageError(f"inputs is a list of topics, not one string: [{inputs!r}]")
    # Then the ledger stands on no input either, whose partition 0 has a mark in the same place.
    if both := sorted(set(inputs or ()) & set(outputs)):
        raise UsageError(
            f"{both} are inputs and outputs of this sink: it would read again what it writes. Fix: a topic of its own for its output"
        )
    store = CommitLog(settings, name, group, outputs[0], tuple(inputs or ()))
    store.shard(count - 1)  # checks the names
    if inputs is None:
        log.warning(
            "%s: exactly_once_sink does not know the query's input, so a topic that is deleted and created anew is not "
            "seen. Fix: inputs=[…], the topics that it reads on this cluster; [] if there are none",
            name,
        )
    listener = guarded(listener)
    ledger = CommitLogDriver(store, outputs, count, adopt, listener)
    return ExactlyOnceSink(ledger, outputs, listener)


class ExactlyOnceSink:
    """Writes batches of one streaming query; made by `exactly_once_sink`.

    Attributes:
        failure: what the last call failed of; None if it ended well. Spark keeps only its text, and nothing of it where a
            foreachBatch function catches it.
        lastProgress: the last batch that this sink has written, in the form of Spark's StreamingQueryProgress; None before
            the first one. Its keys: ``id`` and ``runId`` of the query, ``name`` of the sink, ``timestamp`` (ISO 8601, UTC)
            when the batch came to the sink, ``batchId``, ``durationMs`` (milliseconds of the steps ``ledger``, ``input``,
            ``write``, and of all as ``triggerExecution``), ``sources`` (per input topic that the sink knows its
            ``description`` and ``endOffset``: per partition the offset behind the batch), and ``sink`` with its
            ``description``, ``numOutputRows`` (records that this call wrote), ``transactions`` (how many were
            ``committed``, ``empty``: without records, ``skipped``: written before) and ``placement`` (where the rows were
            written, as a `Placement` in words).
    """

    def __init__(self, log: CommitLogDriver, outputs: Sequence[str], listener: Listener) -> None:
        self._log = log
        self._outputs = outputs
        self._listener = listener
        self._checked = False
        self.lastProgress: dict[str, Any] | None = None  # spelt as Spark's own
        self.failure: EosError | None = None
        self._one_at_a_time = Lock()
        self._idle: Timer | None = None
        self._last: LogEntry | None = None  # what this sink's last batch left
        # the run and the batch of its last call that ended well
        self._finished: tuple[str, int] | None = None
        self._gathered = False  # `BatchRows.gathered`, since a transaction has expired
        self._noted = ""  # the query in whose checkpoint this sink is the only one of its topics

    def __reduce__(self) -> NoReturn:
        refuse_sending("an ExactlyOnceSink")

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Write a batch, or what is left of it.

        Args:
            frame: rows with Spark's columns for Kafka: ``topic`` (not needed with one output), ``key``, ``value``,
                ``headers``, ``partition``, and ``timestamp``. It is made of the DataFrame that foreachBatch gives its
                function, and of tables; to write nothing of a batch, it is ``frame.limit(0)`` of that one.
            batch: its number.

        Raises:
            LedgerError: commit log and checkpoint do not belong together; the message says what to do.
            LedgerChangedError: another driver works under the same name.
            OffsetGapError: input was deleted before it was read, or its topic or log is another one; says what to do.
            UsageError: the rows' columns are wrong, the frame is not made of the batch that runs, or also of another one,
                this is not called by foreachBatch, or it is the second call for a batch.
            EosError: what kept the driver, or a task, from its part.
        """
        try:
            require_classic(frame)
            query = running_query(frame)
            with self._one_at_a_time:
                require_running_batch(frame, batch, query)
                self._require_first_call(query, batch)
                self._last = self._run(frame, batch, query).leaves
                self._finished = (query.run, batch)
                self.failure = None
                self._keep()
        except EosError as error:
            self.failure = error
        except OF_SPARK as error:
            self.failure = from_spark(error)
            self.failure.__cause__ = error
        if self.failure is not None:
            raise for_foreach_batch(self.failure)

    def starts(self, checkpoint: str, *, spark: SparkSession | None = None) -> None:
        """Refuse a query that cannot go on from its checkpoint, before Spark plans a batch; keep its entries from now on.

        `write_stream` and `eos spark run` call it. Where a foreachBatch function of one's own calls the sink, call it before the
        query is started: while there is nothing new, no batch comes that would show what is wrong, and the input counts as processed.

        Args:
            checkpoint: where the query keeps its place.
            spark: the session of the query; the active one if not given.

        Raises:
            LedgerError: commit log and checkpoint do not belong together.
            OffsetGapError: an input topic was deleted and created anew since the last batch.
            EosError: the cluster did not answer, or the checkpoint cannot be reached.
        """
        place = Checkpoint(spark or SparkSession.active(), checkpoint)
        self.rests()
        with self._one_at_a_time:
            try:
                self._last = found_at_a_start(self._log, self._outputs, place)
                if self._last is not None:
                    refuse_lost_marks(self._store, self._last, place, self._log.adopt)
                    self._keep()
            except EosError as error:
                raise named(error, place) from error

    def rests(self) -> None:
        """The query has ended: its entries are not kept any more. `StreamRun.wait` calls it."""
        with self._one_at_a_time:  # behind a refresh, which would meet that of the next start
            if self._idle is not None:
                self._idle.cancel()
            self._idle = None

    def refresh(self) -> None:
        """Commit every entry again as it is: Kafka forgets offsets (7 days by default) that are not.

        The sink does so by itself while ``input.recommit_idle_after_s`` pass without a batch, until `rests`, or its process ends.
        For queries that end when they have caught up (availableNow): call it after each run, since a run that finds
        nothing new has no batch. A commit log in the middle of a batch, or without entries, is left alone.

        It also asks for the input's identity, as each batch does: Spark has none for a topic that was created anew and ends where
        the former one did.

        Raises:
            LedgerChangedError: another driver has written the commit log meanwhile.
            OffsetGapError: an input topic was deleted and created anew since the last batch.
            EosError: the cluster did not answer, or what a commit met.
        """
        with self._one_at_a_time:
            self._log.refresh(self._last, failed=self.failure is not None)
            refuse_unread(self._store, self._log.adopt)

    # --- inside ------------------------------------------------------------------------------------

    def _require_first_call(self, query: RunningQuery, batch: int) -> None:
        """A replay is another run of the query, and a call that failed does not count."""
        if self._finished == (query.run, batch):
            raise UsageError(
                f"this is the second call of this sink for batch {batch}: the rows of the first one are written, and none "
                "of this one. Fix: one call with all rows (a.unionByName(b)), whose column 'topic' says where each goes; "
                "or for each part a sink with a name and topics of its own. The second way also writes what this batch lacks, "
                "because a sink under a new name has not written it yet"
            )

    def _run(self, frame: DataFrame, batch: int, query: RunningQuery) -> BatchPlan:
        name, columns = self._store.app, OutputColumns.of(frame, self._outputs)
        if not self._checked:
            self._check(frame)
            self._checked = True
        progress = Progress(query, name, batch)
        rows = BatchRows(frame, columns, query.execution, self._log.shards, gathered=self._gathered)
        plan = replace(self._plan(batch, query, rows.wanted), input=rows.digest)
        progress.lap("ledger")
        try:
            plan, marks = input_of(self._store, plan, query)
            progress.lap("input")
            results: list[ShardResult] = []
            if plan.entries or not plan.unchecked:
                what = f"write {plan.shards} shards, {rows.placement(plan.division)}"
                with step(frame.sparkSession, f"batch {batch} of {name}", what):
                    results = write_batch(self._log, plan, rows, columns, marks, listener=self._listener)
            progress.lap("write")
        except RecordRefusedError as error:
            raise blamed(self._store.settings, self._outputs, error) from error
        except OffsetGapError as error:
            what = str(error).partition(" Fix:")[0]
            fix = PAST_DELETED if isinstance(error, InputGoneError) else way_out(plan, error)
            raise OffsetGapError(f"{self._store}: {what} {fix}") from error
        self.lastProgress = progress.written(marks, results, self._store, rows.placement(plan.division))
        self._gathered = rows.gathered
        return plan

    @property
    def _store(self) -> CommitLog:
        return self._log.store

    def _check(self, frame: DataFrame) -> None:
        """The session, that the outputs exist, and an executor."""
        store = self._store
        warn_of_session(frame.sparkSession, store.settings)
        InputLogs(store.settings).partitions(*self._outputs)
        require_fit_executor(frame.sparkSession, store.settings, self._outputs, store.app)

    def _plan(self, batch: int, query: RunningQuery, wanted: Division) -> BatchPlan:
        if batch and self._noted == query.id:
            return self._log.plan(batch, query.id, query.run, wanted)
        plan = plan_noted(self._log, self._outputs, batch, query, wanted)
        self._noted = query.id
        return plan

    def _keep(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        idle_s = self._store.settings.input.recommit_idle_after_s
        self._idle = Timer(idle_s, self._refresh_when_idle)
        self._idle.daemon = True
        self._idle.start()

    def _refresh_when_idle(self) -> None:
        timer = self._idle
        try:
            self.refresh()
        except EosError as error:
            self._listener(LedgerRefreshed(self._store.prefix, -1, str(error)))
            if isinstance(error, FencedError):
                return  # another driver goes on
        except RuntimeError as error:
            if "interpreter shutdown" not in str(error):
                raise
            return  # the process ends, and starts no thread any more
        if timer is not None and self._idle is timer:
            self._keep()

    def meaning_of(self, error: Exception) -> EosError:
        """What Spark failed of before it called the sink; of an input that was deleted since, the error names it."""
        meaning, store = from_spark(error), self._store
        return blamed(store.settings, store.inputs, meaning) if is_of_no_topic(error) else meaning
