"""The consume-transform-produce loop over a session: when a transaction ends, and when the loop does.

While transaction n commits, records of n+1 are fetched and transformed; nothing of n+1 is produced before
n's commit has returned.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence

from eos.deadline import Deadline
from eos.errors import Action, EosError, RecordRefusedError
from eos.events import Listener, LoopTurned
from eos.poison import PoisonFilter
from eos.records import OutputBatch
from eos.runner.at_work import AtWork
from eos.runner.refused import naming_its_input
from eos.runner.slow_records import SlowRecords
from eos.runner.transform_clock import TRANSFORM_CLOCK
from eos.session.pipeline import PipelinedSession
from eos.settings import Settings
from eos.transform import BoundTransform

_IDLE_WAIT_S = 0.2  # how late a stop is noticed without input, or while a commit stays unanswered
_LOOK_S = 0.02  # how late it is noticed that the input of a run that catches up is passed, without a record behind it
# How long a fetch collects records after its first one. Each fetch has its price, and so have the requests that its outputs
# are produced by: at 2,000 records a second a fetch every 5 ms took 25 % of a core, every 20 ms 16 %, one for what is left of
# the interval 12 %. A transform that needs the interval gets its records in parts all the same, or the transaction would
# only begin to be made when it has to end. At high rates a fetch is full before that.
_LINGER_SHARE = 0.2  # of the interval, at least; so long, too, it may take until a commit's return is noticed
_SPARE_TIMES = 2  # of the interval's rest so many times what the last transaction took is left
_LEAST_LINGER_S = 0.002
_MAX_COMMIT_SHARE = 0.1  # of the interval: a slow commit must not make the transactions small
# A loop that is behind makes its transactions so many times as long as a commit takes. With 500 partitions the brokers take 60 ms
# to 150 for one, and half of their time is spent on commits with 100 ms in between.
_BEHIND_COMMITS = 4
_MAX_STRETCH = 3  # … but no longer than so many intervals: a commit also takes as long as what it has to send
# What is transformed during a commit is produced in one go after it. Without a bound that grew until most of each
# transaction was, the commit waited for all of it to be sent (65 ms, not 15), and so more was transformed meanwhile:
# 100,000 records at 20 % more processor time, and 350 MB where the records were large (orjson's take 4 KB each).
_MAX_AHEAD_RECORDS = 10_000
# Input is taken up for so long beyond the interval while a commit is not over. A fetch may find that partitions have gone, and
# has to wait for the commit then: behind one that gets no answer it would keep the loop from turning.
_LATE_COMMIT_S = 0.5
_LAG_EVERY_S = 2.0  # as often as librdkafka's statistics come
# A transform that turns out slow must not keep the loop from a stop, a rebalance or the end of the interval.
_FIRST_FETCH_RECORDS = 4
# While a transform holds Python's lock (a regular expression does), no other thread can commit, and what is open or in
# flight expires. After one took this share of transaction.timeout_ms, the next ones run with nothing open …
_SLOW_SHARE = 0.25
_SLOW_TIMES = (
    10  # … for this multiple of its duration. So one slow record in ten costs an expired transaction.
)


class Loop:
    """Turns input into output, transaction by transaction.

    Args:
        transform: the job's transform.
        session: the shard's owner, not yet open.
        settings: limits of a transaction, poison policy, grace period.
        at_work: watches the transform.
        listener: called with each event.
    """

    def __init__(
        self,
        transform: BoundTransform,
        session: PipelinedSession,
        settings: Settings,
        at_work: AtWork,
        *,
        listener: Listener,
    ) -> None:
        self._transform = transform
        self._session = session
        self._limits = settings.transaction
        self._settings = settings
        self._at_work = at_work
        self._listener = listener
        self._shard = session.shard.transactional_id
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
        self._fetch_records = min(_FIRST_FETCH_RECORDS, settings.input.fetch_records)
        self._first_at: float | None = None  # when the transaction's first record was fetched
        # Whether the last fetch brought all that was asked for: more waits in the input then. The interval of a transaction counts
        # from its begin then, for its records have waited for longer in the input than for the last commit. Else each was
        # shorter by what was fetched during that, a tenth; and each has its price, to the brokers as well.
        self._behind = False
        self._records = 0
        self._bytes = 0
        self._took_s = 0.0  # to transform and produce what is gathered now …
        self._last_took_s = self._limits.interval_s  # … and what the last transaction was made of
        self._nothing_open_until = 0.0
        self._lag_at = 0.0

    def run(self) -> None:
        """Open the session and loop until it is stopped or has caught up.

        Raises:
            EosError: what ended it; see eos.exits for its exit code.
        """
        with self._session as session:
            try:
                while not session.ended:
                    try:
                        self._turn()
                    except EosError as error:
                        self._clear()
                        session.go_on_after(error)
                self._finish()
            except RecordRefusedError as error:
                raise naming_its_input(
                    error, session, self._transform, self._settings, fetch_records=self._fetch_records
                ) from error

    def _turn(self) -> None:
        """One fetch and what follows from it."""
        session = self._session
        self._listener(LoopTurned(self._shard, session.open_s))
        # Before the next records: one that stops the job at each start must not let the offsets before it grow old.
        session.commit_offsets_alone()
        if not (self._early and self._far_ahead()):
            self._fetch()
        # What comes until a commit is over is in time for the next transaction, also when the interval of that is over: a record
        # that had to wait for the one would wait for the other, too.
        waits = session.committing and (session.commit_done() or self._far_ahead() or self._due())
        look_s = _LINGER_SHARE * self._limits.interval_s
        if waits and not session.join(_IDLE_WAIT_S if self._far_ahead() else min(_IDLE_WAIT_S, look_s)):
            return
        takes_more = self._early and self._records and not self._far_ahead()
        if not (session.committing or takes_more):
            if self._records:
                began = time.monotonic()
                if self._behind and not session.filling:
                    self._first_at = began
                session.produce()
                self._took_s += time.monotonic() - began
            if session.filling and self._due():
                # It looks at few objects. What a transform leaves in cycles is not to grow with the worker's threshold.
                gc.collect(0)
                session.commit_soon()
                self._clear()
            elif session.idle:
                self._clear()  # a rebalance ended the transaction, or dropped what was staged
                session.look_whether_caught_up()
        self._measure_lag()

    def _fetch(self) -> None:
        session = self._session
        limit = self._limits.max_records
        if self._early:
            limit = min(limit, _MAX_AHEAD_RECORDS)
        room = max(1, limit - self._records)
        wait_s = self._wait_s()
        # The interval counts from the first record, so that one is not kept waiting for others.
        linger_s = _LEAST_LINGER_S if self._first_at is None else self._linger_s
        asked = min(self._fetch_records, room)
        batch = session.fetch(asked, wait_s, min(linger_s, wait_s))
        self._behind = len(batch) >= asked
        if not batch or not session.announce():
            return
        if session.idle:
            self._clear()  # what was open has been committed before input is taken up that its owners may have died with
        began = time.monotonic()
        if self._first_at is None:
            self._first_at = began
        was_committing = session.committing
        with self._at_work.on(self._shard, batch), session.committing_at(self._late_at(began)):
            if deaths := session.deaths():
                outputs = self._filter.died(batch[0], deaths, session.in_a_row)
            else:
                with TRANSFORM_CLOCK.running(self._shard):
                    outputs = self._filter.apply(batch, session.in_a_row)
        session.returned()
        if session.committing and not was_committing:
            self._clear()
            self._first_at = began
        seconds = time.monotonic() - began
        self._took_s += seconds
        self._pace(len(batch), seconds)
        self._slow_records.took(batch, seconds)
        session.stage(outputs, len(batch), self._filter.in_a_row)
        self._records += len(batch)
        self._bytes += _value_bytes(outputs)

    def _late_at(self, began: float) -> float:
        """When a transform that began then has taken so long that what is open is committed without waiting for it.

        It has an interval of its own, which :meth:`_pace` sees to that it does not need; so this is rare.
        """
        first_at = began if self._first_at is None else self._first_at
        late_at = max(first_at + self._fill_s, began + self._limits.interval_s)
        return min(late_at, first_at + self._limits.timeout_s / 2)

    def _pace(self, records: int, seconds: float) -> None:
        """Fetch as many records at a time as the transform takes in an interval, and no more than is set."""
        if seconds > _SLOW_SHARE * self._limits.timeout_s:
            self._nothing_open_until = time.monotonic() + _SLOW_TIMES * seconds
        if seconds > self._limits.interval_s:
            self._fetch_records = max(1, int(records * self._limits.interval_s / seconds))
        elif records >= self._fetch_records:
            self._fetch_records = min(2 * self._fetch_records, self._settings.input.fetch_records)

    def _wait_s(self) -> float:
        session = self._session
        if self._records and (settling_s := session.settling_s):
            return settling_s
        if self._first_at is not None:
            return min(_IDLE_WAIT_S, max(0.0, self._fill_s - self._gathered_s))
        if session.committing:
            return min(_IDLE_WAIT_S, _LINGER_SHARE * self._limits.interval_s)
        return _LOOK_S if session.until_caught_up else _IDLE_WAIT_S

    @property
    def _linger_s(self) -> float:
        """How long a fetch waits for more records: the longer, the less of the interval it takes to process them."""
        interval_s = self._limits.interval_s
        spare_s = interval_s - _SPARE_TIMES * self._last_took_s
        return min(_IDLE_WAIT_S, max(_LEAST_LINGER_S, _LINGER_SHARE * interval_s, spare_s))

    @property
    def _fill_s(self) -> float:
        """How long a transaction is filled: the interval less what the commit will take, which readers wait for too.

        While it is behind, its records have waited for longer in the input than that takes.
        """
        interval_s, commit_s = self._limits.interval_s, self._session.commit_seconds
        if self._behind:
            longest_s = max(interval_s, min(_MAX_STRETCH * interval_s, _SLOW_SHARE * self._limits.timeout_s))
            return max(interval_s, min(_BEHIND_COMMITS * commit_s, longest_s))
        return interval_s - min(commit_s, _MAX_COMMIT_SHARE * interval_s)

    def _due(self) -> bool:
        """Whether the transaction being gathered has to end."""
        if self._first_at is None:
            return False
        return self._full or self._gathered_s >= self._fill_s

    @property
    def _early(self) -> bool:
        """Whether the next transaction does not begin yet: the last one commits, or its markers are being written."""
        return self._session.committing or self._session.settling_s > 0

    @property
    def _gathered_s(self) -> float:
        """For how many seconds the first record of the transaction has been here; 0 without one."""
        return 0.0 if self._first_at is None else time.monotonic() - self._first_at

    @property
    def _full(self) -> bool:
        """Whether the transaction being gathered takes no more records."""
        return (
            self._each_by_itself
            or self._records >= self._limits.max_records
            or self._bytes >= self._limits.max_bytes
            or self._passed_the_end
        )

    @property
    def _passed_the_end(self) -> bool:
        """Whether a run that catches up has been handed out all that it is to process.

        Then each transaction ends with nothing transformed ahead, so that a look follows it: input may go on coming for ever.
        """
        return self._session.until_caught_up and self._session.has_read_all

    @property
    def _each_by_itself(self) -> bool:
        """Whether nothing is open, or in flight, while a transform runs: one took long of late, or may end the process."""
        return self._session.few_at_a_time or time.monotonic() < self._nothing_open_until

    def _far_ahead(self) -> bool:
        """Whether nothing more is transformed for the transaction after the one that is committing."""
        late_s = self._fill_s + _LATE_COMMIT_S
        return self._records >= _MAX_AHEAD_RECORDS or self._full or self._gathered_s >= late_s

    def _finish(self) -> None:
        """Commit what is there within the grace period; what is not answered by then is left to the next owner."""
        session = self._session
        deadline = Deadline(self._settings.shutdown.grace_s)
        try:
            ended = session.join(deadline.left_s)
            if ended:
                session.produce()
                session.commit_soon()
                ended = session.join(deadline.left_s)
            if ended:
                session.commit_offsets_alone(at_once=True)
            else:
                session.give_up()
        except EosError as error:
            # Nothing of it is visible, or the next start settles it; an orderly stop must not fail for it.
            if error.action is Action.STOP:
                raise

    def _clear(self) -> None:
        self._last_took_s, self._took_s = self._took_s, 0.0
        self._first_at = None
        self._records = 0
        self._bytes = 0

    def _measure_lag(self) -> None:
        now = time.monotonic()
        if now - self._lag_at >= _LAG_EVERY_S:
            self._lag_at = now
            self._listener(self._session.lag())


def _value_bytes(outputs: Sequence[OutputBatch]) -> int:
    return sum(map(_size_of, outputs))


def _size_of(output: OutputBatch) -> int:
    try:
        return sum(map(len, output.values))  # type: ignore[arg-type] # a third cheaper, and there mostly are no tombstones
    except TypeError:
        return sum(map(len, filter(None, output.values)))
