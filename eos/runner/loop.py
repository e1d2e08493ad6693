"""The consume-transform-produce loop over a session: when a transaction ends, and when the loop does.

While transaction n commits, records of n+1 are fetched and transformed; nothing of n+1 is produced before
n's commit has returned.
"""

from __future__ import annotations

import gc
import time

from eos.base.deadline import Deadline
from eos.core.pipeline import Pipeline
from eos.errors import Action, EosError, RecordRefusedError
from eos.events import Listener, Sampled
from eos.poison import PoisonFilter
from eos.runner.at_work import AtWork
from eos.runner.pace import IDLE_WAIT_S, LOOK_S, Pace
from eos.runner.refused import naming_its_input
from eos.runner.slow_records import SlowRecords
from eos.runner.transform_clock import TRANSFORM_CLOCK
from eos.settings import Settings
from eos.transform import Applied

_LAG_EVERY_S = 2.0  # as often as librdkafka's statistics come


class Loop:
    """Turns input into output, transaction by transaction.

    Args:
        transform: the job's transform.
        pipeline: of the shard's owner, not yet open.
        settings: limits of a transaction, poison policy, grace period.
        at_work: watches the transform.
        listener: called with each event.
    """

    def __init__(
        self,
        transform: Applied,
        pipeline: Pipeline,
        settings: Settings,
        at_work: AtWork,
        *,
        listener: Listener,
    ) -> None:
        self._transform = transform
        self._pipeline = pipeline
        self._owner = pipeline.owner
        self._committer = pipeline.owner.committer
        self._settings = settings
        self._at_work = at_work
        self._listener = listener
        self._shard = self._owner.name
        poison = settings.poison
        self._filter = PoisonFilter(
            transform,
            poison.policy,
            shard=self._shard,
            listener=listener,
            max_in_a_row=poison.max_in_a_row,
            max_died_in_a_row=poison.max_died_in_a_row,
        )
        self._slow_records = SlowRecords(settings)
        self._pace = Pace(settings.transaction, settings.input.fetch_records)
        self._lag_at = 0.0

    def run(self) -> None:
        """Open the session and loop until it is stopped or has caught up.

        Raises:
            EosError: what ended it; see eos.exits for its exit code.
        """
        owner = self._owner
        with self._pipeline:
            try:
                while not owner.ended:
                    try:
                        self._turn()
                    except EosError as error:
                        self._pace.over()
                        owner.go_on_after(error)
                self._finish()
            except RecordRefusedError as error:
                raise naming_its_input(
                    error,
                    self._pipeline,
                    self._transform,
                    self._settings,
                    fetch_records=self._pace.fetch_records,
                ) from error

    def _turn(self) -> None:
        """One fetch and what follows from it."""
        pipeline, owner, committer, pace = self._pipeline, self._owner, self._committer, self._pace
        self._listener(Sampled(self._shard, committer.open_s))
        # Before the next records: one that stops the job at each start must not let the offsets before it grow old.
        owner.commit_offsets_alone()
        if not (self._early and self._far_ahead()):
            self._fetch()
        # What comes until a commit is over is in time for the next transaction, also when the interval of that is over: a record
        # that had to wait for the one would wait for the other, too.
        waits = committer.committing and (committer.commit_done() or self._far_ahead() or self._due())
        if waits and not committer.join(
            IDLE_WAIT_S if self._far_ahead() else min(IDLE_WAIT_S, pace.notice_s)
        ):
            return
        takes_more = self._early and pace.records and not self._far_ahead()
        if not (committer.committing or takes_more):
            if pace.records:
                self._produce()
            if committer.filling and self._due():
                # It looks at few objects. What a transform leaves in cycles is not to grow with the worker's threshold.
                gc.collect(0)
                committer.commit_soon()
                pace.over()
            elif pipeline.idle:
                pace.over()  # a rebalance ended the transaction, or dropped what was staged
                owner.look_whether_caught_up()
        self._measure_lag()

    def _fetch(self) -> None:
        pipeline, pace = self._pipeline, self._pace
        wait_s = self._wait_s()
        asked = pace.asks_for(ahead=self._early)
        batch = pipeline.fetch(asked, wait_s, min(pace.linger_s, wait_s))
        pace.fetched(len(batch), asked=asked)
        if not batch or not pipeline.crashes.announce(batch):
            return
        if pipeline.idle:
            pace.over()  # what was open has been committed before input is taken up that its owners may have died with
        began = time.monotonic()
        pace.taken_up(began)
        was_committing = self._committer.committing
        late_at = pace.late_at(began, self._committer.commit_seconds)
        with self._at_work.on(self._shard, batch, self._transform), pipeline.committing_at(late_at):
            if deaths := pipeline.crashes.deaths(batch):
                outputs = self._filter.died(batch[0], deaths, pipeline.in_a_row)
            else:
                with TRANSFORM_CLOCK.running(self._shard):
                    outputs = self._filter.apply(batch, pipeline.in_a_row)
        pipeline.crashes.returned()
        if self._committer.committing and not was_committing:
            pace.over()
            pace.counts_from(began)
        now = time.monotonic()
        pace.transformed(len(batch), self._transform.size_of(outputs), now - began, now)
        self._slow_records.took(batch, now - began)
        pipeline.stage(batch, outputs, self._filter.in_a_row)

    def _produce(self) -> None:
        began = time.monotonic()
        if self._pace.behind and not self._committer.filling:
            self._pace.counts_from(began)
        self._pipeline.produce()
        self._pace.produced(time.monotonic() - began)

    def _wait_s(self) -> float:
        owner, pace = self._owner, self._pace
        if pace.records and (settling_s := self._committer.settling_s):
            return settling_s
        if (wait_s := pace.wait_s(time.monotonic(), self._committer.commit_seconds)) is not None:
            return wait_s
        if self._committer.committing:
            return min(IDLE_WAIT_S, pace.notice_s)
        return LOOK_S if owner.until_caught_up else IDLE_WAIT_S

    def _due(self) -> bool:
        """Whether the transaction being gathered has to end."""
        pace = self._pace
        if not pace.gathering:
            return False
        return self._takes_no_more or pace.due(time.monotonic(), self._committer.commit_seconds)

    def _far_ahead(self) -> bool:
        """Whether nothing more is transformed for the transaction after the one that is committing."""
        return self._takes_no_more or self._pace.far_ahead(time.monotonic(), self._committer.commit_seconds)

    @property
    def _early(self) -> bool:
        """Whether the next transaction does not begin yet: the last one commits, or its markers are being written."""
        return self._committer.committing or self._committer.settling_s > 0

    @property
    def _takes_no_more(self) -> bool:
        """Whether each fetch is a transaction: its records may end the process, or a run that catches up has been handed out all.

        Then each transaction ends with nothing transformed ahead, so that a look follows it: input may go on coming for ever.
        """
        pipeline, owner = self._pipeline, self._owner
        few = pipeline.crashes.few_at_a_time or self._transform.one_fetch_at_a_time
        return few or (owner.until_caught_up and owner.has_read_all)

    def _finish(self) -> None:
        """Commit what is there within the grace period; what is not answered by then is left to the next owner."""
        pipeline, owner = self._pipeline, self._owner
        deadline = Deadline(self._settings.shutdown.grace_s)
        try:
            ended = self._committer.join(deadline.left_s)
            if ended:
                pipeline.produce()
                self._committer.commit_soon()
                ended = self._committer.join(deadline.left_s)
            if ended:
                owner.commit_offsets_alone(at_once=True)
            else:
                self._committer.give_up()
        except EosError as error:
            # Nothing of it is visible, or the next start settles it; an orderly stop must not fail for it.
            if error.action is Action.STOP:
                raise

    def _measure_lag(self) -> None:
        now = time.monotonic()
        if now - self._lag_at >= _LAG_EVERY_S:
            self._lag_at = now
            self._listener(Sampled(self._shard, self._committer.open_s, self._owner.lag()))
