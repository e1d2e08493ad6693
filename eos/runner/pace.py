"""Pace: how much a loop fetches, how long it waits, and when its transaction ends. Numbers only: the loop says what happened, and when.

Times are those of time.monotonic(). ``commit_s`` is how long the last commit took.
"""

from __future__ import annotations

from eos.settings.tables import TransactionSettings

IDLE_WAIT_S = 0.2  # how late a stop is noticed without input, or while a commit stays unanswered
LOOK_S = 0.02  # how late it is noticed that the input of a run that catches up is passed, without a record behind it
# A transform that turns out slow must not keep the loop from a stop, a rebalance or the end of the interval.
FIRST_FETCH_RECORDS = 4
# How long a fetch collects records after its first one, as a share of the interval: each fetch has its price, and so have the
# requests that its outputs are produced by. So long, too, it may take until a commit's return is noticed.
_LINGER_SHARE = 0.2
_LEAST_LINGER_S = 0.002
_SPARE_TIMES = 2  # of the interval's rest so many times what the last transaction took is left
_MAX_COMMIT_SHARE = 0.1  # of the interval: a slow commit must not make the transactions small
# A loop that is behind makes its transactions so many times as long as a commit takes …
_BEHIND_COMMITS = 4
_MAX_STRETCH = 3  # … but no longer than so many intervals: a commit also takes as long as what it has to send
# What is transformed during a commit is produced in one go after it. Without a bound that grows until most of each transaction is.
MAX_AHEAD_RECORDS = 10_000
# Input is taken up for so long beyond the interval while a commit is not over. A fetch may find that partitions have gone, and
# has to wait for the commit then: behind one that gets no answer it would keep the loop from turning.
_LATE_COMMIT_S = 0.5
# While a transform holds Python's lock (a regular expression does), no other thread can commit, and what is open or in
# flight expires. After one took this share of transaction.timeout_ms, the next ones run with nothing open …
_SLOW_SHARE = 0.25
_SLOW_TIMES = 10  # … for this multiple of its duration: one slow record in ten costs an expired transaction


class Pace:
    """One loop's.

    Args:
        limits: of a transaction.
        most_records: at most so many are fetched at a time.

    Attributes:
        fetch_records: how many records a fetch asks for; as many as the transform takes in an interval.
        records: gathered for the next transaction.
        behind: whether the last fetch brought all that was asked for: more waits in the input then. The interval of a transaction
            counts from its begin then, for its records have waited for longer in the input than for the last commit.
    """

    def __init__(self, limits: TransactionSettings, most_records: int) -> None:
        self._limits = limits
        self._most_records = most_records
        self.fetch_records = min(FIRST_FETCH_RECORDS, most_records)
        self.records = 0
        self.behind = False
        self._bytes = 0
        self._first_at: float | None = None  # when the transaction's first record was fetched
        self._took_s = 0.0  # to transform and produce what is gathered now …
        self._last_took_s = limits.interval_s  # … and what the last transaction was made of
        self._nothing_open_until = 0.0

    # --- what has happened -----------------------------------------------------------------------------

    def fetched(self, records: int, *, asked: int) -> None:
        """A fetch has returned so many records."""
        self.behind = records >= asked

    def taken_up(self, now: float) -> None:
        """Records are about to be transformed; the interval counts from the first of them."""
        if self._first_at is None:
            self._first_at = now

    def counts_from(self, at: float) -> None:
        """The interval counts from then."""
        self._first_at = at

    def transformed(self, records: int, value_bytes: int, seconds: float, now: float) -> None:
        """So many records were transformed into so many bytes of values, in this time."""
        self._took_s += seconds
        self.records += records
        self._bytes += value_bytes
        if seconds > _SLOW_SHARE * self._limits.timeout_s:
            self._nothing_open_until = now + _SLOW_TIMES * seconds
        if seconds > self._limits.interval_s:
            self.fetch_records = max(1, int(records * self._limits.interval_s / seconds))
        elif records >= self.fetch_records:
            self.fetch_records = min(2 * self.fetch_records, self._most_records)

    def produced(self, seconds: float) -> None:
        """What was gathered is produced, in this time."""
        self._took_s += seconds

    def over(self) -> None:
        """What was gathered is committed, or dropped."""
        self._last_took_s, self._took_s = self._took_s, 0.0
        self._first_at = None
        self.records = 0
        self._bytes = 0

    # --- the next fetch --------------------------------------------------------------------------------

    def asks_for(self, *, ahead: bool) -> int:
        """How many records; ``ahead``: while the last transaction commits."""
        limit = self._limits.max_records
        if ahead:
            limit = min(limit, MAX_AHEAD_RECORDS)
        return min(self.fetch_records, max(1, limit - self.records))

    def wait_s(self, now: float, commit_s: float) -> float | None:
        """How long for the first record; None if nothing is gathered, so that nothing is kept waiting."""
        if self._first_at is None:
            return None
        return min(IDLE_WAIT_S, max(0.0, self.fill_s(commit_s) - self.gathered_s(now)))

    @property
    def linger_s(self) -> float:
        """How long for more records: the longer, the less of the interval it takes to process them.

        The interval counts from the first record, so that one is not kept waiting for others.
        """
        if self._first_at is None:
            return _LEAST_LINGER_S
        spare_s = self._limits.interval_s - _SPARE_TIMES * self._last_took_s
        return min(IDLE_WAIT_S, max(_LEAST_LINGER_S, self.notice_s, spare_s))

    @property
    def notice_s(self) -> float:
        """How late it may be noticed that a commit has returned."""
        return _LINGER_SHARE * self._limits.interval_s

    # --- the end of a transaction ----------------------------------------------------------------------

    def fill_s(self, commit_s: float) -> float:
        """How long a transaction is filled: the interval less what the commit will take, which readers wait for too.

        While it is behind, its records have waited for longer in the input than that takes.
        """
        interval_s = self._limits.interval_s
        if self.behind:
            longest_s = max(interval_s, min(_MAX_STRETCH * interval_s, _SLOW_SHARE * self._limits.timeout_s))
            return max(interval_s, min(_BEHIND_COMMITS * commit_s, longest_s))
        return interval_s - min(commit_s, _MAX_COMMIT_SHARE * interval_s)

    @property
    def gathering(self) -> bool:
        """Whether a record of the transaction is here."""
        return self._first_at is not None

    def gathered_s(self, now: float) -> float:
        """For how many seconds the first record of the transaction has been here; 0 without one."""
        return 0.0 if self._first_at is None else now - self._first_at

    def due(self, now: float, commit_s: float) -> bool:
        """Whether the transaction being gathered has to end, by its time or size."""
        return self.full(now) or self.gathered_s(now) >= self.fill_s(commit_s)

    def full(self, now: float) -> bool:
        """Whether it takes no more records, by its size; or a transform took long of late, and none runs with it open."""
        return (
            now < self._nothing_open_until
            or self.records >= self._limits.max_records
            or self._bytes >= self._limits.max_bytes
        )

    def far_ahead(self, now: float, commit_s: float) -> bool:
        """Whether nothing more is transformed for the transaction after the one that is committing."""
        return (
            self.records >= MAX_AHEAD_RECORDS
            or self.full(now)
            or self.gathered_s(now) >= self.fill_s(commit_s) + _LATE_COMMIT_S
        )

    def late_at(self, began: float, commit_s: float) -> float:
        """When a transform that began then has taken so long that what is open is committed without waiting for it.

        It has an interval of its own, which :meth:`transformed` sees to that it does not need; so this is rare.
        """
        first_at = began if self._first_at is None else self._first_at
        late_at = max(first_at + self.fill_s(commit_s), began + self._limits.interval_s)
        return min(late_at, first_at + self._limits.timeout_s / 2)
