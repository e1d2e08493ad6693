"""Search: what an owner does to find a record that ends its process, and to get past it; the rules are in `suspects`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from eos.core.owner import ShardOwner
from eos.crashes.alone import ALONE
from eos.crashes.suspects import FEW_RECORDS, Suspects
from eos.errors import AbortTransaction, EosError
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition
from eos.records import InputBatch

# For an attempt to be taken back by an owner that has given up a commit: a parent kills a worker 5 s after its grace period.
_WITHDRAW_S = 3.0
_OTHERS_S = 0.05  # between two looks whether all other sessions of the process wait


class Search:
    """An owner's search; it costs nothing where nothing points to a death."""

    def __init__(self, owner: ShardOwner) -> None:
        self._owner = owner
        self._suspects = Suspects(
            owner.settings.poison.max_deaths,
            owner.ledger.metadata.owner,
            replaces_dead=owner.settings.replaces_dead,
        )
        owner.ledger.attempt_at = self._suspects.attempt_at
        owner.committer.notes.append(self)
        # The only partitions that are read, while others wait; empty: none waits; None: partitions have come since.
        self._read_alone: frozenset[Partition] | None = frozenset()

    def close(self) -> None:
        """The owner ends in order: that it has taken input up was no attempt. What was read to its end has no attempts left."""
        owner = self._owner
        try:
            owner.committer.join_quietly()
            if not self._suspects:
                return
            with suppress(EosError):  # then it counts as one
                owner.committer.abort(AbortTransaction("the session was closed"))
                owner.committer.writer.hurry(_WITHDRAW_S)
                owner.committer.reopen_if_over()  # first: an unanswered commit may have moved the offsets
                mine = owner.consumer.still_assigned
                said = self._suspects.finished(mine if owner.caught_up else ()) | self._suspects.withdraw(
                    mine
                )
                if said:
                    owner.committer.commit_only(owner.ledger.committed.only(said))
        finally:
            ALONE.release(self)

    # --- around the transform -------------------------------------------------------------------------

    @property
    def few_at_a_time(self) -> bool:
        """Whether each fetch is to be a transaction, with nothing transformed ahead of its commit."""
        return self._suspects.few_at_a_time

    def fetch(self, max_records: int, timeout_s: float, linger_s: float) -> InputBatch:
        """As of the owner; a few records, one, or none while another session searches."""
        owner, suspects, nothing = self._owner, self._suspects, InputBatch([])
        if suspects:
            max_records = self._few_of(max_records)
        if self._read_alone != suspects.alone and not self._let_others_wait():
            return nothing
        if not ALONE.begin(self):
            owner.stopped.wait(timeout_s)
            return nothing
        fetched = owner.fetch(max_records, timeout_s, linger_s)
        if not fetched:
            ALONE.end(self)
        if self._read_alone != suspects.alone:
            owner.consumer.rewind_later()  # partitions have come or gone in this fetch, whose records it may hold
            return nothing
        if not fetched and suspects and self._at_rest:
            owner.ledger.make_due(suspects.finished(owner.consumer.at_end))
        return fetched

    def announce(self, batch: InputBatch) -> bool:
        """Commit that the records of a batch are attempted, where that is to be said; see `eos.core.pipeline`."""
        if not self._suspects:
            return True
        partition, at = _first_partition(batch), OffsetVector()
        if partition in self._suspects.alone:
            # Nothing that can be read stands between the committed offset and the first record.
            ends = self._owner.consumer.taken(batch).ends
            epoch = ends.epoch_of(partition)
            offset = batch.offsets[0]
            at = OffsetVector(
                {partition: offset}, {} if epoch is None else {partition: epoch}, ends.topic_ids
            )
            self._suspects.met_alone(partition, offset)
        due = self._suspects.unannounced(partition)
        if not due:
            return True
        if self._owner.stopped.wait(self._suspects.pause_s(due)):
            self._owner.consumer.rewind_later()
            return False
        self._owner.committer.join()
        self._suspects.announce(due)
        try:
            self._commit_what_is_said(due, at)
        except BaseException:
            self._suspects.announce(due, announced=False)
            raise
        return True

    def deaths(self, batch: InputBatch) -> int:
        """How many processes in a row died with the record that was fetched alone, if the policy is to decide on it; else 0."""
        return self._suspects.deaths(_first_partition(batch)) if self._suspects.alone else 0

    def returned(self) -> None:
        """The records of the last fetch were transformed: commit that they are not in work any more, where that was announced.

        Before anything is produced, so that no wait for its commit looks like a death with them.
        """
        if self._suspects and (over := self._suspects.returned()):
            self._owner.committer.join()
            self._commit_what_is_said(over, OffsetVector())

    # --- what committed offsets say; called by the owner ------------------------------------------------

    def taken_over(self, stored: Mapping[Partition, Committed | None]) -> None:
        """Look at the attempts that these offsets announce."""
        self._suspects.taken_over(stored)
        if self._read_alone:
            self._read_alone = None

    def begins(self) -> None:
        """Nothing is said of a transaction that is open."""

    def committed(self, stored: Mapping[Partition, Committed | None]) -> Collection[Partition]:
        """These offsets were committed."""
        self._suspects.committed(stored)
        return ()

    def withdraw(self, partitions: Iterable[Partition]) -> Collection[Partition]:
        """Take back what was announced of these partitions."""
        return self._suspects.withdraw(partitions)

    def forget(self, partitions: Iterable[Partition]) -> None:
        """These partitions are gone."""
        self._suspects.forget(partitions)

    # --- inside ------------------------------------------------------------------------------------------

    @property
    def _at_rest(self) -> bool:
        """Whether nothing is open, in flight, or handed out and not committed."""
        return self._owner.committer.idle and not self._owner.ledger.outstanding

    def _commit_what_is_said(self, partitions: frozenset[Partition], at: OffsetVector) -> None:
        owner = self._owner
        owner.ledger.make_due(partitions)
        owner.committer.commit_soon()
        owner.committer.join()
        if left := owner.ledger.still_due(partitions):  # no transaction was open
            owner.committer.commit_only(owner.ledger.committed.merged(at).only(left))

    def _few_of(self, records: int) -> int:
        self._suspects.look()
        if self._suspects.alone:
            return 1
        return min(records, FEW_RECORDS) if self._suspects.few_at_a_time else records

    def _let_others_wait(self) -> bool:
        """Read the partition whose records are taken alone, or all; not before what is open, here or elsewhere, is done."""
        if not self._at_rest:
            return False
        ALONE.end(self)
        if not self._suspects.alone:
            ALONE.release(self)
        elif not ALONE.claim(self):
            self._suspects.look_on()
            self._owner.stopped.wait(_OTHERS_S)
            return False
        self._read_alone = self._suspects.alone
        self._owner.consumer.read_only(self._read_alone)
        return True


def _first_partition(batch: InputBatch) -> Partition:
    return Partition(batch.topics[0], batch.partitions[0])
