"""Assignment: the partitions that a consumer owns, and the rebalance callbacks that change them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from eos.core.ledger import Ledger
from eos.core.surroundings import Guard, Seat, TakeOver
from eos.errors import EosError
from eos.events import PartitionsAssigned, PartitionsRevoked
from eos.group.committed import committed_offsets, fresh_reader, partitions_of
from eos.group.topics import TopicIds, ids_of_owned, stored_topic_ids
from eos.kafka.consumer import ConsumerClient
from eos.kafka.group_offsets import Committed, stored_positions
from eos.offsets import OffsetVector, Partition


class RebalanceHooks(Protocol):
    """What an owner does when partitions are assigned, revoked or lost; called from inside a fetch."""

    def before_assigned(self, partitions: Sequence[Partition]) -> None: ...
    def on_assigned(self, stored: Mapping[Partition, Committed | None]) -> None: ...
    def on_revoked(self, partitions: Sequence[Partition]) -> None: ...
    def on_lost(self, partitions: Sequence[Partition]) -> None: ...


class Assignment:
    """Takes partitions over and gives them up.

    The client calls :meth:`assigned`, :meth:`revoked` and :meth:`lost` from inside consume. An exception must not cross the
    client's callback, so they keep it for :meth:`raise_error`.

    Args:
        seat: the consumer's.
        guards: asked before partitions are owned.
        ledger: the owner's.
        client: returns the consumer's client.
        hooks: an owner that must act before partitions go.
    """

    def __init__(
        self,
        seat: Seat,
        guards: Sequence[Guard],
        ledger: Ledger,
        client: Callable[[], ConsumerClient],
        hooks: RebalanceHooks | None,
    ) -> None:
        self._seat = seat
        self._guards = guards
        self._ledger = ledger
        self._client = client
        self._hooks = hooks
        self._topic_ids = TopicIds(seat.settings)
        self._not_taken_over: set[Partition] = set()  # assigned, but taking them over failed: not read yet
        self._error: BaseException | None = None
        # The committed offsets that the owner found on its way into the group.
        self.entered: Mapping[Partition, Committed] = {}

    # --- rebalance callbacks; called by the client inside consume; must not raise -----------------------

    def assigned(self, partitions: Sequence[Partition]) -> None:
        try:
            self._acquire(partitions)
        except BaseException as error:  # noqa: BLE001 - an exception must not cross the client's callback
            self._error = error

    def revoked(self, partitions: Sequence[Partition]) -> None:
        self._give_up(partitions, lost=False)

    def lost(self, partitions: Sequence[Partition]) -> None:
        self._give_up(partitions, lost=True)

    # --- outside of the callbacks --------------------------------------------------------------------

    def clear_error(self) -> None:
        """Forget the error of a callback: it belongs to an earlier fetch or membership."""
        self._error = None

    def raise_error(self) -> None:
        """Raise what a callback has raised, if it has."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def lose_all(self) -> None:
        """The membership is over: all partitions are lost."""
        self._not_taken_over.clear()  # the next membership gets its own assignment
        if owned := self._ledger.committed.keys():
            self._give_up(sorted(owned), lost=True, called_back=False)
            self.raise_error()

    def repair(self) -> None:
        """Take over what the client has been assigned, and give up what it has not, after a callback that failed.

        Either the callback raised, or the exception of a signal handler left it before its first line. Then confluent-kafka
        has assigned the partitions itself, or taken them back: no commit was settled, and no offset was read.
        """
        client, owned = self._client(), self._ledger.committed.keys()
        assigned = client.assignment()
        if gone := sorted(owned - assigned):
            self._give_up(gone, lost=True, called_back=False)
        if left := sorted(self._not_taken_over | (assigned - self._ledger.committed.keys())):
            if by_itself := sorted(assigned.intersection(left)):
                client.incremental_unassign(by_itself)
            self._acquire(left)

    def take_over(self, partitions: Sequence[Partition]) -> None:
        """Find out what is to be known of partitions, ask the guards, and own the partitions."""
        if self._hooks is not None:
            self._hooks.before_assigned(partitions)

        found = self._find_out(partitions)
        for guard in self._guards:
            guard(self._seat.settings, found)
        stored = {p: found.stored.get(p) for p in partitions}
        self._ledger.taken_over(stored, found.positions)
        if self._hooks is not None:
            self._hooks.on_assigned(stored)
        self._seat.listener(PartitionsAssigned(self._seat.shard, found.positions))

    # --- inside ------------------------------------------------------------------------------------

    def _acquire(self, partitions: Sequence[Partition]) -> None:
        """Begin to read partitions that the group has assigned; if it fails, the next fetch tries again."""
        self._not_taken_over.update(partitions)
        try:
            self.take_over(partitions)
            self._client().incremental_assign(self._ledger.committed.only(partitions))
        except BaseException:
            self._ledger.lose(partitions)
            raise
        self._not_taken_over.difference_update(partitions)

    def _give_up(self, partitions: Sequence[Partition], *, lost: bool, called_back: bool = True) -> None:
        try:
            if self._hooks is not None:
                (self._hooks.on_lost if lost else self._hooks.on_revoked)(partitions)
        except BaseException as error:  # noqa: BLE001 - as above
            self._error = error
        self._not_taken_over.difference_update(partitions)
        # The running fetch may hold records of these partitions already: everything unprocessed is read again.
        (self._ledger.lose if lost else self._ledger.revoked)(partitions)
        self._seat.listener(PartitionsRevoked(self._seat.shard, tuple(partitions), lost))
        try:
            client = self._client()
            # Only those that the client reads, it refuses others; and if none, an empty list: a callback has to give up something.
            read = client.assignment().intersection(partitions)
            if read or called_back:
                client.incremental_unassign(sorted(read))
        except EosError as error:
            self._error = self._error or error

    def _find_out(self, partitions: Sequence[Partition]) -> TakeOver:
        seat = self._seat
        # First the ids: see eos.group.topics. An offset that is read later belongs to that topic, or its commit is refused.
        topics = {partition.topic for partition in partitions}
        asked = self._topic_ids.of(topics, timeout_s=seat.settings.open_timeout_s)
        stored = self._stored(partitions)
        committed = {p: stored[p] for p in partitions if p in stored}
        known_ids = ids_of_owned(self._ledger.committed)
        expected = {(t, i) for t, i in stored_topic_ids(committed) | known_ids if t in topics}
        topic_ids = self._topic_ids.agreed(expected, asked, timeout_s=seat.settings.open_timeout_s)
        new = dict.fromkeys((p for p in partitions if p not in stored), 0)
        return TakeOver(
            group=seat.group,
            mode=seat.mode,
            app=seat.app,
            partitions=partitions,
            stored=stored,
            positions=stored_positions(committed).merged(OffsetVector(new, topic_ids=topic_ids)),
            topic_ids=topic_ids,
            known_ids=known_ids,
            entered=self.entered,
        )

    def _stored(self, partitions: Sequence[Partition]) -> dict[Partition, Committed]:
        """What is stored for them; where one has nothing, for all partitions of its topic: they tell whether it is new."""
        store, timeout_s = self._seat.destination.store(self._client()), self._seat.settings.open_timeout_s
        stored = committed_offsets(store, partitions, timeout_s=timeout_s)
        if topics := {partition.topic for partition in partitions if partition not in stored}:
            # Not asked of the consumer: inside a callback of its own that would end the process (DESIGN.md, 68).
            with fresh_reader(self._seat.settings, self._seat.group, stable=True) as reader:
                known = partitions_of(reader, sorted(topics), timeout_s=timeout_s)
            stored = committed_offsets(store, known, timeout_s=timeout_s) | stored
        return stored
