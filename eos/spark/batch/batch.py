"""ExactlyOnceBatch: one run over what is new in the input: plan, read, transform, commit, look at the outcome."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ByteType, IntegerType, LongType, ShortType

from eos.errors import ConfigError, EosError, FencedError, OffsetGapError, RecordRefusedError, UsageError
from eos.events import Listener, ProducerOpened, guarded, ignore_event
from eos.group.committed import committed_offsets, fresh_reader
from eos.job import check_topics
from eos.kafka.admin import Mark
from eos.settings import Settings
from eos.spark.analysis.lineage import as_input, require_own_input
from eos.spark.analysis.partition_local import require_partition_local
from eos.spark.analysis.placement import Placement
from eos.spark.analysis.shuffle import place, placement_of
from eos.spark.batch.planning import plan_input, refuse_gone
from eos.spark.batch.range_record import RangeRecord
from eos.spark.plan import SHARD, Commit, InputPlan, OffsetRange
from eos.spark.session.checks import warn_of_session
from eos.spark.session.session import run_name, step
from eos.spark.session.thrown import OF_SPARK
from eos.spark.source import InputLogs, blamed, read_input
from eos.spark.transform import FrameTransform
from eos.spark.write.executor_check import require_fit_executor
from eos.spark.write.failures import from_spark, input_gone
from eos.spark.write.output import OutputColumns, require_once
from eos.spark.write.writer import Reports, ShardResult, ShardState, Writing, reports_of, results_of

_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class BatchResult:
    """A run that is over: everything in its plan is committed.

    Attributes:
        plan: what it has read.
        shards: what became of each transaction: one per input partition that had something new, or one for all of them.
        seconds: how long it took, from the call on.
        placement: where the rows were written, in place or behind a shuffle; None if there was nothing new.
    """

    plan: InputPlan
    shards: tuple[ShardResult, ...]
    seconds: float
    placement: Placement | None = None

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
        self._listener = guarded(listener)

    def plan(self, commit: Commit = "partition") -> InputPlan:
        """What a run reads now, for :meth:`run`; offsets that are new or old are committed where they stand.

        A start policy is for the first plan of this object: a group without offsets is refused then.
        So it comes before a run, not beside one: it takes over the shards whose offsets it commits. See
        `eos.spark.batch.planning.plan_input` for what it raises.
        """
        # Before the group gets its first offsets.
        InputLogs(self._settings).partitions(*self._outputs)
        require_fit_executor(self._spark, self._settings, self._outputs, self._name)
        plan = plan_input(
            self._settings, self._inputs, app=self._name, commit=commit, listener=self._listener
        )
        self._settings = self._settings.once_started()
        return plan

    def explain(self, transform: FrameTransform, *, commit: Commit = "partition") -> Placement:
        """Where a run would write its rows now: in the tasks that read them, or behind a shuffle, and because of what.

        Nothing is read and nothing is committed; what a run refuses by Spark's plan is refused here too. Without new input it
        is said of all of the input's partitions. The arguments are those of :meth:`run`.

        Raises:
            EosError: as :meth:`run`, before its tasks begin.
        """
        _check_unit(commit)
        plan = plan_input(self._settings, self._inputs, app=self._name, commit=commit, preview=True)
        if not plan.ranges:
            at = InputLogs(self._settings).at(Mark.LAST_STABLE, plan.partitions)
            plan = replace(plan, ranges=tuple(OffsetRange(p, at[p], at[p]) for p in plan.partitions))
        frame, source, columns = self._frame(transform, plan)
        try:
            return placement_of(frame, source, columns, plan)
        except OF_SPARK as error:
            raise self._explained(error, plan) from error

    def run(
        self, transform: FrameTransform, *, commit: Commit = "partition", plan: InputPlan | None = None
    ) -> BatchResult:
        """Read, transform and commit what is new; returns once all of it is seen committed.

        Args:
            transform: from the input (Spark's Kafka columns and ``shard``) to output columns (see
                :mod:`eos.spark.write.output`). With ``commit="partition"`` it carries ``shard`` through.
            commit: ``"partition"``: each input partition is a transaction of its own, written in parallel.
                ``"batch"``: computed in parallel, written by one task in one transaction for all of the input.
            plan: from :meth:`plan` with the same ``commit``, if the transform needs to know it.

        Returns:
            What became of every shard. A run without new input returns at once.

        Raises:
            UsageError: the transform returned what cannot be written, or raised in a task. What it raises here, while it
                builds its DataFrame, goes on untouched.
            FencedError: another run has committed in between.
            ReopenError: a shard took longer than a transaction may live; says by how much to split.
            OffsetGapError: input was deleted before it was read.
            EosError: see each class for what to do; shards that are committed stay so, and the next run goes on.
        """
        began = time.monotonic()
        _check_unit(commit)
        if plan is None:
            plan = self.plan(commit)
        plan.refuse_other(self._name, self._settings.group_for(self._name), self._inputs, commit)
        if not plan.ranges:
            return BatchResult(plan, (), time.monotonic() - began)
        InputLogs(self._settings).partitions(*self._outputs)
        require_fit_executor(self._spark, self._settings, self._outputs, self._name)
        refuse_gone(self._settings, plan)
        record = RangeRecord(self._settings, plan)
        reports, placement = self._write(*self._frame(transform, plan), plan, record)
        for number, one in reports:
            if one.open_seconds:
                self._listener(
                    ProducerOpened(record.in_task(number, 0).shard.transactional_id, one.open_seconds)
                )
        try:
            results = results_of(reports, record, self._listener)
        except RecordRefusedError as error:
            raise blamed(self._settings, self._outputs, error) from error
        self._require_committed(plan)
        return BatchResult(plan, tuple(results), time.monotonic() - began, placement)

    def run_every(
        self,
        seconds: float,
        transform: FrameTransform,
        *,
        commit: Commit = "partition",
        on_result: Callable[[BatchResult], object] = lambda _: None,
        stop: threading.Event | None = None,
    ) -> None:
        """Run again and again: a stream of batches whose place in the input is in Kafka alone, without a checkpoint.

        It returns when it is asked to stop: by SIGTERM, if this is the main thread, or by the event. The run at work is
        finished first, and no other one begins. A second SIGTERM does what it did before the call. An error ends it; each run
        that was committed stays so.

        Args:
            seconds: from the end of a run to the beginning of the next one.
            transform: as of :meth:`run`; called once per run that has something to read.
            commit: as of :meth:`run`.
            on_result: called with each run's result, also of those that found nothing new.
            stop: set it to end the runs, from another thread for example.

        Raises:
            UsageError: seconds is negative.
            EosError: as :meth:`run`.
        """
        run_every(seconds, lambda: on_result(self.run(transform, commit=commit)), stop)

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

    def _frame(
        self, transform: FrameTransform, plan: InputPlan
    ) -> tuple[DataFrame, DataFrame, OutputColumns]:
        """What the transform makes of the plan's input, once it is shown that it may be written; and that input."""
        source = as_input(read_input(self._spark, self._settings, plan))
        frame = transform(source)
        columns = self._columns(frame, plan.commit)
        require_own_input(frame, source)
        if plan.commit == "partition":
            require_partition_local(frame, source, topics=len(self._inputs))
        return frame, source, columns

    def _write(
        self,
        frame: DataFrame,
        source: DataFrame,
        columns: OutputColumns,
        plan: InputPlan,
        record: RangeRecord,
    ) -> tuple[Reports, Placement]:
        try:
            run = run_name(self._spark, self._name)
            with step(self._spark, run, "plan"):
                placed = place(frame, source, columns, plan)
            writing = Writing(self._settings, columns, record, placed.shards_by_task)
            with step(self._spark, run, f"write {len(plan)} partitions, {placed.placement}"):
                return reports_of(placed.rows, writing), placed.placement
        except EosError:
            raise
        except Exception as error:
            raise self._explained(error, plan) from error

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
        except (OffsetGapError, ConfigError) as gone:
            return gone
        except EosError as unknown:
            explained.add_note(f"whether the input is still in the log could not be asked: {unknown}")
        return explained


def run_every(seconds: float, run: Callable[[], object], stop: threading.Event | None = None) -> None:
    """Call a function, and again so long after it has returned, until SIGTERM or until the event is set; never cut short.

    A second SIGTERM does what it did before.

    Raises:
        UsageError: the time is negative.
        BaseException: what the function raises.
    """
    if seconds < 0:
        raise UsageError(f"seconds={seconds}: the time between two runs is not negative")
    with _stopped_by_sigterm(stop or threading.Event()) as asked:
        while not asked.is_set():
            run()
            until = time.monotonic() + seconds
            # In small steps, not by asked.wait: a handler that sets the event in this thread would wait for the lock that
            # this thread holds.
            while not asked.is_set() and (left := until - time.monotonic()) > 0:
                time.sleep(min(left, _LOOK_S))


@contextmanager
def _stopped_by_sigterm(stop: threading.Event) -> Iterator[threading.Event]:
    """The first SIGTERM sets the event, and a second one does what it did before.

    Only the main thread may have handlers; elsewhere the event is all there is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.getsignal(signal.SIGTERM)

    def ask(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the handler's interface
        signal.signal(signal.SIGTERM, before)
        stop.set()

    signal.signal(signal.SIGTERM, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_unit(commit: Commit) -> None:
    if commit not in ("partition", "batch"):
        raise UsageError(f"commit={commit!r}: it is 'partition' or 'batch'")
