"""ExactlyOnceBatch: one run over what is new in the input: plan, read, transform, commit, look at the outcome."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.types import ByteType, IntegerType, LongType, ShortType

from eos.errors import EosError, FencedError, OffsetGapError, UsageError
from eos.events import Listener, ProducerOpened, ignore_event
from eos.group.committed import committed_offsets, fresh_reader
from eos.job import check_topics
from eos.settings import Settings
from eos.spark.declared import FrameTransform
from eos.spark.done_ranges import WHOLE_INPUT, DoneRanges
from eos.spark.endmarks import END, can_mark_in_place, known_shard, mark_by_shuffle, mark_in_place
from eos.spark.failures import from_spark, input_gone
from eos.spark.operators import row_wise
from eos.spark.origin import as_input, require_own_input
from eos.spark.output import OutputColumns, require_once
from eos.spark.plan import Commit, InputPlan
from eos.spark.planning import plan_input, refuse_gone
from eos.spark.report import Reports, ShardResult, ShardState, reports_of, results_of
from eos.spark.session import warn_of_session
from eos.spark.shards_apart import require_shards_apart
from eos.spark.source import SHARD, read_input
from eos.spark.writer import Writing


@dataclass(frozen=True, slots=True)
class BatchResult:
    """A run that is over: everything in its plan is committed."""

    plan: InputPlan
    shards: tuple[ShardResult, ...]
    seconds: float

    @property
    def records_out(self) -> int:
        """The records that this run's own transactions wrote."""
        return sum(shard.records_out for shard in self.shards)

    def count(self, state: ShardState) -> int:
        """How many shards ended in a state."""
        return sum(shard.state is state for shard in self.shards)


class ExactlyOnceBatch:
    """Runs a transform of DataFrames over what is new in the input, exactly once.

    >>> batch = ExactlyOnceBatch(spark, settings, name="totals", inputs=["in"], outputs=["out"])  # doctest: +SKIP
    >>> batch.run(lambda df: df.select("shard", "key", "value"))  # doctest: +SKIP

    Safe under task retries, speculation, lost executors, a killed driver and a second driver: the one that comes second
    finds the offsets committed and skips. The transform must be deterministic, because what is tried again must
    come out the same: no rand(), uuid(), current_timestamp(), no limit() without an order.

    Args:
        spark: a session with the Kafka connector.
        settings: how to reach the cluster, the group, the start policy, limits.
        name: letters, digits, '_' and '-'; the first part of the transactional.ids, and the group if none is set.
        inputs: the topics read.
        outputs: every topic that rows may go to.
        listener: called with each event (``eos.events``), on the driver; with those of the tasks when the run's results are in.

    Raises:
        ConfigError: the session is one in which a run cannot keep its promise.
        UsageError: the topics contradict each other.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        *,
        name: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        listener: Listener = ignore_event,
    ) -> None:
        self._inputs, self._outputs = check_topics(name, inputs, outputs)
        warn_of_session(spark, settings)
        self._spark = spark
        self._settings = settings
        self._name = name
        self._listener = listener

    def plan(self, commit: Commit = "partition") -> InputPlan:
        """What a run reads now, for :meth:`run`; offsets that are new or old are committed where they stand.

        So it comes before a run, not beside one: it takes over the shards whose offsets it commits. See
        `eos.spark.planning.plan_input` for what it raises.
        """
        return plan_input(
            self._settings, self._inputs, app=self._name, commit=commit, listener=self._listener
        )

    def run(
        self, transform: FrameTransform, *, commit: Commit = "partition", plan: InputPlan | None = None
    ) -> BatchResult:
        """Read, transform and commit what is new; returns once all of it is seen committed.

        Args:
            transform: from the input (Spark's Kafka columns and ``shard``) to output columns (see
                :mod:`eos.spark.output`). With ``commit="partition"`` it carries ``shard`` through.
            commit: ``"partition"``: each input partition is a transaction of its own, written in parallel.
                ``"batch"``: computed in parallel, written by one task in one transaction for all of the input.
            plan: from :meth:`plan` with the same ``commit``, if the transform needs to know it.

        Returns:
            What became of every shard. A run without new input returns at once.

        Raises:
            UsageError: the transform returned what cannot be written, or raised in a task. What it raises here, while it
                builds its DataFrame, goes on untouched.
            FencedError: another run has committed in between.
            TransactionExpiredError: a shard took longer than a transaction may live; says by how much to split.
            OffsetGapError: input was deleted before it was read.
            EosError: see each class for what to do; shards that are committed stay so, and the next run goes on.
        """
        began = time.monotonic()
        if commit not in ("partition", "batch"):
            raise UsageError(f"commit={commit!r}: it is 'partition' or 'batch'")
        if plan is None:
            plan = self.plan(commit)
        plan.refuse_other(self._name, self._settings.group_for(self._name), self._inputs, commit)
        if not plan.ranges:
            return BatchResult(plan, (), time.monotonic() - began)
        refuse_gone(self._settings, plan)
        source = as_input(read_input(self._spark, self._settings, plan))
        frame = transform(source)
        columns = self._columns(frame, commit)
        require_own_input(frame, source)
        if commit == "partition":
            require_shards_apart(frame, source, topics=len(self._inputs))
        done = DoneRanges.of(self._settings, plan)
        reports = self._write(frame, source, plan, columns, done)
        for number, one in reports:
            if one.open_seconds:
                self._listener(ProducerOpened(done.shard(number).transactional_id, one.open_seconds))
        results = results_of(reports, done, self._listener)
        self._require_committed(plan)
        return BatchResult(plan, tuple(results), time.monotonic() - began)

    # --- inside ------------------------------------------------------------------------------------

    def _columns(self, frame: DataFrame, commit: Commit) -> OutputColumns:
        if not isinstance(frame, DataFrame):
            raise UsageError(f"the transform returned {type(frame).__name__}, not a DataFrame")
        if commit == "partition":
            require_once(frame, [SHARD])
            kinds = {field.name: field.dataType for field in frame.schema}
            if SHARD not in kinds:
                raise UsageError(
                    "the transform dropped the column 'shard', which says whose transaction a row belongs to. "
                    "Fix: carry it through, for example df.select('shard', 'key', 'value'), or "
                    "df.groupBy('shard', …) for an aggregate per input partition; a transform over all partitions "
                    "needs commit='batch'"
                )
            if not isinstance(kinds[SHARD], IntegerType | LongType | ShortType | ByteType):
                raise UsageError(
                    f"the column 'shard' is {kinds[SHARD].simpleString().upper()}; carry it through unchanged (INT)"
                )
        return OutputColumns.of(frame, self._outputs)

    def _write(
        self, frame: DataFrame, source: DataFrame, plan: InputPlan, columns: OutputColumns, done: DoneRanges
    ) -> Reports:
        try:
            rows, shards_by_task = self._marked(frame, source, plan, columns)
            return reports_of(rows, Writing(self._settings, columns, done, shards_by_task))
        except EosError:
            raise
        except Exception as error:
            raise self._explained(error, plan) from error

    def _marked(
        self, frame: DataFrame, source: DataFrame, plan: InputPlan, columns: OutputColumns
    ) -> tuple[DataFrame, tuple[int, ...] | None]:
        """The rows to write, every shard's in one task and followed by its end marks; and whose the tasks are, if known."""

        def of(shard: Column) -> DataFrame:
            return columns.select(frame.withColumn(SHARD, shard.cast("int")), SHARD).withColumn(
                END, F.lit(False)
            )

        if plan.commit == "batch":
            return mark_by_shuffle(self._spark, of(F.lit(WHOLE_INPUT)), [WHOLE_INPUT], tasks=1), None
        rows = of(F.col(SHARD))
        in_place = row_wise(rows, source, plan) if can_mark_in_place(self._spark) else None
        if in_place is not None:
            marked = mark_in_place(self._spark, in_place.java_rdd, rows.schema, in_place.shards)
            return marked, in_place.shards
        shards = [plan.shard_of(one.partition) for one in plan]
        tasks = min(
            self._settings.spark.write_tasks or self._spark.sparkContext.defaultParallelism, len(shards)
        )
        return mark_by_shuffle(
            self._spark, rows.withColumn(SHARD, known_shard(shards)), shards, tasks=tasks
        ), None

    def _require_committed(self, plan: InputPlan) -> None:
        """Nothing is reported done before every range is seen committed.

        Beyond the end is fine: another run went on from there.
        """
        with fresh_reader(self._settings, plan.group, stable=True) as reader:
            stored = committed_offsets(reader, plan.ends, timeout_s=self._settings.open_timeout_s)
        for one in plan:
            found = stored.get(one.partition)
            if found is None or found.offset < one.end:
                at = "nowhere" if found is None else f"at offset {found.offset}"
                raise FencedError(
                    f"{one.partition}: every task has ended, and the group {plan.group!r} stands {at} instead of "
                    f"{one.end}: its offsets were set from outside"
                )

    def _explained(self, error: Exception, plan: InputPlan) -> EosError:
        """A failed action as an EosError that says what to do."""
        explained: EosError = from_spark(error)
        if gone := input_gone(error):
            explained = OffsetGapError(
                f"{gone} It is not the run's own input, so a snapshot's. Fix: run again"
            )
        try:
            refuse_gone(self._settings, plan)
        except OffsetGapError as gap:
            return gap
        except EosError as unknown:
            explained.add_note(f"whether the input is still in the log could not be asked: {unknown}")
        return explained
