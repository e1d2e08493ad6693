"""ExactlyOnceBatch: one run over what is new in the input: plan, read, transform, commit, look at the outcome."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.types import ByteType, IntegerType, LongType, ShortType

from eos.errors import EosError, FencedError, OffsetGapError, UnclassifiedError, UsageError
from eos.events import Listener, ProducerOpened, TransactionCommitted, ignore_event
from eos.group.committed import committed_offsets, fresh_reader
from eos.offsets import OffsetVector
from eos.settings import Settings
from eos.shards import BatchShard, PartitionShard
from eos.spark.commit import REPORT_SCHEMA, WHOLE_INPUT, CommitUnit, ShardState, Writing
from eos.spark.endmarks import END, can_mark_in_place, mark_by_shuffle, mark_in_place
from eos.spark.failures import decoded, from_spark
from eos.spark.operators import row_wise
from eos.spark.origin import as_input, require_own_input, require_shards_apart
from eos.spark.output import OutputColumns, require_once
from eos.spark.plan import InputPlan, OffsetRange, ends_of, plan_input
from eos.spark.session import warn_of_session
from eos.spark.source import SHARD, read_input, refuse_gone

FrameTransform = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class ShardResult:
    """What became of one transaction of a run. Times are in seconds.

    ``state`` is SKIPPED where an earlier try of the task, or another driver, had committed it: its records were
    written then, and ``records_out`` is 0.
    """

    shard: str
    state: ShardState
    offsets: OffsetVector
    records_out: int
    seconds: float
    commit_seconds: float


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

    Safe under task retries, speculation, lost executors, a killed driver and a second driver: whoever comes second
    finds the offsets committed and skips. The transform must be deterministic, because what is tried again must
    come out the same: no rand(), uuid(), current_timestamp(), no limit() without an order.

    Args:
        spark: a session with the Kafka connector.
        settings: how to reach the cluster, the group, the start policy, limits.
        name: letters, digits, '_' and '-'; the first part of the transactional.ids, and the group if none is set.
        inputs: the topics read.
        outputs: every topic that rows may go to.
        listener: told what happens, on the driver, when a run's results are in.

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
        if isinstance(inputs, str) or isinstance(outputs, str) or not inputs or not outputs:
            raise UsageError("inputs and outputs are lists of at least one topic each")
        if loop := sorted(set(inputs) & set(outputs)):
            raise UsageError(f"{loop} is input and output; the job would feed itself forever")
        warn_of_session(spark, settings)
        self._spark = spark
        self._settings = settings
        self._name = name
        self._inputs = tuple(inputs)
        self._outputs = tuple(outputs)
        self._listener = listener

    def plan(self, commit: CommitUnit = "partition") -> InputPlan:
        """What a run reads now, for :meth:`run`; offsets that are new or old are committed where they stand.

        So it comes before a run, not beside one: it takes over the shards whose offsets it commits. See
        :func:`eos.spark.plan.plan_input` for what it raises.
        """
        return plan_input(
            self._settings, self._inputs, app=self._name, commit=commit, listener=self._listener
        )

    def run(
        self, transform: FrameTransform, *, commit: CommitUnit = "partition", plan: InputPlan | None = None
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
        reports = self._write(frame, source, plan, columns, commit)
        results = self._told(reports, plan, commit)
        self._require_committed(plan)
        return BatchResult(plan, tuple(results), time.monotonic() - began)

    # --- inside ------------------------------------------------------------------------------------

    def _columns(self, frame: DataFrame, commit: CommitUnit) -> OutputColumns:
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
        self,
        frame: DataFrame,
        source: DataFrame,
        plan: InputPlan,
        columns: OutputColumns,
        commit: CommitUnit,
    ) -> list[Row]:
        try:
            marked, shards_by_task = self._marked(frame, source, plan, columns, commit)
            writing = Writing(
                self._settings,
                self._name,
                plan.group,
                _ranges_by_shard(plan, commit),
                secrets.token_hex(6),
                commit,
                columns,
                Counter(partition.topic for partition in plan.partitions),  # the plan saw to it
                shards_by_task,
            )
            return marked.mapInArrow(lambda batches: writing(batches), REPORT_SCHEMA).collect()  # noqa: PLW0108 - Spark asks for a function
        except EosError:
            raise
        except Exception as error:
            raise self._explained(error, plan) from error

    def _marked(
        self,
        frame: DataFrame,
        source: DataFrame,
        plan: InputPlan,
        columns: OutputColumns,
        commit: CommitUnit,
    ) -> tuple[DataFrame, tuple[int, ...] | None]:
        """The rows to write, every shard's in one task and followed by its end marks."""
        end = F.lit(False)
        if commit == "batch":
            rows = columns.select(frame.withColumn(SHARD, F.lit(WHOLE_INPUT)), SHARD).withColumn(END, end)
            return mark_by_shuffle(self._spark, rows, [WHOLE_INPUT], tasks=1), None
        rows = columns.select(frame.withColumn(SHARD, F.col(SHARD).cast("int")), SHARD).withColumn(END, end)
        in_place = row_wise(rows, source, plan) if can_mark_in_place(self._spark) else None
        if in_place is not None:
            marked = mark_in_place(self._spark, in_place.java_rdd, rows.schema, in_place.shards)
            return marked, in_place.shards
        shards = [plan.shard_of(one.partition) for one in plan]
        wanted = self._settings.spark.write_tasks or self._spark.sparkContext.defaultParallelism
        return mark_by_shuffle(self._spark, rows, shards, tasks=min(wanted, len(shards))), None

    def _told(self, reports: Sequence[Row], plan: InputPlan, commit: CommitUnit) -> list[ShardResult]:
        """The results as the tasks reported them, told to the listener.

        Raises:
            EosError: what a task failed for; the other tasks have ended by then.
        """
        results = []
        for report in sorted(reports, key=lambda row: row.shard):
            if report.state == ShardState.FAILED:
                continue
            result = self._result(report, plan, commit)
            results.append(result)
            self._listener(ProducerOpened(result.shard, report.open_seconds))
            if result.state is not ShardState.SKIPPED:
                self._listener(
                    TransactionCommitted(
                        result.shard,
                        0,  # how many rows a shard's records were made of is not known to who writes them
                        result.records_out,
                        result.offsets,
                        result.seconds,
                        result.commit_seconds,
                    )
                )
        failures = [decoded(report.failure) for report in reports if report.state == ShardState.FAILED]
        if failures:
            error = failures[0]
            error.add_note(
                f"{len(results)} of the run's shards are committed; the next run goes on behind them"
            )
            raise error
        return results

    def _result(self, report: Row, plan: InputPlan, commit: CommitUnit) -> ShardResult:
        if commit == "batch":
            shard: BatchShard | PartitionShard = BatchShard(self._name, plan.group)
            offsets = plan.ends
        else:
            one = plan.range_of(report.shard)
            if one is None:
                raise UnclassifiedError(f"a task reported shard {report.shard}, which the run does not read")
            shard = PartitionShard(self._name, plan.group, one.partition)
            offsets = ends_of([one])
        return ShardResult(
            shard.transactional_id,
            ShardState(report.state),
            offsets,
            report.records,
            report.seconds,
            report.commit_seconds,
        )

    def _require_committed(self, plan: InputPlan) -> None:
        """Nothing is reported done before every range is seen committed.

        Beyond the end is fine: another run went on from there.
        """
        with fresh_reader(self._settings, plan.group, stable=True) as reader:
            stored = committed_offsets(reader, plan.ends, timeout_s=self._settings.open_deadline_s)
        for one in plan:
            found = stored.get(one.partition)
            if found is None or found.offset < one.end:
                at = "nowhere" if found is None else f"at offset {found.offset}"
                raise FencedError(
                    f"{one.partition}: every task has ended, and the group {plan.group!r} stands {at} instead of "
                    f"{one.end}: somebody else has set its offsets"
                )

    def _explained(self, error: Exception, plan: InputPlan) -> EosError:
        """A failed action as an EosError that says what to do."""
        explained = from_spark(error)
        try:
            refuse_gone(self._settings, plan)
        except OffsetGapError as gap:
            return gap
        except EosError as unknown:
            explained.add_note(f"whether the input is still in the log could not be asked: {unknown}")
        return explained


def _ranges_by_shard(plan: InputPlan, commit: CommitUnit) -> dict[int, tuple[OffsetRange, ...]]:
    """What each shard number of the rows stands for; the partitions of a plan are counted once here, not per task."""
    if commit == "batch":
        return {WHOLE_INPUT: plan.ranges}
    place = {partition: number for number, partition in enumerate(plan.partitions)}
    return {place[one.partition]: (one,) for one in plan}
