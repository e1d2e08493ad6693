"""Pipeline: fills one transaction of an owner while the one before it commits in a helper thread; for the built-in loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol, Self

from eos.core.fetched import FetchedBatch, Reading
from eos.core.overtime import Overtime
from eos.core.owner import ShardOwner
from eos.core.poison_row import PoisonRow
from eos.errors import UsageError, reason_of
from eos.events import InputTaken
from eos.home import end_elsewhere
from eos.records import InputBatch, OutputBatch

# How often code of the caller is checked for running late: well within a transaction's timeout, and no more than needed.
_LOOK_S = 1.0
_LOOK_SHARE = 0.1  # of transaction.timeout_ms


class CrashSearch(Protocol):
    """Looks for a record that ends its process; see `eos.crashes`."""

    @property
    def few_at_a_time(self) -> bool:
        """Whether each fetch is to be a transaction, with nothing transformed ahead of its commit."""
        ...

    def fetch(self, max_records: int, timeout_s: float, linger_s: float) -> InputBatch:
        """As of the owner, with fewer records, or none, where the search asks for that."""
        ...

    def announce(self, batch: InputBatch) -> bool:
        """Before the records of a batch are transformed: commit that they are attempted, where that is to be said.

        What is open is committed with it. Returns whether to go on; if not, the session ends, or rewinds.
        """
        ...

    def deaths(self, batch: InputBatch) -> int:
        """How many processes in a row died with the record that was fetched alone, if the policy is to decide on it; else 0."""
        ...

    def returned(self) -> None:
        """The records of the last fetch were transformed: commit that they are not in work any more, where that was announced."""
        ...

    def close(self) -> None:
        """The owner ends in order: that it has taken input up was no attempt."""
        ...


class Work(NamedTuple):
    """Input that was transformed: its outputs, how many records it was, how many at its end were poison in a row, and which."""

    outputs: Sequence[OutputBatch]
    records_in: int
    in_a_row: int
    taken: InputTaken
    reading: Reading | None  # void with it; and kept, as long as this is


class Pipeline:
    """The loop's face of an owner: fetch, announce, stage, produce; the owner commits and joins.

    Input is fetched and transformed while the last transaction commits; nothing of the next one is produced before that
    commit has been joined. Errors are raised; :meth:`ShardOwner.go_on_after` decides what they mean.

    Args:
        owner: not yet open.
        search: makes the search for a record that ends its process.
    """

    def __init__(self, owner: ShardOwner, search: Callable[[ShardOwner], CrashSearch]) -> None:
        self.owner = owner
        self.crashes = search(owner)
        self._overtime = Overtime(min(_LOOK_S, _LOOK_SHARE * owner.settings.transaction.timeout_s))
        self._work: list[Work] = []
        self._poison_row = PoisonRow()
        owner.committer.notes.append(self._poison_row)
        owner.ledger.in_a_row = self._poison_row.says

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.close("" if error is None else reason_of(error))

    def open(self) -> None:
        """Open the owner."""
        self.owner.open()

    def close(self, reason: str = "") -> None:
        """Leave in order: the commit in flight is waited for, an unfinished transaction aborted."""
        try:
            self.crashes.close()
        finally:
            try:
                self.owner.close(reason)
            finally:
                self._overtime.end()

    @property
    def idle(self) -> bool:
        """Whether nothing is staged, open or in flight."""
        return self.owner.committer.idle and not self._staged

    @property
    def in_a_row(self) -> int:
        """How many records in a row were poison right before what is fetched next."""
        if staged := self._staged:
            return staged[-1].in_a_row
        return self._poison_row.at_commit if self.owner.committer.idle else self._poison_row.produced

    def fetch(
        self, max_records: int | None = None, timeout_s: float = 0.0, linger_s: float = 0.0
    ) -> InputBatch:
        """The next input records. A rebalance inside ends the open transaction and drops what is staged."""
        max_records = max_records or self.owner.settings.input.fetch_records
        return self.crashes.fetch(max_records, timeout_s, linger_s)

    @contextmanager
    def committing_at(self, at: float) -> Iterator[None]:
        """A block of the caller's code. If it still runs at this time.monotonic(), what is open is committed beside it.

        A transaction that stays open as long as that code runs would expire. Afterwards :attr:`Committer.committing`
        says whether that was so; the commit is joined like any other.

        Raises:
            RebalancedError: as :meth:`Committer.commit_soon`, at the beginning.
        """
        commit = self.owner.committer.prepared_commit()
        try:
            if commit is None:
                yield
            else:
                with self._overtime.block(at, commit):
                    yield
        finally:
            end_elsewhere(self.owner.home)

    def stage(self, batch: InputBatch, outputs: Sequence[OutputBatch], in_a_row: int = 0) -> None:
        """Keep what was made of a batch for the next :meth:`produce`.

        Raises:
            RebalancedError: their partitions are gone already.
        """
        taken = self.owner.consumer.taken(batch)
        reading = batch.reading if isinstance(batch, FetchedBatch) else None
        self._work.append(Work(outputs, len(batch), in_a_row, taken, reading))

    def produce(self) -> None:
        """Produce what is staged, in a transaction that is begun if none is open.

        Raises:
            UsageError: the last commit was not joined.
        """
        owner = self.owner
        if owner.committer.committing:
            raise UsageError(
                "nothing of the next transaction is produced before the last commit has returned"
            )
        if not self._staged:
            return
        transaction = owner.committer.filling or owner.committer.begin()
        staged, self._work = self._staged, []
        try:
            for work in staged:
                owner.listener(work.taken)
                transaction.add(work.outputs)
                transaction.records_in += work.records_in
                self._poison_row.produced = work.in_a_row
                owner.ledger.claim(work.taken.ends)
        except BaseException as error:
            owner.committer.abort(error)
            raise

    @property
    def _staged(self) -> list[Work]:
        """What is not void since it was fetched: a rewind, or a rebalance, drops all of it."""
        if self._work and (reading := self.owner.ledger.reading) is not self._work[0].reading:
            self._work = [work for work in self._work if work.reading is reading]
        return self._work
