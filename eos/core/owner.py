"""ShardOwner: one owner of a shard: its input, its committer, and one ledger between them; what an error means, and a rebalance.

It has two faces: `Session`, where the caller fills a transaction in a block, and `Pipeline`, with which the built-in loop fills one
transaction while the one before it commits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from eos import retry
from eos.base.calls import Call
from eos.base.deadline import grace_over
from eos.core.committer import Committer
from eos.core.consumer import ShardConsumer
from eos.core.ledger import Ledger
from eos.core.membership import Membership
from eos.core.own_shard import own_shard
from eos.core.surroundings import Goal, Surroundings
from eos.core.tries import Tries
from eos.errors import (
    AbortableError,
    AbortTransaction,
    Action,
    EosError,
    FencedError,
    RebalancedError,
    ReopenError,
    UsageError,
)
from eos.events import CallRetried, Lag, Listener, SessionClosed, SessionOpened, Waiting, guarded
from eos.group.metadata import OffsetMetadata, OwnershipMode
from eos.home import Home
from eos.kafka.group_offsets import Committed
from eos.offsets import OffsetVector, Partition
from eos.records import InputBatch
from eos.settings import Settings

_OUTAGE_PAUSE_S = 1.0  # behind a question that was asked for longer
# Within this time of joining, a member without partitions may just not have got them yet. Later the group's offsets alone say
# whether all is processed: it may be a member too many.
_JOINING_S = 0.2


class ShardOwner:
    """Owns one shard. Its arguments and errors are those of `eos.Session`, and the surroundings that it is given.

    Attributes:
        shard: what it owns.
        ledger: how far each owned partition is.
        consumer: its input.
        committer: its transactions.
        is_open: between :meth:`open` and :meth:`close`.
        caught_up: whether the group has committed all that the input held at the beginning.
        left: what the group had stored of its partitions then.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        app: str,
        inputs: Sequence[str],
        outputs: Collection[str],
        partition: Partition | None = None,
        until_caught_up: bool = False,
        stop: threading.Event | None = None,
        listener: Listener,
        surroundings: Surroundings,
    ) -> None:
        self.shard = own_shard(settings, app, partition)
        self.outputs = frozenset(outputs)
        self.settings = settings
        self.until_caught_up = until_caught_up
        self.stopped = stop or threading.Event()
        self.listener = guarded(listener)
        self.name = self.shard.transactional_id
        self.ledger = Ledger(
            OffsetMetadata(OwnershipMode(settings.ownership.mode), str(self.shard), app=app),
            renew_after_s=settings.input.recommit_idle_after_s,
        )
        self.consumer = ShardConsumer(
            settings,
            inputs,
            group=self.shard.group,
            partitions=None if partition is None else [partition],
            ordinal=settings.ordinal,
            app=app,
            listener=self.listener,
            shard=self.name,
            surroundings=surroundings,
            hooks=self,
            ledger=self.ledger,
        )
        self._membership = Membership(
            settings, self.shard.group, self.consumer, listener=self.listener, shard=self.name
        )
        self._tries = Tries(
            settings.input.offline_timeout_s,
            lambda call, attempt, error: self.listener(CallRetried(self.name, call, attempt, str(error))),
        )
        writer = surroundings.destination.writer(settings, self.shard, listener=listener, ledger=self.ledger)
        writer.give_up(grace_over(self.stopped, settings.shutdown.grace_s))
        self.committer = Committer(writer, self.consumer, self.ledger, self._tries)
        self.committer.notes += surroundings.destination.notes(self.consumer)
        self.is_open = self.caught_up = False
        self.left: dict[Partition, Committed] = {}
        self._opened_at = 0.0
        self.home = Home.here
        self._make_goal = surroundings.catch_up
        self._goal: Goal | None = None

    # --- life --------------------------------------------------------------------------------------

    def open(self) -> None:
        """Fence every older owner of the shard and end what it left open; then read the committed offsets."""
        if self.is_open:
            raise UsageError("open(): the session is open already")
        with retry.given_up_when(self.stopped.is_set):
            self._open()

    def _open(self) -> None:
        began = time.monotonic()
        self.committer.writer.open()
        try:
            self.consumer.open()
            if self.until_caught_up:
                self._goal = self._make_goal(self.consumer.seat)
            self.is_open = True
            self._opened_at = time.monotonic()
            self.listener(SessionOpened(self.name, self._opened_at - began))
        except BaseException:
            self.is_open = False
            self.consumer.close()
            self.committer.close()
            raise

    def close(self, reason: str = "") -> None:
        """End what is open, and leave: a commit in flight is waited for, an open transaction aborted."""
        self.is_open = False
        try:
            self.committer.join_quietly()
            self.committer.abort(AbortTransaction("the session was closed"))
            if self._goal is not None:
                self._goal.close()
        finally:
            try:
                self.consumer.close()
            finally:
                self.committer.close()
                self.listener(SessionClosed(self.name, reason))

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to do: stopped, or caught up."""
        return self.stopped.is_set() or self.caught_up

    # --- input ---------------------------------------------------------------------------------------

    def fetch(self, max_records: int, timeout_s: float, linger_s: float) -> InputBatch:
        """The next input records. A rebalance inside ends the open transaction; what was handed out before is void then."""
        with retry.given_up_when(self.stopped.is_set):  # what a rebalance asks
            return self._membership.fetch(max_records, timeout_s, linger_s)

    @property
    def has_read_all(self) -> bool:
        """Whether every owned partition has been read to its last stable offset since the last rewind, or as far as the run goes.

        The client says that a partition has ended when the broker has had nothing new for it for 500 ms (fetch.wait.max.ms).
        """
        ends = self._goal.ends if self._goal is not None else None
        return self.consumer.caught_up or (ends is not None and self.consumer.has_read_to(ends))

    def look_whether_caught_up(self) -> None:
        """If so, :attr:`caught_up`."""
        goal = self._goal
        if goal is None or not self._has_passed(goal.ends):
            return
        if not self.commit_offsets_alone(at_once=True):
            self.caught_up = goal.reached(self.ledger.committed)
            if self.caught_up:
                self.left = {p: one for p, one in self.ledger.stored.items() if one is not None}

    def _has_passed(self, ends: OffsetVector) -> bool:
        """Whether nothing is left of the input up to these offsets that this owner has; it is a reason to ask, no proof."""
        if not self.consumer.assignment:
            return time.monotonic() - self._opened_at > _JOINING_S
        return self.consumer.caught_up or self.consumer.has_read_to(ends, passed_markers=True)

    def lag(self) -> Lag:
        """How far this owner's commits are behind, as of its last fetches."""
        return self.consumer.lag(of_commits=True)

    # --- offsets without records -----------------------------------------------------------------------

    def commit_offsets_alone(self, *, at_once: bool = False) -> bool:
        """Commit offsets that belong to no record, if there are any and nothing else goes on.

        These are the due ones, and every few seconds positions that have moved past control records and aborted records:
        once such records expire, an offset before them would look as if input had been deleted unprocessed.

        Args:
            at_once: do not wait for these seconds.

        Returns:
            Whether it committed any.
        """
        # The positions also count records that were handed out and are in no transaction yet; and with a rewind due those
        # of a fetch that was cut short, while what is ours is known after the next fetch.
        if not self.committer.idle or self.consumer.rewind_due or self.ledger.outstanding:
            return False
        offsets = self.ledger.due()
        if at_once or self.ledger.time_for_passed_markers():
            committed, positions = self.ledger.committed, self.consumer.positions()
            offsets = offsets.merged(
                positions.only(p for p, offset in positions.items() if offset > committed.get(p, offset))
            )
        if offsets:
            self.committer.commit_only(offsets)
        return bool(offsets)

    # --- errors ----------------------------------------------------------------------------------------

    def go_on_after(self, error: EosError) -> None:
        """Abort, reopen and rewind as far as the error asks for, and wait before the next try.

        Raises:
            EosError: the error, if no further try helps against it or there were as many as the policy allows. Instead of
                it FencedError, if the reopen shows that another owner has the shard.
        """
        with retry.given_up_when(self.stopped.is_set):
            self._go_on_after(error)

    def _go_on_after(self, error: EosError) -> None:
        try:
            self.recover(error)
        except EosError as another:
            error = another
        if self._tries.sits_out(error):
            self.listener(Waiting(self.name, Call.BEGIN, str(error)))
            if self.stopped.wait(_OUTAGE_PAUSE_S):
                return
            # A member that does not poll is dropped from its group. A rewind is due, so this brings no records. In a rebalance it
            # asks the cluster too, and what it got no answer to is asked again by the next fetch.
            try:
                self.fetch(1, 0.0, 0.0)
            except EosError as another:
                if another.action is Action.STOP and not self._tries.sits_out(another):
                    raise
            return
        self.stopped.wait(self._tries.failed(error))

    def recover(self, error: EosError) -> None:
        """Abort, reopen and rewind as far as the error asks for. Nothing is counted; only a commit in flight is waited for.

        Raises:
            FencedError: the comparison after the reopen shows another owner.
            RebalancedError: a partition is assigned to another member; the next fetch calls back. Continue with that fetch.
            EosError: the error itself, where nothing can be gone on from.
        """
        goes_on = error.action is Action.STOP and self._tries.sits_out(error)
        if error.action is Action.STOP and not goes_on:
            raise error
        self.committer.join_quietly()
        self.committer.abort(error)
        # In the next fetch, which also raises if the assignment is gone. Before the reopen, which may detect that too:
        # nothing is committed again before that fetch.
        self.consumer.rewind_later()
        if goes_on:
            raise error
        self.committer.reopen_if_over()
        self.committer.let_go()

    @contextmanager
    def naming_rivals(self) -> Iterator[None]:
        """After a fence of this owner's producer the error says who is in the group."""
        try:
            yield
        except FencedError as error:
            if self.committer.fenced:
                self._membership.name_rivals(error)
            raise

    # --- rebalances; called by the consumer from inside fetch -----------------------------------------

    def before_assigned(self, partitions: Sequence[Partition]) -> None:
        """Settle an unanswered commit first: the committed offsets can't be read while it is pending on them."""
        self.committer.group_changes()
        self.committer.join_quietly()
        self.committer.reopen_if_over()
        self.committer.writer.claim(partitions)

    def on_assigned(self, stored: Mapping[Partition, Committed | None]) -> None:
        self._tries.answered()
        for note in self.committer.notes:
            note.taken_over(stored)

    def on_revoked(self, partitions: Sequence[Partition]) -> None:
        """End the transaction before the partitions go: their output without their offsets would be duplicates.

        Kafka accepts offsets of a partition that another live member owns, so no fence would prevent it.
        """
        committer = self.committer
        try:
            committer.join()
            withdrawn = {p for note in committer.notes for p in note.withdraw(partitions)}
            self.ledger.make_due(withdrawn)
            if committer.filling is not None:
                committer.commit()
            elif withdrawn:
                committer.commit_only(self.ledger.committed.only(withdrawn))
        except (AbortableError, ReopenError) as error:
            committer.abort(error)
            # An abort that fails too leaves the commit unsettled, whatever its error was called: it may have happened.
            committer.reopen_if_over()
        except BaseException as error:
            # A signal handler's, in front of the commit: left open, the transaction would hold what others process.
            committer.abort(error)
            raise
        finally:
            self._forget(partitions)

    def on_lost(self, partitions: Sequence[Partition]) -> None:
        """Another member may own them already: abort only."""
        self.committer.join_quietly()
        self.committer.abort(RebalancedError("partitions were lost"))
        self._forget(partitions)

    def _forget(self, partitions: Sequence[Partition]) -> None:
        for note in self.committer.notes:
            note.forget(partitions)
