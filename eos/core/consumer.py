"""ShardConsumer: a shard's input, only committed records, from positions that are never reset silently."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from eos.base.calls import Call
from eos.base.opened import Opened
from eos.core.assignment import Assignment, RebalanceHooks
from eos.core.fetched import FetchedBatch
from eos.core.ledger import Ledger
from eos.core.surroundings import Seat, Surroundings, Watch
from eos.errors import OffsetGapError, RebalancedError, RetriableError, UsageError
from eos.events import (
    InputTaken,
    Lag,
    Listener,
    Rewound,
    Waiting,
    ignore_event,
)
from eos.group.deleted_input import naming_what_is_gone
from eos.group.metadata import OffsetMetadata
from eos.group.topics import may_be_of_another
from eos.job import checked_topics
from eos.kafka.config import QUICKLY, consumer_config
from eos.kafka.consumer import ConsumerClient, Fetched
from eos.kafka.group_offsets import Committed, GroupMetadata
from eos.offsets import OffsetVector, Partition
from eos.records import InputBatch
from eos.settings import Settings

_SEEK_S = 5.0
_SEEK_PAUSE_S = 0.02
_ERROR_PAUSE_S = 0.2
_FEW_PARTITIONS = 32  # whose positions are had sooner than it is known which of them a fetch has moved
_NO_RECORDS = InputBatch([])


class ShardConsumer(Opened):
    """Reads input topics by group (subscribe) or the given partitions (assign), for a session or for reading alone.

    Arguments and errors are those of :class:`eos.ReadCommittedConsumer`, and:

    Args:
        ordinal: this instance's number, for static membership.
        app: the job's name: first part of the transactional.id under which a start policy is applied; offsets that another
            app has committed are refused. Not given: "consumer", and any app's offsets are taken.
        shard: the name in the events.
        surroundings: its way into the group, guards and watches.
        hooks: an owner that must act before partitions go.
        ledger: the owner's; by default one of its own.
    """

    def __init__(
        self,
        settings: Settings,
        topics: Sequence[str],
        *,
        group: str,
        partitions: Sequence[Partition] | None = None,
        ordinal: int | None = None,
        app: str | None = None,
        listener: Listener = ignore_event,
        shard: str = "",
        surroundings: Surroundings,
        hooks: RebalanceHooks | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.seat = Seat(
            settings=settings,
            topics=checked_topics("topics", topics),
            group=group,
            given=None if partitions is None else tuple(partitions),
            app=app,
            shard=shard or group,
            listener=listener,
            destination=surroundings.destination,
        )
        self._surroundings = surroundings
        self._ordinal = ordinal
        self._client: ConsumerClient | None = None
        self._member: dict[str, Any] = {}  # how this member joins
        self._name: str | None = None  # the one that it joins under at first
        self._watches: list[Watch] = []
        self._ledger = ledger or Ledger(OffsetMetadata(self.seat.mode, self.seat.shard))
        # In a fetch, or an exception has left one: the client's positions have moved, and no records were returned.
        self._polling = False
        self._seeking_since: float | None = None
        self._assignment = Assignment(
            self.seat, surroundings.guards, self._ledger, self._require_client, hooks
        )

    # --- life --------------------------------------------------------------------------------------

    def open(self) -> None:
        """Check the group, apply the start policy if it has no offsets, and begin to read."""
        if self._client is not None:
            raise UsageError("open(): the consumer is open already")
        seat = self.seat
        config = consumer_config(seat.settings, seat.group, None)
        if seat.given is None:  # a client that only asks; the member is another one
            config |= QUICKLY
        client = ConsumerClient(config)
        try:
            partitions, self._assignment.entered = self._surroundings.enter(seat, client)
            if seat.given is None:
                self._member = consumer_config(seat.settings, seat.group, self._ordinal, partitions)
                self._name = self.instance_id
            self.seat = replace(seat, partitions=partitions, instance_id=self._name)
            self._watch()
            if seat.given is not None:
                self._client = client
                self._assignment.take_over(seat.given)
                client.assign(self._ledger.committed)
        except BaseException:
            self._client = None
            client.close()
            raise
        if seat.given is None:
            client.close()
            self._join()

    def close(self) -> None:
        """Stop reading; end the open transaction before.

        A dynamic member leaves the group, a static one keeps its partitions until its session times out.
        """
        client, self._client = self._client, None
        if client is not None:
            # Rebalances are served inside close(): without a client an assignment is not taken up any more.
            client.close()

    @property
    def instance_id(self) -> str | None:
        """The group.instance.id under which the group knows this member; None of a dynamic one, or none."""
        found: str | None = self._member.get("group.instance.id")
        return found

    def lose_all(self) -> None:
        """The membership is over: all partitions are lost and not read any more. Raises what the owner's hook raises."""
        self._assignment.lose_all()

    def rejoin(self) -> None:
        """Join the group as a new member, after :meth:`lose_all`: librdkafka's instance is unusable after a fence."""
        self.close()
        self._assignment.clear_error()  # of the old membership, as is a seek that it refused
        self._seeking_since = None
        self._join()

    # --- reading -----------------------------------------------------------------------------------

    def fetch(self, max_records: int, timeout_s: float, linger_s: float = 0.0) -> InputBatch:
        """As :meth:`eos.ReadCommittedConsumer.fetch`. Partitions may come and go inside this call: see the hooks."""
        client = self._require_client()
        self._assignment.clear_error()
        if self._joined_anew(client):
            return _NO_RECORDS
        try:
            client.raise_event()
            if self._polling:
                self._ledger.rewind_due = True
                self._repair_assignment()
            self._polling = True
            fetched = client.consume(max_records, timeout_s, linger_s)
        except OffsetGapError as error:
            raise naming_what_is_gone(error, self.seat.settings, self._ledger.committed) from error
        except RetriableError as error:
            for watch in self._watches:
                watch.failed(error)
            time.sleep(min(_ERROR_PAUSE_S, timeout_s))
            return _NO_RECORDS
        finally:
            self._assignment.raise_error()
        for watch in self._watches:
            watch.consumed(client, len(fetched.messages) + len(fetched.ends), asked=max_records)
        self._look_at_topic_ids(client, fetched)
        if self._ledger.rewind_due:
            self._rewind_once()
            return _NO_RECORDS
        batch: InputBatch = _NO_RECORDS
        behind = self._ledger.next
        if fetched.messages or fetched.ends:
            moved = self._moved(fetched)
            positions = client.positions(moved, self._ledger.committed.topic_ids)
            batch, behind = self._ledger.batch(fetched.messages, positions)
            if not batch.has_offsets:
                # The group has fenced this member since the client gave out these records, and librdkafka has taken the
                # assignment back without a callback. Output made of them would be committed without their offsets.
                self._ledger.rewind_due = True
                return _NO_RECORDS
        self._ledger.at_end.update(fetched.ends)
        # From here to the caller nothing is called, so no signal handler can run (CPython checks for signals in calls and
        # loops only): records count as handed out if, and only if, the caller gets them.
        self._ledger.next = behind
        self._polling = False
        return batch

    @property
    def assignment(self) -> frozenset[Partition]:
        """The partitions owned now."""
        return frozenset(self._ledger.committed)

    @property
    def still_assigned(self) -> frozenset[Partition]:
        """Those of them that the client has too: after a fetch that an exception has left, callbacks may not have been served."""
        owned = self.assignment
        if not self._polling or self.seat.given is not None:
            return owned
        return owned & self._require_client().assignment()

    @property
    def caught_up(self) -> bool:
        """Whether every owned partition, if any, has been read to its LSO at least once since it was assigned."""
        return self._ledger.at_end >= self._ledger.committed.keys()

    def has_read_to(self, ends: OffsetVector, *, passed_markers: bool = False) -> bool:
        """Whether partitions are owned, and each was handed out up to its offset here, or read to its LSO.

        Args:
            ends: offsets; a partition without one counts as read.
            passed_markers: let control records and aborted records count that were passed behind the last record.
        """
        read = self._ledger.next.merged(self.positions()) if passed_markers else self._ledger.next
        at_end = self._ledger.at_end
        return bool(read) and all(p in at_end or offset >= ends.get(p, 0) for p, offset in read.items())

    def positions(self) -> OffsetVector:
        """Per owned partition that was read from, the next offset to read. The offsets of a batch: taken()."""
        if self.rewind_due:  # the client's positions also count records that no caller has received
            return self._ledger.next
        return self._positions(self._require_client())

    def _moved(self, fetched: Fetched) -> Collection[Partition]:
        """The owned partitions whose positions a fetch has moved, or all where they are few.

        All of 500 took 0.8 ms, as long as the fetch of 1,000 records itself. What is left out has passed control records only,
        which :meth:`positions` counts.
        """
        owned = self._ledger.committed
        if len(owned) <= _FEW_PARTITIONS:
            return owned
        places = {(message.topic(), message.partition()) for message in fetched.messages}
        moved = {Partition(str(topic), int(number or 0)) for topic, number in places}
        return [partition for partition in moved.union(fetched.ends) if partition in owned]

    def _look_at_topic_ids(self, client: ConsumerClient, fetched: Fetched) -> None:
        """Hand out nothing of a topic that was created anew under its name.

        Raises:
            OffsetGapError: one was.
        """
        if fetched.messages or fetched.ends:
            if may_be_of_another(self._ledger.committed, client.topic_ids):
                self._ledger.rewind_due = True
            else:
                client.forget_former_ids()

    def _positions(self, client: ConsumerClient) -> OffsetVector:
        committed = self._ledger.committed
        return client.positions(committed, committed.topic_ids)

    def taken(self, batch: InputBatch) -> InputTaken:
        """What a transaction takes with a batch that :meth:`fetch` has just returned, its offsets above all.

        Raises:
            RebalancedError: the assignment is gone without a callback: after a fatal error librdkafka
                takes it back itself (measured: a static member that is fenced while records are transformed).
            UsageError: no fetch has returned it.
        """
        if not isinstance(batch, FetchedBatch):
            raise UsageError("taken(): this batch was not returned by fetch")
        self._require_positions(batch.ends)
        return batch.taken(self.seat.shard)

    def _require_positions(self, read: OffsetVector) -> None:
        if gone := sorted(read.keys() - self._require_client().positions(read).keys()):
            raise RebalancedError(
                f"{gone} were read from and have no position any more: the assignment is gone, or a fetch was interrupted"
            )

    def to_commit(self, batch: InputBatch) -> OffsetVector:
        """The offsets to commit with what is made of a batch.

        Raises:
            RebalancedError: partitions of the batch are not ours any more.
            AbortableError: the batch is void, or records that were fetched before it are in no transaction.
            UsageError: it is the third refusal in a row, or no fetch has returned the batch.
        """
        offsets = self._ledger.to_commit(batch)
        self._require_positions(offsets)
        return offsets

    def look_at_assignment(self) -> None:
        """After a fetch that an exception has left: partitions may have gone in it."""
        if self._polling:
            self._repair_assignment()

    def settle(self) -> None:
        """Take up what was committed since the last call: a rewind goes no further back."""
        self._ledger.settle(self.positions)

    @property
    def rewind_due(self) -> bool:
        """Whether the next fetch rewinds first, and hands out nothing before."""
        return self._ledger.rewind_due or self._polling

    @property
    def at_end(self) -> frozenset[Partition]:
        """The partitions that were read to their LSO since they were assigned, or since the last rewind."""
        return frozenset(self._ledger.at_end)

    def read_only(self, partitions: Collection[Partition]) -> None:
        """Read these partitions while all others wait, or all if it is none; each from its first record that is not committed."""
        self._ledger.void()
        self._require_client().read_only(partitions)

    def rewind_later(self) -> None:
        """Rewind at the end of the fetch that runs now, or of the next; its records are read again."""
        self._ledger.void()

    def rewind(self) -> None:
        """Go back to the committed offsets of every owned partition, and drop what was fetched ahead."""
        self.rewind_later()
        while self._ledger.rewind_due:
            self._rewind_once()

    def _rewind_once(self) -> None:
        """Seek every owned partition to what is handed out next; if one seek is refused, all of them stay due."""
        client, target = self._require_client(), self._ledger.next
        refused: UsageError | None = None
        for partition in target:
            try:
                client.seek(target.only([partition]))
            except UsageError as error:
                # _STATE: a partition that was assigned a moment ago is not being fetched yet; or the assignment is gone
                # after a fatal error, which the next consume raises.
                refused = error
        if refused is not None:
            now = time.monotonic()
            self._seeking_since = self._seeking_since or now
            if now - self._seeking_since > _SEEK_S:
                raise refused
            time.sleep(_SEEK_PAUSE_S)
            return
        client.forget_former_ids()  # with all that was fetched
        self._ledger.rewind_due = self._polling = False
        self._seeking_since = None
        if target:
            self._ledger.at_end.clear()
            self.seat.listener(Rewound(self.seat.shard, target))

    def group_metadata(self) -> GroupMetadata:
        """The member's metadata, for the transaction that commits now (KIP-447: do not keep it).

        Raises:
            RebalancedError: the group has dropped this member, which the next fetch says too.
        """
        metadata = self._require_client().group_metadata()
        if self.seat.given is None and not metadata.names_a_member:
            raise RebalancedError(f"group {self.seat.group!r}: this consumer is no member any more")
        return metadata

    def commit_for_tools(self, offsets: Mapping[Partition, Committed]) -> None:
        """As of the client: for who looks at a group's lag."""
        if offsets:
            self._require_client().commit_for_tools(offsets)

    def lag(self, *, of_commits: bool = False) -> Lag:
        """Offsets from the position to the LSO, and from the LSO to the high watermark, per owned partition.

        From the last fetches, without a request; partitions that were not fetched yet are left out, and those whose broker
        is away. And for how long the group's coordinator is.

        Args:
            of_commits: count from the committed offset where records were handed out that are not committed: what is read and
                can't be committed still waits.
        """
        client = self._require_client()
        places = self._ledger.committed.merged(self.positions())
        if of_commits:
            places = places.merged(self._ledger.uncommitted)
        to_lso: dict[Partition, int] = {}
        distance: dict[Partition, int] = {}
        for partition, position in places.items():
            marks = client.watermarks(partition)
            if marks is not None and not client.is_away(partition):
                to_lso[partition] = max(0, marks.lso - position)
                distance[partition] = max(0, marks.high - marks.lso)
        outside_s = client.outside_s if self.seat.given is None else 0.0
        return Lag(to_lso, distance, outside_s)

    # --- inside ------------------------------------------------------------------------------------

    def _join(self) -> None:
        self._client = ConsumerClient(self._member)
        self._client.subscribe(self.seat.topics, self._assignment)

    def _watch(self) -> None:
        made = [make(self.seat) for make in self._surroundings.watches]
        self._watches = [watch for watch in made if watch is not None]

    def _joined_anew(self, client: ConsumerClient) -> bool:
        """Let the watches look. Whether one of them has made this member join its group anew."""
        now = time.monotonic()
        for watch in self._watches:
            if watch.due_at <= now and (why := watch.look(client, self._ledger.committed)):
                self._join_anew(why)
                return True
        return False

    def _join_anew(self, why: str) -> None:
        """Join under another name: the group rebalances only for a member that it does not know."""
        self.seat.listener(Waiting(self.seat.shard, Call.CONSUME, f"{why}: joining anew, for a rebalance"))
        self.lose_all()
        name = self._member["group.instance.id"] = f"{self._name}.{secrets.token_hex(2)}"
        self.seat = replace(self.seat, instance_id=name)
        for watch in self._watches:
            watch.joined_anew(self.seat)
        self.rejoin()

    def _repair_assignment(self) -> None:
        if self.seat.given is None:
            self._assignment.repair()

    def _require_client(self) -> ConsumerClient:
        if self._client is None:
            raise UsageError(f"the consumer of group {self.seat.group!r} is not open")
        return self._client
