"""ShardConsumer: a shard's input, only committed records, from positions that are never reset silently."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Sequence
from typing import Any, Self

from eos.calls import Call
from eos.errors import OffsetGapError, RebalancedError, RetriableError, UnavailableError, UsageError
from eos.events import (
    CallRetried,
    InputTaken,
    LagMeasured,
    Listener,
    Rewound,
    StartPolicyApplied,
    ignore_event,
)
from eos.group.guards import refuse_members
from eos.group.metadata import OwnershipMode
from eos.job import checked_topics
from eos.kafka.admin import Admin
from eos.kafka.config import QUICKLY, consumer_config
from eos.kafka.consumer import ConsumerClient, Fetched
from eos.kafka.group_offsets import GroupMetadata
from eos.listing import listed
from eos.offsets import OffsetVector, Partition
from eos.records import InputBatch
from eos.session.assignment import Assignment, RebalanceHooks
from eos.session.deleted_input import naming_what_is_gone
from eos.session.handed_out import FetchedBatch, HandedOut
from eos.session.input_topics import InputTopics
from eos.session.stalls import StallWatch
from eos.session.start_policy import apply_start_policy
from eos.session.unowned import Unowned
from eos.settings import Settings

_SEEK_S = 5.0
_SEEK_PAUSE_S = 0.02
_ERROR_PAUSE_S = 0.2
_NO_TOPIC = {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"}
_SINCE_LAST_POLL_S = 10.0  # after a longer pause, statistics have not been read
_UNREACHED_S = 10.0
_UNREACHED_LOOK_S = 2.0  # as often as statistics come
_MAX_NAMED = 3  # partitions
_FEW_PARTITIONS = 32  # whose positions are had sooner than it is known which of them a fetch has moved
_NO_RECORDS = InputBatch([])


class ShardConsumer:
    """Reads input topics by group (subscribe) or the given partitions (assign), for a session or for reading alone.

    Arguments and errors are those of :class:`eos.ReadCommittedConsumer`, and:

    Args:
        ordinal: this instance's number, for static membership.
        app: the job's name: first part of the transactional.id under which a start policy is applied; offsets that another
            app has committed are refused. Not given: "consumer", and any app's offsets are taken.
        shard: the name in the events.
        hooks: an owner that must act before partitions go.
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
        hooks: RebalanceHooks | None = None,
    ) -> None:
        self._settings = settings
        self._topics = checked_topics("topics", topics)
        self._group = group
        self._given = None if partitions is None else tuple(partitions)
        self._ordinal = ordinal
        self._app = app
        self._listener = listener
        self._shard = shard or group
        self._mode = OwnershipMode(settings.ownership.mode)
        self._client: ConsumerClient | None = None
        self._member: dict[str, Any] = {}  # how this member joins
        self._name: str | None = None  # the one that it joins under at first
        self._unowned: Unowned | None = None
        self._handed_out = HandedOut()
        # In a fetch, or an exception has left one: the client's positions have moved, and no records were returned.
        self._polling = False
        self._seeking_since: float | None = None
        self._look_at = 0.0  # whether brokers are away …
        self._unreached_named = False  # … which was said
        self._input_topics = InputTopics(settings, self._topics)
        self._assignment = Assignment(
            settings,
            group,
            app=app,
            topics=self._input_topics,
            handed_out=self._handed_out,
            client=self._require_client,
            listener=listener,
            shard=self._shard,
            hooks=hooks,
        )
        self._stalls = StallWatch(settings, shard=self._shard, listener=listener)
        self._some_wait = False  # see read_only()
        self._polled_at = 0.0

    # --- life --------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Check the group, apply the start policy if it has no offsets, and begin to read."""
        config = consumer_config(self._settings, self._group, None)
        if self._given is None:  # a client that only asks; the member is another one
            config |= QUICKLY
        client = ConsumerClient(config)
        try:
            if self._given is not None:
                admin = Admin.of(self._settings)
                refuse_members(admin, self._group, self._mode, timeout_s=self._settings.open_timeout_s)
            partitions, stored = apply_start_policy(
                self._settings,
                self._topics,
                client,
                app=self._app or "consumer",
                mode=self._mode,
                on_first_offsets=self._started,
                own=self._given,
            )
            own = partitions if self._given is None else self._given
            self._assignment.refuse_foreign({p: stored[p] for p in own if p in stored})
            if self._given is None:
                self._member = consumer_config(self._settings, self._group, self._ordinal, partitions)
                self._name = self.instance_id
                if self._name is not None:
                    self._unowned = Unowned(self._settings, self._group, partitions)
            else:
                self._client = client
                self._assignment.take_over(self._given)
                client.assign(self.resume_positions)
        except BaseException:
            self._client = None
            client.close()
            raise
        if self._given is None:
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
        self._input_topics.check(self._assignment.known_topic_ids())
        if self._joined_anew():
            return _NO_RECORDS
        if not self._some_wait:
            self._stalls.look(client, self.resume_positions)
        self._name_unreached(client)
        self._refuse_offline(client)
        try:
            client.raise_event()
            if self._polling:
                self._handed_out.rewind_due = True
                self._repair_assignment()
            self._polling = True
            fetched = client.consume(max_records, timeout_s, linger_s)
        except OffsetGapError as error:
            raise naming_what_is_gone(error, self._settings, self.resume_positions) from error
        except RetriableError as error:
            if error.code in _NO_TOPIC:
                self._input_topics.ask_soon()
            self._stalls.failed(error)
            time.sleep(min(_ERROR_PAUSE_S, timeout_s))
            return _NO_RECORDS
        finally:
            self._assignment.raise_error()
        self._stalls.consumed(client, len(fetched.messages) + len(fetched.ends), asked=max_records)
        if self._handed_out.rewind_due:
            self._rewind_once()
            return _NO_RECORDS
        batch: InputBatch = _NO_RECORDS
        behind = self._handed_out.next
        if fetched.messages or fetched.ends:
            moved = self._moved(fetched)
            positions = client.positions(moved, self.resume_positions.topic_ids)
            batch, behind = self._handed_out.batch(fetched.messages, positions)
            if not batch.has_offsets:
                # The group has fenced this member since the client gave out these records, and librdkafka has taken the
                # assignment back without a callback. Output made of them would be committed without their offsets.
                self._handed_out.rewind_due = True
                return _NO_RECORDS
        self._handed_out.at_end.update(fetched.ends)
        # From here to the caller nothing is called, so no signal handler can run (CPython checks for signals in calls and
        # loops only): records count as handed out if, and only if, the caller gets them.
        self._handed_out.next = behind
        self._polling = False
        return batch

    @property
    def assignment(self) -> frozenset[Partition]:
        """The partitions owned now."""
        return frozenset(self.resume_positions)

    @property
    def still_assigned(self) -> frozenset[Partition]:
        """Those of them that the client has too: after a fetch that an exception has left, callbacks may not have been served."""
        owned = self.assignment
        if not self._polling or self._given is not None:
            return owned
        return owned & self._require_client().assignment()

    @property
    def caught_up(self) -> bool:
        """Whether every owned partition, if any, has been read to its LSO at least once since it was assigned."""
        return self._handed_out.at_end >= self.resume_positions.keys()

    def has_read_to(self, ends: OffsetVector, *, passed_markers: bool = False) -> bool:
        """Whether partitions are owned, and each was handed out up to its offset here, or read to its LSO.

        Args:
            ends: offsets; a partition without one counts as read.
            passed_markers: let control records and aborted records count that were passed behind the last record.
        """
        read = self._handed_out.next.merged(self.positions()) if passed_markers else self._handed_out.next
        at_end = self._handed_out.at_end
        return bool(read) and all(p in at_end or offset >= ends.get(p, 0) for p, offset in read.items())

    def positions(self) -> OffsetVector:
        """Per owned partition that was read from, the next offset to read. The offsets of a batch: taken()."""
        if self.rewind_due:  # the client's positions also count records that no caller has received
            return self._handed_out.next
        return self._positions(self._require_client())

    def _moved(self, fetched: Fetched) -> Collection[Partition]:
        """The owned partitions whose positions a fetch has moved, or all where they are few.

        All of 500 took 0.8 ms, as long as the fetch of 1,000 records itself. What is left out has passed control records only,
        which :meth:`positions` counts.
        """
        owned = self.resume_positions
        if len(owned) <= _FEW_PARTITIONS:
            return owned
        places = {(message.topic(), message.partition()) for message in fetched.messages}
        moved = {Partition(str(topic), int(number or 0)) for topic, number in places}
        return [partition for partition in moved.union(fetched.ends) if partition in owned]

    def _positions(self, client: ConsumerClient) -> OffsetVector:
        committed = self.resume_positions
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
        return batch.taken(self._shard)

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
        offsets = self._handed_out.to_commit(batch)
        self._require_positions(offsets)
        return offsets

    def look_at_assignment(self) -> None:
        """After a fetch that an exception has left: partitions may have gone in it."""
        if self._polling:
            self._repair_assignment()

    @property
    def has_outstanding(self) -> bool:
        """Whether records were handed out whose offsets are not committed."""
        return self._handed_out.outstanding

    def require_kept(self) -> None:
        """As of `HandedOut`."""
        self._handed_out.require_kept()

    def advanced(self, committed: OffsetVector) -> None:
        """These offsets are committed: a rewind goes no further back."""
        beyond = self._handed_out.advanced(committed)
        if beyond and not self.rewind_due and self.positions().only(beyond) != beyond:
            # A commit whose answer came late: its records must not be handed out again.
            self._handed_out.rewind_due = True

    @property
    def resume_positions(self) -> OffsetVector:
        """Where a rewind goes to."""
        return self._handed_out.committed

    @property
    def rewind_due(self) -> bool:
        """Whether the next fetch rewinds first, and hands out nothing before."""
        return self._handed_out.rewind_due or self._polling

    @property
    def at_end(self) -> frozenset[Partition]:
        """The partitions that were read to their LSO since they were assigned, or since the last rewind."""
        return frozenset(self._handed_out.at_end)

    def read_only(self, partitions: Collection[Partition]) -> None:
        """Read these partitions while all others wait, or all if it is none; each from its first record that is not committed."""
        self._handed_out.void()
        self._require_client().read_only(partitions)
        self._some_wait = bool(partitions)

    def rewind_later(self) -> None:
        """Rewind at the end of the fetch that runs now, or of the next; its records are read again."""
        self._handed_out.void()

    def rewind(self) -> None:
        """Go back to the committed offsets of every owned partition, and drop what was fetched ahead."""
        self.rewind_later()
        while self._handed_out.rewind_due:
            self._rewind_once()

    def _rewind_once(self) -> None:
        """Seek every owned partition to what is handed out next; if one seek is refused, all of them stay due."""
        client, target = self._require_client(), self._handed_out.next
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
        self._handed_out.rewind_due = self._polling = False
        self._seeking_since = None
        if target:
            self._handed_out.at_end.clear()
            self._listener(Rewound(self._shard, target))

    def group_metadata(self) -> GroupMetadata:
        """The member's metadata, for the transaction that commits now (KIP-447: do not keep it).

        Raises:
            RebalancedError: the group has dropped this member, which the next fetch says too.
        """
        metadata = self._require_client().group_metadata()
        if self._given is None and not metadata.names_a_member:
            raise RebalancedError(f"group {self._group!r}: this consumer is no member any more")
        return metadata

    def lag(self) -> LagMeasured:
        """Offsets from the position to the LSO, and from the LSO to the high watermark, per owned partition.

        From the last fetches, without a request; partitions that were not fetched yet are left out, and those whose broker
        is away. And for how long the group's coordinator is.
        """
        client = self._require_client()
        to_lso: dict[Partition, int] = {}
        distance: dict[Partition, int] = {}
        for partition, position in self.resume_positions.merged(self.positions()).items():
            marks = client.watermarks(partition)
            if marks is not None and client.unreached_s(partition) < _UNREACHED_S:
                to_lso[partition] = max(0, marks.lso - position)
                distance[partition] = max(0, marks.high - marks.lso)
        return LagMeasured(self._shard, to_lso, distance, self._outside_s(client))

    # --- inside ------------------------------------------------------------------------------------

    def _refuse_offline(self, client: ConsumerClient) -> None:
        polled_at, self._polled_at = self._polled_at, time.monotonic()
        if (
            client.disconnected_s <= self._settings.input.offline_timeout_s
            or self._polled_at - polled_at > _SINCE_LAST_POLL_S
        ):
            return
        raise UnavailableError(
            f"the consumer of group {self._group!r} has been connected to no broker for {client.disconnected_s:.0f} s "
            f"(input.offline_timeout_ms = {self._settings.input.offline_timeout_ms}): all brokers are down or out of reach, or an "
            "answer without any has made librdkafka forget them all, which it does not come back from (librdkafka issue 5301). "
            "Nothing is lost. Fix: start again; if that does not connect either, look at the brokers and at "
            "kafka.bootstrap_servers"
        )

    def _name_unreached(self, client: ConsumerClient) -> None:
        """Say once that partitions, or the group, are waited for because their brokers are away."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + _UNREACHED_LOOK_S
        away = [p for p in self.resume_positions if client.unreached_s(p) >= _UNREACHED_S]
        waited_for = f"the broker that leads {listed(away, _MAX_NAMED)}" if away else ""
        if not away and self._outside_s(client) >= _UNREACHED_S:
            waited_for = f"the coordinator of the group {self._group!r}"
        if waited_for and not self._unreached_named:
            self._listener(
                CallRetried(
                    self._shard,
                    Call.CONSUME,
                    1,
                    f"{waited_for} cannot be reached for {_UNREACHED_S:.0f} s: waiting for it, "
                    f"for {self._settings.input.offline_timeout_s:.0f} s (input.offline_timeout_ms) if no other one can be",
                )
            )
        self._unreached_named = bool(waited_for)

    def _outside_s(self, client: ConsumerClient) -> float:
        return client.outside_s if self._given is None else 0.0

    def _join(self) -> None:
        self._client = ConsumerClient(self._member)
        self._client.subscribe(self._topics, self._assignment)

    def _joined_anew(self) -> bool:
        """Whether partitions had no owner, and this member has joined under another name to make the group rebalance."""
        name = self.instance_id
        if name is None or self._unowned is None or not (without := self._unowned.look(name)):
            return False
        text = f"no member of the group {self._group!r} owns {', '.join(map(str, without))}: joining anew, for a rebalance"
        self._listener(CallRetried(self._shard, Call.CONSUME, 1, text))
        self.lose_all()
        self._member["group.instance.id"] = f"{self._name}.{secrets.token_hex(2)}"
        self.rejoin()
        return True

    def _repair_assignment(self) -> None:
        if self._given is None:
            self._assignment.repair()

    def _started(self, positions: OffsetVector) -> None:
        self._listener(StartPolicyApplied(self._shard, positions, self._settings.input.start))

    def _require_client(self) -> ConsumerClient:
        if self._client is None:
            raise UsageError(f"the consumer of group {self._group!r} is not open")
        return self._client
