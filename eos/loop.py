"""The consume-transform-produce loop over a session: when a transaction ends, and when the loop does.

While transaction n commits, records of n+1 are fetched and transformed; nothing of n+1 is produced before
n's commit has returned.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from eos import retry
from eos.calls import Call
from eos.catchup import CatchUp
from eos.errors import EosError
from eos.events import CallRetried, Listener, LoopTurned
from eos.job import BoundTransform
from eos.poison import PoisonFilter
from eos.records import OutputBatch, OutputRecord
from eos.session import Session
from eos.settings import Settings
from eos.shards import PartitionShard

_IDLE_WAIT_S = 0.2  # how late a stop is noticed without input, or while a commit stays unanswered
_COMMIT_WAIT_S = 0.002  # how late a commit's return is noticed; a commit takes 5 to 30 ms
_LINGER_S = 0.005  # after the first record of a fetch: collects more at low rates, costs nothing at high ones
_MAX_COMMIT_SHARE = 0.1  # of the interval: a slow commit must not make the transactions small
# What is transformed during a commit is produced in one go after it. Without a bound that grew until most of each
# transaction was, the commit waited for all of it to be sent (65 ms, not 15), and so more was transformed meanwhile:
# 100,000 records at 20 % more processor time, and 350 MB where the records were large (orjson's take 4 KB each).
_MAX_AHEAD_RECORDS = 5_000
_LAG_EVERY_S = 2.0  # as often as librdkafka's statistics come
# A transform that turns out slow must not keep the loop from a stop, a rebalance or the end of the interval.
_FIRST_FETCH_RECORDS = 100


class Loop:
    """Turns input into output, transaction by transaction.

    Args:
        transform: the job's transform.
        session: the shard's owner, not yet open.
        settings: limits of a transaction, poison policy, grace period.
        stop: set it to end the loop in order.
        until_caught_up: end once the group has processed and committed what the input holds at the beginning.
        listener: told what happens.
    """

    def __init__(
        self,
        transform: BoundTransform,
        session: Session,
        settings: Settings,
        *,
        stop: threading.Event,
        until_caught_up: bool,
        listener: Listener,
    ) -> None:
        self._session = session
        self._limits = settings.transaction
        self._settings = settings
        self._stop = stop
        self._until_caught_up = until_caught_up
        self._listener = listener
        self._shard = session.shard.transactional_id
        self._filter = PoisonFilter(transform, settings.poison.policy, shard=self._shard, listener=listener)
        self._fetch_records = min(_FIRST_FETCH_RECORDS, settings.input.fetch_records)
        self._first_at: float | None = None  # when the transaction's first record was fetched
        self._records = 0
        self._bytes = 0
        self._lag_at = 0.0
        self._catch_up: CatchUp | None = None
        self._done = False

    def run(self) -> None:
        """Open the session and loop until told to stop, or caught up.

        Raises:
            EosError: what ended it; see eos.exits for its exit code.
        """
        with self._session, self._open_catch_up() as self._catch_up:
            while not self._ended():
                retry.redo(self._until_commit, tell=self._tell)
            self._finish()

    def _open_catch_up(self) -> AbstractContextManager[CatchUp | None]:
        if not self._until_caught_up:
            return nullcontext()
        shard = self._session.shard
        only = [shard.partition] if isinstance(shard, PartitionShard) else None
        return CatchUp(self._settings, shard.group, self._session.topics, only)

    def _until_commit(self) -> None:
        """Turn until a commit has come back: failures are counted from one commit to the next."""
        try:
            while not self._ended():
                if self._turn():
                    return
        except EosError as error:
            self._clear()
            self._session.recover(error)
            raise

    def _turn(self) -> bool:
        """One fetch and what follows from it. Returns whether a commit came back."""
        session = self._session
        self._listener(LoopTurned(self._shard))
        # Before the next records: one that stops the job at each start must not let the offsets before it grow old.
        if session.renew_offsets_if_due():
            return True
        joined = False
        if not (session.committing and self._far_ahead()):
            self._fetch()
        if session.committing and (session.commit_done() or self._far_ahead()):
            try:
                session.join(_IDLE_WAIT_S)
            except TimeoutError:
                return False
            joined = True
        if not session.committing:
            if self._records:
                session.produce()
            if session.filling and self._due():
                session.commit_soon()
                self._clear()
            elif session.idle:
                self._clear()  # a rebalance ended the transaction, or dropped what was staged
                self._look_whether_caught_up()
        self._measure_lag()
        return joined

    def _fetch(self) -> None:
        session = self._session
        limit = self._limits.max_records
        if session.committing:
            limit = min(limit, _MAX_AHEAD_RECORDS)
        room = max(1, limit - self._records)
        wait_s = self._wait_s()
        batch = session.fetch(min(self._fetch_records, room), wait_s, min(_LINGER_S, wait_s))
        if not batch:
            return
        began = time.monotonic()
        if self._first_at is None:
            self._first_at = began
        outputs = self._filter.apply(batch)
        self._pace(len(batch), time.monotonic() - began)
        session.stage(outputs, len(batch))
        self._records += len(batch)
        self._bytes += _value_bytes(outputs)

    def _pace(self, records: int, seconds: float) -> None:
        """Fetch as many records at a time as the transform takes in an interval, and no more than is set."""
        if seconds > self._limits.interval_s:
            self._fetch_records = max(1, int(records * self._limits.interval_s / seconds))
        elif records >= self._fetch_records:
            self._fetch_records = min(2 * self._fetch_records, self._settings.input.fetch_records)

    def _wait_s(self) -> float:
        if self._session.committing:
            return _COMMIT_WAIT_S
        if self._first_at is None:
            return _IDLE_WAIT_S
        return min(_IDLE_WAIT_S, max(0.0, self._first_at + self._fill_s - time.monotonic()))

    @property
    def _fill_s(self) -> float:
        """How long a transaction is filled: the interval less what the commit will take, which readers wait for too."""
        interval_s = self._limits.interval_s
        return interval_s - min(self._session.commit_seconds, _MAX_COMMIT_SHARE * interval_s)

    def _due(self) -> bool:
        """Whether the transaction being gathered has to end."""
        if self._first_at is None:
            return False
        return (
            self._records >= self._limits.max_records
            or self._bytes >= self._limits.max_bytes
            or time.monotonic() - self._first_at >= self._fill_s
            or (self._until_caught_up and self._session.consumer.caught_up)
        )

    def _far_ahead(self) -> bool:
        """Whether enough is transformed for the transaction after the one that is committing."""
        return self._records >= _MAX_AHEAD_RECORDS or self._due()

    def _look_whether_caught_up(self) -> None:
        if self._catch_up is not None and self._session.consumer.caught_up:
            self._session.commit_passed_markers()
            self._done = self._catch_up.reached()

    def _ended(self) -> bool:
        return self._stop.is_set() or self._done

    def _finish(self) -> None:
        """Commit what is there within the grace period; what is not answered by then is left to the next owner."""
        session = self._session
        deadline = time.monotonic() + self._settings.shutdown.grace_s
        try:
            session.join(max(0.0, deadline - time.monotonic()))
            session.produce()
            session.commit_soon()
            session.join(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            session.give_up()
        except EosError as error:
            # Nothing of it is visible, or the next start finds out; an orderly stop must not fail for it.
            if retry.rule_for(Call.BEGIN, error).action is retry.Action.STOP:
                raise

    def _clear(self) -> None:
        self._first_at = None
        self._records = 0
        self._bytes = 0

    def _measure_lag(self) -> None:
        now = time.monotonic()
        if now - self._lag_at >= _LAG_EVERY_S:
            self._lag_at = now
            self._listener(self._session.lag())

    def _tell(self, call: Call, attempt: int, error: EosError) -> None:
        self._listener(CallRetried(self._shard, call, attempt, str(error)))


def _value_bytes(outputs: Sequence[OutputBatch] | Sequence[OutputRecord]) -> int:
    total = 0
    for output in outputs:
        if isinstance(output, OutputBatch):
            total += sum(map(len, filter(None, output.values)))
        elif output.value:
            total += len(output.value)
    return total
