"""exactly_once_sink: what ``writeStream.foreachBatch`` calls to write each batch of a streaming query once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from pyspark.sql import DataFrame

from eos.errors import ConfigError, EosError, FencedError, OffsetGapError, RecordRefusedError, UsageError
from eos.events import LedgerRefreshed, Listener, guarded, ignore_event
from eos.job import checked_topics
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition
from eos.settings import Settings
from eos.spark.begun import BegunNote
from eos.spark.checkpoint import RunningQuery, running_query
from eos.spark.classic import refuse_sending, require_classic
from eos.spark.executor_check import require_fit_executor
from eos.spark.failures import OF_SPARK, InputGoneError, for_foreach_batch, from_spark
from eos.spark.input_logs import blamed
from eos.spark.ledger import BatchPlan, LedgerError
from eos.spark.ledger_driver import LedgerDriver
from eos.spark.ledger_entry import LedgerEntry
from eos.spark.ledger_store import LedgerStore
from eos.spark.origin import require_running_batch
from eos.spark.output import OutputColumns
from eos.spark.progress import Stopwatch, progress_of
from eos.spark.report import ShardResult
from eos.spark.session import warn_of_session
from eos.spark.steps import step
from eos.spark.stream_input import checked_input, planned_offsets, refuse_gap, running_input
from eos.spark.stream_write import write_batch

log = logging.getLogger("eos.spark")

PAST_DELETED = (
    "Fix: to go on behind what is gone, so that it is never processed, start once with skip_deleted=True of read_stream or "
    "start_stream (--skip-deleted of a submitted script), and then without it"
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
    entry in a ledger in Kafka (`eos.spark.ledger`). A batch that Spark runs again, after a crash, skips the shards
    that are written. A shard is decided by a row's content alone: the hash of its key, whatever its topic. So all
    records of a key are in one transaction of a batch, and keep the order that the rows of one task have before the
    sink, which for row-wise transforms is that of their input partition. Rows without a key go by their partition if
    they name one, else by their value.

    A batch is written by one call. What goes to several topics is one frame, whose column ``topic`` says where each row
    goes; or each part has a sink with a name of its own.

    What leads to the sink must be deterministic: the same input offsets must give the same rows. Spark's
    ``current_timestamp()`` is, before the sink: it is the batch's, kept in the checkpoint; ``rand``, ``uuid`` and a
    user's clock are not.

    Args:
        settings: how to reach the cluster, the transaction's limits, table ``[spark]``.
        name: of the sink; with the group it makes the transactional.ids and names the ledger. One query at a time.
        outputs: the topics that may be written. A new ledger stands on the first one's partition 0, and stays there: it is
            found on any of them.
        inputs: the topics that the query reads on the cluster that it writes to; ``[]`` if it reads elsewhere. Of these it is
            seen when a topic was deleted and created anew, or a log was truncated, and the query would go on from offsets
            that count in another log. Not given: it is not seen, and a warning says so.
        shards: transactions that a batch is divided into; ``spark.sink_shards`` if not given. A change takes effect
            with the first batch that is not begun.
        adopt: what a refusal said to pass; it decides for one batch of one query and has no effect afterwards.
        listener: called with each event (``eos.events``), on the driver.

    Raises:
        ConfigError: a setting, name or topic is wrong.
        UsageError: outputs is empty, or one string.
    """
    group = settings.group_for(name)
    count = settings.spark.sink_shards if shards is None else shards
    if count < 1:
        raise ConfigError(f"shards={count}: a batch is divided into at least 1")
    outputs = checked_topics("outputs", outputs)
    if isinstance(inputs, str) or set(inputs or ()) & set(outputs):
        raise UsageError("inputs is a list of topics, none of which is written to")
    store = LedgerStore(settings, name, group, outputs[0], tuple(inputs or ()))
    store.shard(count - 1)  # checks the names
    if inputs is None:
        log.warning(
            "%s: exactly_once_sink does not know the query's input, so a topic that is deleted and created anew is not "
            "seen. Fix: inputs=[…], the topics that it reads on this cluster; [] if there are none",
            name,
        )
    listener = guarded(listener)
    ledger = LedgerDriver(store, outputs, count, adopt, listener)
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
            ``description``, ``numOutputRows`` (records that this call wrote) and ``transactions`` (how many were
            ``committed``, ``empty``: without records, ``skipped``: written before).
    """

    def __init__(self, ledger: LedgerDriver, outputs: Sequence[str], listener: Listener) -> None:
        self._ledger = ledger
        self._outputs = outputs
        self._listener = listener
        self._checked = False
        self.lastProgress: dict[str, Any] | None = None  # spelt as Spark's own
        self.failure: EosError | None = None
        self._one_at_a_time = threading.Lock()
        self._idle: threading.Timer | None = None
        self._last: LedgerEntry | None = None  # what this sink's last batch left
        # the run and the batch of its last call that ended well
        self._finished: tuple[str, int] | None = None
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
            LedgerError: ledger and checkpoint do not belong together; the message says what to do.
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
                self._last = self._run(frame, batch, query).after
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

    def refresh(self) -> None:
        """Commit every entry again as it is: Kafka forgets offsets (7 days by default) that are not.

        The sink does so by itself while its process lives and ``input.recommit_idle_after_s`` pass without a batch.
        For queries that end when they have caught up (availableNow): call it after each run, since a run that finds
        nothing new has no batch. A ledger in the middle of a batch, or without entries, is left alone.

        Raises:
            LedgerChangedError: another driver has written the ledger meanwhile.
            EosError: the cluster did not answer, or what a commit met.
        """
        with self._one_at_a_time:
            self._ledger.refresh(self._last)

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
        watch = Stopwatch()
        plan = self._begun(batch, query)
        watch.lap("ledger")
        try:
            plan, marks = self._input(plan, query)
            watch.lap("input")
            results: list[ShardResult] = []
            if plan.entries or not plan.unchecked:
                with step(frame.sparkSession, f"batch {batch} of {name}", f"write {plan.shards} shards"):
                    results = write_batch(self._ledger, plan, frame, columns, marks, listener=self._listener)
            watch.lap("write")
        except RecordRefusedError as error:
            raise blamed(self._store.settings, self._outputs, error) from error
        except OffsetGapError as error:
            what = str(error).partition(" Fix:")[0]
            fix = PAST_DELETED if isinstance(error, InputGoneError) else _way_out(plan)
            raise OffsetGapError(f"{self._store}: {what} {fix}") from error
        self.lastProgress = progress_of(
            query=query.id,
            run=query.run,
            name=name,
            batch=batch,
            watch=watch,
            ends=marks,
            results=results,
            ledger=str(self._store),
        )
        return plan

    @property
    def _store(self) -> LedgerStore:
        return self._ledger.store

    def _check(self, frame: DataFrame) -> None:
        """The session, that the outputs exist, and an executor."""
        store = self._store
        warn_of_session(frame.sparkSession, store.settings)
        with store.reader(0, stable=False) as reader:
            reader.partitions_of(self._outputs, store.settings.open_timeout_s)
        require_fit_executor(frame.sparkSession, store.settings, self._outputs, store.app)

    def _input(self, plan: BatchPlan, query: RunningQuery) -> tuple[BatchPlan, OffsetVector]:
        """The plan with its input, and where that ends, in topics and logs of the batch before; unless a person accepts others."""
        topics = self._store.inputs
        if not topics:
            return plan, OffsetVector()
        running = running_input(query, plan.batch, topics)
        marked_with = plan.batch if 0 in plan.done else plan.batch - 1
        is_checked = plan.marks > 0 and marked_with >= 0 and not plan.unchecked
        marked_at = running.ends if 0 in plan.done else running.starts

        def read_marks() -> Mapping[Partition, Committed]:
            if not is_checked:
                return {}
            marks = self._store.marks(running.ends)
            refuse_gap(query.checkpoint, marked_with, marks, marked_at)
            return marks

        marks = checked_input(
            self._store.settings,
            self._store.group_of(0),
            running.ends,
            read_marks,
            planned_offsets(query.checkpoint, marked_with, topics) if is_checked else (),
        )
        return replace(plan, input=running.digest), marks

    def _begun(self, batch: int, query: RunningQuery) -> BatchPlan:
        """The plan of a batch; a sink's first one in this checkpoint is noted there before anything is written.

        That Spark has planned a batch does not tell whether it was begun: Spark plans before each call, and the call may
        have failed at once.
        """
        if batch and self._noted == query.id:
            return self._ledger.plan(batch, query.id)
        note = BegunNote(query.checkpoint, self._store.prefix, self._outputs)
        begun, beside = note.text(), note.rivals()
        if beside and not self._ledger.is_adopted(batch, query.id):
            raise _rivals(note, beside, BatchPlan(query.id, batch, 1))
        if batch:
            plan = self._ledger.plan(batch, query.id)
        elif begun is not None:
            plan = self._ledger.plan(batch, query.id, begun=f"{note}: {begun}")
        else:
            plan = self._ledger.plan(batch, query.id, begun=self._ledger.committed_before())
        if begun is None or beside or not note.has_outputs(begun):
            note.write(str(self._store), beside)
            others = note.rivals()  # of another driver, which has looked when this one did
            if others and begun is None:
                note.delete()
            if others:
                raise _rivals(note, others, plan)
        self._noted = query.id
        return plan

    def _keep(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = threading.Timer(
            self._store.settings.input.recommit_idle_after_s, self._refresh_when_idle
        )
        self._idle.daemon = True
        self._idle.start()

    def _refresh_when_idle(self) -> None:
        try:
            self.refresh()
        except EosError as error:
            self._listener(LedgerRefreshed(self._store.prefix, -1, str(error)))
            if isinstance(error, FencedError):
                return  # another driver goes on
        self._keep()


def _rivals(note: BegunNote, rivals: Mapping[str, frozenset[str]], plan: BatchPlan) -> LedgerError:
    named = "; ".join(
        f"the sink {prefix.partition('.')[0]!r} writes to {', '.join(sorted(topics))}"
        for prefix, topics in sorted(rivals.items())
    )
    return LedgerError(
        f"{note}: in this query's checkpoint {named} too. Under two names every row of a batch would be written there twice. Fix: "
        "the name that the sink had (it was renamed, or a second driver runs it under another name); or one sink for all rows of "
        "a batch. If both are wanted, each for rows of its own, or the other name is given up for good and everything before "
        f"batch {plan.batch} is written under it, pass once: adopt={plan.token!r}"
    )


def _way_out(plan: BatchPlan) -> str:
    return (
        "Fix: to process the new topic or log from its beginning, start with a new checkpoint and --start earliest (the "
        "ledger then says what to adopt). To go on from the checkpoint's offsets, so that records below them are never "
        f"processed, pass once: adopt={plan.token!r}"
    )
