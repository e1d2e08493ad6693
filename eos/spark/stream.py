"""exactly_once_sink: what ``writeStream.foreachBatch`` calls to write each batch of a streaming query once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from eos.errors import AbortableError, ConfigError, EosError, FencedError, ReopenError, UsageError
from eos.events import BatchResumed, LedgerDealt, LedgerRefreshed, Listener, TransactionCommitted, nobody
from eos.kafka.consumer import Committed
from eos.settings import Settings
from eos.spark.endmarks import MARKS
from eos.spark.failures import from_spark
from eos.spark.ledger import BatchPlan, LedgerChangedError, LedgerEntry, decide, different_content, reach
from eos.spark.ledger_store import AT_ONCE, LedgerStore, entries_of
from eos.spark.output import OutputColumns
from eos.spark.session import warn_of_session
from eos.spark.sink_task import HASH, SHARD, Outcome, ShardResult, SinkTask

_ORDER = "eos_order"
# A local property of the thread that runs a query, which calls foreachBatch (StreamExecution.QUERY_ID_KEY). The id
# is made with the checkpoint and kept in it.
_QUERY_ID = "sql.streaming.queryId"
_LAST = 2**63 - 1
_DEALS = 3


def exactly_once_sink(
    settings: Settings,
    *,
    name: str,
    outputs: Sequence[str],
    shards: int | None = None,
    adopt: str | None = None,
    listener: Listener = nobody,
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

    What leads to the sink must be deterministic: the same input offsets must give the same rows. Spark's
    ``current_timestamp()`` is, before the sink: it is the batch's, kept in the checkpoint; ``rand``, ``uuid`` and a
    user's clock are not.

    Args:
        settings: how to reach the cluster, the transaction's limits, table ``[spark]``.
        name: of the sink; with the group it makes the transactional.ids and names the ledger. One query at a time.
        outputs: the topics that may be written; the ledger stands on the first one's partition 0.
        shards: transactions that a batch is divided into; ``spark.sink_shards`` if not given. A change takes effect
            with the first batch that is not begun.
        adopt: what a refusal said to pass; it decides for one batch of one query and has no effect afterwards.
        listener: told what happens, on the driver.

    Raises:
        ConfigError: a setting, name or topic is wrong.
        UsageError: outputs is empty, or one string.
    """
    group = settings.group_for(name)
    count = settings.spark.sink_shards if shards is None else shards
    if count < 1:
        raise ConfigError(f"shards={count}: a batch is divided into at least 1")
    if isinstance(outputs, str) or not outputs:
        raise UsageError("outputs is a list of at least one topic")
    store = LedgerStore(settings, name, group, outputs[0])
    store.shard(count - 1)  # checks the names
    return ExactlyOnceSink(store, tuple(outputs), count, adopt, listener)


class ExactlyOnceSink:
    """Writes batches of one streaming query; made by `exactly_once_sink`.

    Attributes:
        failure: what the last batch that failed failed of. Spark keeps only its text.
    """

    def __init__(
        self, store: LedgerStore, outputs: Sequence[str], shards: int, adopt: str | None, listener: Listener
    ) -> None:
        self._store = store
        self._outputs = outputs
        self._shards = shards
        self._adopt = adopt
        self._listener = listener
        self._checked = False
        self.failure: EosError | None = None
        self._one_at_a_time = threading.Lock()
        self._idle: threading.Timer | None = None
        self._last: LedgerEntry | None = None  # what this sink's last batch left

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Write a batch, or what is left of it.

        Args:
            frame: rows with Spark's columns for Kafka: ``topic`` (not needed with one output), ``key``, ``value``,
                ``headers``, ``partition``, and ``timestamp``.
            batch: its number.

        Raises:
            LedgerError: ledger and checkpoint do not belong together; the message says what to do.
            LedgerChangedError: another driver works under the same name.
            UsageError: the rows' columns are wrong, or this is not called by foreachBatch.
            EosError: what kept the driver from its part; a task's errors come as Spark's.
        """
        try:
            with self._one_at_a_time:
                self._last = self._run(frame, batch).after
                self._keep()
        except EosError as error:
            self.failure = error
            raise

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
            stored = self._read()
            entries = entries_of(stored, self._store)
            first = entries.get(0)
            if self._last is not None and not self._last.is_said_by(first):
                raise LedgerChangedError(f"{self._store}: another driver has gone on from {self._last}")
            if first is None or first.was:
                return
            ours = {k: entry for k, entry in entries.items() if k < first.shards}
            if any(not first.is_said_by(entry) for entry in ours.values()):
                return
            with ThreadPoolExecutor(AT_ONCE) as pool:
                list(pool.map(lambda k: self._store.replace(k, stored[k], ours[k]), ours))
            self._listener(LedgerRefreshed(self._store.prefix, first.next_batch))

    # --- inside ------------------------------------------------------------------------------------

    def _run(self, frame: DataFrame, batch: int) -> BatchPlan:
        query = _query_of(frame)
        columns = OutputColumns.of(frame, self._outputs)
        if not self._checked:
            warn_of_session(frame.sparkSession, self._store.settings)
            self._require_topics()
            self._checked = True
        plan = self._plan(batch, query)
        if plan.entries or not plan.unchecked:
            self._write(frame, columns, plan)
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

    def _require_topics(self) -> None:
        with self._store.reader(0, stable=False) as reader:
            reader.partitions_of(self._outputs, self._store.settings.open_deadline_s)

    def _plan(self, batch: int, query: str) -> BatchPlan:
        """Read the ledger once and decide; deal it where that is the first thing to do."""
        problem: EosError | None = None
        for _ in range(_DEALS):
            stored = self._read()
            entries = entries_of(stored, self._store)
            plan = decide(batch, query, self._shards, entries, where=str(self._store), adopt=self._adopt)
            if not plan.was:
                if plan.done:
                    self._listener(BatchResumed(self._store.prefix, batch, sorted(plan.done), plan.shards))
                return plan
            try:
                self._store.deal(plan, stored)
            except (FencedError, AbortableError, ReopenError) as error:
                problem = error  # of another driver, or of a commit: what is stored now tells
                continue
            self._listener(
                LedgerDealt(
                    self._store.prefix,
                    batch,
                    query,
                    plan.shards,
                    plan.was if entries else 0,
                    adopted=plan.unchecked,
                )
            )
        raise LedgerChangedError(
            f"{self._store}: no agreement on {self._shards} shards in {_DEALS} tries; the last one: {problem}. Is "
            "another driver at work under this name with another number? Fix: stop one of them"
        ) from problem

    def _read(self) -> dict[int, Committed]:
        stored = self._store.read(range(self._shards))
        needed = reach(entries_of(stored, self._store).get(0), self._shards)
        return stored | self._store.read(range(self._shards, needed))

    def _write(self, frame: DataFrame, columns: OutputColumns, plan: BatchPlan) -> None:
        tasks = _sharded(frame, columns, plan.shards).mapInArrow(
            SinkTask(self._store, plan, columns), ShardResult.SCHEMA
        )
        try:
            found = tasks.collect()
        except PySparkException as error:
            raise from_spark(error) from error
        results = {result.shard: result for result in map(ShardResult.of_row, found)}
        for result in results.values():
            if result.outcome is Outcome.WRITTEN:
                self._tell(result, plan)
        refused = [result.message for result in results.values() if result.outcome is Outcome.REFUSED]
        if refused:
            raise LedgerChangedError("; ".join(refused))
        differing = {
            shard: (result.written, result.computed)
            for shard, result in results.items()
            if result.written != result.computed
        }
        if differing and not plan.unchecked:
            raise different_content(plan, differing)
        # Spark counts the batch as done when this returns, so it is looked at once more, from outside.
        entries = entries_of(self._store.read(range(plan.shards)), self._store)
        if unwritten := [k for k in range(plan.shards) if not plan.after.is_said_by(entries.get(k))]:
            raise LedgerChangedError(
                f"{self._store}: batch {plan.batch} ran, but the ledger does not say so of the shards {unwritten}. Is "
                "another driver at work under this name? Fix: stop one of them"
            )

    def _tell(self, result: ShardResult, plan: BatchPlan) -> None:
        self._listener(
            TransactionCommitted(
                self._store.shard(result.shard).transactional_id,
                0,  # how many records of the input a shard's rows were made of is not known to who writes them
                result.computed.rows,
                self._store.offsets(plan.after),
                result.seconds,
                result.commit_seconds,
            )
        )


def _query_of(frame: DataFrame) -> str:
    try:
        query = frame.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
    except Exception as error:
        raise UsageError("exactly_once_sink works in a classic session, not through Spark Connect") from error
    if not query:
        raise UsageError(
            "exactly_once_sink was called outside of a streaming query: give it to writeStream.foreachBatch, or call it "
            "in the function that you give there, in the same thread"
        )
    return str(query)


def _sharded(frame: DataFrame, columns: OutputColumns, shards: int) -> DataFrame:
    """The rows of each shard in a task of its own, in the order of the frame's tasks, with end marks behind them.

    With repartitionById a task's number is its shard's; `repartition` would hash the number once more. The marks
    (see `eos.spark.endmarks`) are rows without a hash.
    """
    names = set(columns.names)
    whose = ["topic"] if "topic" in names else []
    by_content = F.xxhash64(*whose, "value")
    if "partition" in names:
        by_content = F.when(F.isnotnull("partition"), F.xxhash64(*whose, "partition")).otherwise(by_content)
    if "key" in names:
        by_content = F.when(F.isnotnull("key"), F.xxhash64("key")).otherwise(by_content)
    rows = columns.select(frame).withColumn(HASH, by_content)
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
    return (
        numbered.unionByName(marks)
        .repartitionById(shards, F.col(SHARD))
        .sortWithinPartitions(_ORDER)
        .drop(_ORDER)
    )
