"""Assignment: the partitions that a consumer owns, and the rebalance callbacks that change them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from eos.commands import suggested
from eos.errors import EosError, OffsetGapError
from eos.events import Listener, PartitionsAssigned, PartitionsRevoked
from eos.group.committed import (
    committed_offsets,
    fresh_reader,
    offsets_at,
    partitions_of,
    refuse_truncated,
)
from eos.group.expiry import refuse_expired
from eos.group.guards import refuse_foreign
from eos.group.metadata import OwnershipMode
from eos.group.topic_ids import refuse_recreated, stored_topic_ids
from eos.kafka.admin import Mark
from eos.kafka.consumer import ConsumerClient
from eos.kafka.group_offsets import Committed, stored_positions
from eos.offsets import OffsetVector, Partition
from eos.session.deleted_input import naming_what_is_gone
from eos.session.handed_out import HandedOut
from eos.session.input_topics import InputTopics
from eos.settings import Settings


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
        settings: how to reach the cluster, ownership.
        group: the consumer group.
        app: the job's name; None: offsets of every app are taken over.
        topics: the input topics.
        handed_out: the offsets of the owned partitions.
        client: returns the consumer's client.
        listener: called with each event; ``shard`` is the name in the events.
        hooks: an owner that must act before partitions go.
    """

    def __init__(
        self,
        settings: Settings,
        group: str,
        *,
        app: str | None,
        topics: InputTopics,
        handed_out: HandedOut,
        client: Callable[[], ConsumerClient],
        listener: Listener,
        shard: str,
        hooks: RebalanceHooks | None,
    ) -> None:
        self._settings = settings
        self._group = group
        self._app = app
        self._topics = topics
        self._handed_out = handed_out
        self._client = client
        self._listener = listener
        self._shard = shard
        self._hooks = hooks
        self._not_taken_over: set[Partition] = set()  # assigned, but taking them over failed: not read yet
        self._error: BaseException | None = None

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
        if owned := self._handed_out.committed.keys():
            self._give_up(sorted(owned), lost=True, called_back=False)
            self.raise_error()

    def repair(self) -> None:
        """Take over what the client has been assigned, and give up what it has not, after a callback that failed.

        Either the callback raised, or the exception of a signal handler left it before its first line. Then confluent-kafka
        has assigned the partitions itself, or taken them back: no commit was settled, and no offset was read.
        """
        client, owned = self._client(), self._handed_out.committed.keys()
        assigned = client.assignment()
        if gone := sorted(owned - assigned):
            self._give_up(gone, lost=True, called_back=False)
        if left := sorted(self._not_taken_over | (assigned - self._handed_out.committed.keys())):
            if by_itself := sorted(assigned.intersection(left)):
                client.incremental_unassign(by_itself)
            self._acquire(left)

    def take_over(self, partitions: Sequence[Partition]) -> None:
        """Read the committed offsets of partitions, check them, and own the partitions."""
        if self._hooks is not None:
            self._hooks.before_assigned(partitions)

        # First the ids: see eos.group.topic_ids. An offset that is read later belongs to that topic, or its commit is refused.
        topic_ids = self._topics.ids_of({partition.topic for partition in partitions})
        committed = self._committed(partitions)
        refuse_recreated({*stored_topic_ids(committed), *self.known_topic_ids()}, topic_ids)
        self.refuse_foreign(committed)
        stored = {p: committed.get(p) for p in partitions}
        new = [p for p, at in stored.items() if at is None]
        self._refuse_deleted(new)
        positions = stored_positions(committed).merged(
            OffsetVector(dict.fromkeys(new, 0), topic_ids=topic_ids)
        )
        try:
            refuse_truncated(self._settings, self._group, positions, timeout_s=self._settings.open_timeout_s)
        except OffsetGapError as error:
            raise naming_what_is_gone(error, self._settings, positions) from error
        self._handed_out.own(positions)
        if self._hooks is not None:
            self._hooks.on_assigned(stored)
        self._listener(PartitionsAssigned(self._shard, positions))

    def refuse_foreign(self, stored: Mapping[Partition, Committed]) -> None:
        """Refuse offsets of another app or mode of ownership; see `eos.group.guards`."""
        mode = OwnershipMode(self._settings.ownership.mode)
        refuse_foreign(self._settings, self._group, stored, mode, self._app)

    def known_topic_ids(self) -> set[tuple[str, str]]:
        """(topic, id) of the topics that partitions are owned of."""
        committed = self._handed_out.committed
        owned = {partition.topic for partition in committed}
        return {(topic, topic_id) for topic, topic_id in committed.topic_ids.items() if topic in owned}

    # --- inside ------------------------------------------------------------------------------------

    def _acquire(self, partitions: Sequence[Partition]) -> None:
        """Begin to read partitions that the group has assigned; if it fails, the next fetch tries again."""
        self._not_taken_over.update(partitions)
        try:
            self.take_over(partitions)
            self._client().incremental_assign(self._handed_out.committed.only(partitions))
        except BaseException:
            self._handed_out.disown(partitions)
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
        self._handed_out.disown(partitions)
        self._listener(PartitionsRevoked(self._shard, tuple(partitions), lost))
        try:
            client = self._client()
            # Only those that the client reads, it refuses others; and if none, an empty list: a callback has to give up something.
            read = client.assignment().intersection(partitions)
            if read or called_back:
                client.incremental_unassign(sorted(read))
        except EosError as error:
            self._error = self._error or error

    def _committed(self, partitions: Sequence[Partition]) -> dict[Partition, Committed]:
        """The committed offsets; one without an offset is new to its topic, by what is stored for the topic's others."""
        client, timeout_s = self._client(), self._settings.open_timeout_s
        committed = committed_offsets(client, partitions, timeout_s=timeout_s)
        if not (missing := [p for p in partitions if p not in committed]):
            return committed
        topics = {partition.topic for partition in missing}
        # Not asked of the consumer: inside a callback of its own that would end the process (DESIGN.md, 68).
        with fresh_reader(self._settings, self._group, stable=True) as reader:
            known = partitions_of(reader, sorted(topics), timeout_s=timeout_s)
        stored = committed_offsets(client, known, timeout_s=timeout_s)
        refuse_expired(self._settings, missing, stored, client)
        return committed | {p: stored[p] for p in missing if p in stored}

    def _refuse_deleted(self, new: Sequence[Partition]) -> None:
        """A partition without an offset in a topic that was started before is new: it is read from offset 0."""
        for partition, beginning in offsets_at(self._settings, Mark.START, new).items():
            if beginning > 0:
                raise OffsetGapError(
                    f"{partition}: it is new to the group {self._group!r}, and its log begins at {beginning}: input was deleted "
                    "(retention, DeleteRecords) before it was processed. Nothing is skipped silently. Fix: to go on without it, "
                    "set the offset while the job is stopped: "
                    + suggested(
                        "offsets set", "--to", f"{partition.topic}:{partition.number}@{beginning}", job=True
                    )
                )
