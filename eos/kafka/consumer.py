"""ConsumerClient: one confluent-kafka consumer instance with its errors classified.

It holds no policy: which offsets to start from, what to do in a rebalance and when to give up are decided above.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, cast

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from eos.base.calls import Call
from eos.base.threads import beside, made_beside
from eos.errors import ConfigError, EosError, RetriableError, UnclassifiedError
from eos.home import Home, end_elsewhere, holds_client
from eos.kafka.access import Access
from eos.kafka.classify import classify_consumer, no_topic, refused_connection, refused_options
from eos.kafka.config import QUICKLY, client_config
from eos.kafka.consumer_log import ConsumerLog
from eos.kafka.group_offsets import Committed, GroupMetadata
from eos.kafka.librdkafka import require_sound_librdkafka
from eos.kafka.positions import (
    as_partitions,
    bare,
    epoch_of,
    epoch_or_none,
    metadata_of,
    positions_of,
    with_offsets,
)
from eos.kafka.statistics import INTERVAL_MS, NOT_FETCHED, ConsumerStatistics, FetchState, Watermarks
from eos.kafka.tokens import secrets_in
from eos.offsets import OffsetVector, Partition
from eos.records import ConsumedMessage
from eos.settings import Settings

# A loop that catches up has to wait a moment only; one at a low rate waits for its interval, with few looks in between.
_FIRST_STEP_S = 0.002
_MAX_EVENTS = 100  # that may wait before the one that is looked for
# How long every broker may refuse the connection before it counts: a broker that has just started may not know the
# users yet, and one that goes down breaks a handshake.
_REFUSED_S = 15.0
_FIRST_ANSWER_S = 1.0
AWAY_S = 10.0  # without a connection: a broker is away, and no longer about to answer
# To leave a group takes a round trip, and an instance goes in milliseconds. One that has a record locked in it never goes.
_CLOSE_S = 15.0
# Before a callback that is served inside close() calls the client. librdkafka's thread drops the calls that wait for it when it
# is done with the group, without an answer; the caller waits for ever, with Python's lock held (measured with 2.16: a static
# member that was closed with a rebalance queued, 2 of 3 processes within 10 s). Once it is done, calls are refused at once.
# To unsubscribe and serve the rebalance before is no way round it: a static member leaves its group then, and in the middle of a
# rebalance close() never returned.
_CLOSING_CALLBACK_S = 0.1

log = logging.getLogger(__name__)


class Fetched(NamedTuple):
    """What one consume call brought: records, and the partitions whose end (the LSO) was reached."""

    messages: Sequence[ConsumedMessage]
    ends: list[Partition]


class RebalanceListener(Protocol):
    """Called when partitions come and go, from inside :meth:`ConsumerClient.consume`. Must not raise."""

    def assigned(self, partitions: Sequence[Partition]) -> None: ...
    def revoked(self, partitions: Sequence[Partition]) -> None: ...
    def lost(self, partitions: Sequence[Partition]) -> None: ...


class ConsumerClient:
    """A consumer instance. One thread owns it.

    Args:
        config: librdkafka's options, with group.id and isolation.level=read_committed.

    Raises:
        ConfigError: librdkafka refuses an option, or is a version known to break exactly-once.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        require_sound_librdkafka(str(config.get("group.protocol", "classic")))
        self.group_id = str(config["group.id"])
        self._home = Home.here
        self._access = Access(config)
        self._reads = False  # whether it fetches records, or may be called back
        self._rebalanced = (
            False  # whether the rebalance callback that runs now has taken or given up partitions
        )
        self._waiting: frozenset[Partition] = frozenset()  # see read_only()
        self._asked = False  # whether the group's coordinator has ever answered
        self._refused: ConfigError | None = None  # the connection, by the last event …
        self._refused_at = 0.0  # … since
        self._broken: EosError | None = None
        self._error_event: EosError | None = None
        self._statistics = ConsumerStatistics()
        self._connected_at = time.monotonic()
        self._closing = False
        # Callbacks in C: no signal handler can run in them. Where an exception leaves a callback inside consume(), librdkafka
        # drops the next record and keeps it locked: it is skipped, and close() never returns (measured with 2.16).
        self._statistics_texts: deque[str] = deque(maxlen=1)
        self._error_events: deque[KafkaError] = deque(maxlen=_MAX_EVENTS)
        options = {"statistics.interval.ms": INTERVAL_MS, **config}
        self._log = ConsumerLog(secrets_in(config))
        self._topic_ids: dict[str, tuple[str, ...]] = {}
        callbacks = {
            **self._log.options(with_ids=config.get("log_level") != 0),
            "error_cb": self._error_events.append,
            "stats_cb": self._statistics_texts.append,
        }
        try:
            self._consumer = made_beside(lambda: Consumer(options | callbacks))
        except KafkaException as error:
            raise refused_options("consumer", error) from error
        holds_client(self, "_consumer")

    def subscribe(self, topics: Sequence[str], listener: RebalanceListener) -> None:
        """Join the group."""
        self._reads = True

        def serve(callback: Callable[[list[Partition]], None], *, assigned: bool) -> Callable[..., None]:
            def called(consumer: Consumer, partitions: list[TopicPartition]) -> None:
                self._rebalanced = False
                if self._closing:
                    time.sleep(_CLOSING_CALLBACK_S)
                try:
                    callback(as_partitions(partitions))
                finally:
                    # A callback that takes or gives up nothing leaves that to confluent-kafka: it assigns all partitions, from
                    # offsets that eos has not read.
                    if not self._rebalanced:
                        with suppress(KafkaException, RuntimeError):
                            if assigned:
                                consumer.incremental_assign([])
                            else:
                                consumer.incremental_unassign(partitions)

            return called

        self._consumer.subscribe(
            list(topics),
            on_assign=serve(listener.assigned, assigned=True),
            on_revoke=serve(listener.revoked, assigned=False),
            on_lost=serve(listener.lost, assigned=False),
        )

    def assign(self, positions: OffsetVector) -> None:
        """Read exactly these partitions from these offsets, without a group membership.

        Where an offset has a leader epoch, librdkafka asks a leader that it comes to know later whether the log still holds
        what was before the offset (KIP-320); if not, consume() raises an OffsetGapError. See `eos.guards.truncated.refuse_truncated`.
        """
        self._reads = True
        self._guard(Call.CONSUME, self._consumer.assign, with_offsets(positions))

    def incremental_assign(self, positions: OffsetVector) -> None:
        """Take over partitions in a cooperative rebalance; leader epochs count as in :meth:`assign`."""
        self._reads = True
        self._guard(Call.CONSUME, self._consumer.incremental_assign, with_offsets(positions))
        self._rebalanced = True

    def incremental_unassign(self, partitions: Iterable[Partition]) -> None:
        """Give partitions up in a cooperative rebalance."""
        partitions = list(partitions)
        if waiting := self._waiting.intersection(partitions):  # one that comes back would wait for ever
            self._guard(Call.CONSUME, self._consumer.resume, bare(waiting))
            self._waiting -= waiting
        self._guard(Call.CONSUME, self._consumer.incremental_unassign, bare(partitions))
        self._rebalanced = True

    def consume(self, max_records: int, timeout_s: float, linger_s: float = 0.0) -> Fetched:
        """Up to ``max_records`` records: waits ``timeout_s`` for the first one, then ``linger_s`` for more.

        consume(n, timeout) alone waits for n records or the whole timeout, which doubles the latency at low rates.

        Raises:
            EosError: an error event of the consumer. Records that came with it were returned by the call before.
        """
        self.raise_event()
        try:
            first = self._consumer.poll(timeout_s)
            messages = [] if first is None else [first, *self._more(max_records - 1, linger_s)]
        except KafkaException as error:
            raise self._classified(Call.CONSUME, error.args[0]) from error
        self._serve_callbacks()
        if self._broken is not None:
            raise self._broken
        ends: list[Partition] = []
        if any(map(Message.error, messages)):
            ends = self._events(messages)
            messages = [m for m in messages if m.error() is None]
        # The client's stubs allow text in headers, which is true of messages to be produced only.
        return Fetched(cast("Sequence[ConsumedMessage]", messages), ends)

    def _more(self, max_records: int, linger_s: float) -> list[Message]:
        """What has come, and what comes within ``linger_s``.

        It sleeps in between, each time for twice as long: a call that waits is woken by each of the client's fetches, at 2,000
        records a second some 700 times in it.
        """
        messages: list[Message] = []
        deadline, step_s = time.monotonic() + linger_s, _FIRST_STEP_S
        while len(messages) < max_records:
            messages += self._consumer.consume(max_records - len(messages), 0)
            left_s = deadline - time.monotonic()
            if len(messages) >= max_records or left_s <= 0:
                break
            time.sleep(min(left_s, step_s))
            step_s *= 2
        return messages

    def raise_event(self) -> None:
        """Raise the error event that came with the records of the last call, or that goes on. Nothing is polled."""
        self._serve_callbacks()
        if self._broken is not None:
            raise self._broken
        if self._refused is not None and time.monotonic() - self._refused_at > _REFUSED_S:
            raise self._access.no_token() or self._refused
        event, self._error_event = self._error_event, None
        if event is not None:
            raise event

    def _events(self, messages: Sequence[Message]) -> list[Partition]:
        ends: list[Partition] = []
        for message in messages:
            error = message.error()
            if error is None:
                continue
            if error.code() == KafkaError._PARTITION_EOF:
                ends.append(Partition(str(message.topic()), int(message.partition() or 0)))
            elif error.code() == KafkaError._FATAL:
                self._broken = _classify_fatal(error)
            elif self._error_event is None:
                topics = [str(message.topic())] if message.topic() else []
                self._error_event = self._classified(Call.CONSUME, _placed(error, message), topics)
        return ends

    @property
    def topic_ids(self) -> Mapping[str, Sequence[str]]:
        """Per topic, the ids under which records may have been fetched since :meth:`forget_former_ids`, the newest last.

        See `eos.kafka.consumer_log`; "" where the brokers have no ids.
        """
        return self._topic_ids

    def forget_former_ids(self) -> None:
        """All records that came so far were looked at, or dropped."""
        for topic, ids in self._topic_ids.items():
            if len(ids) > 1:
                self._topic_ids[topic] = ids[-1:]

    def assignment(self) -> frozenset[Partition]:
        """The partitions that are read."""
        return frozenset(as_partitions(self._guard(Call.CONSUME, self._consumer.assignment)))

    def positions(
        self, partitions: Iterable[Partition], topic_ids: Mapping[str, str] | None = None
    ) -> OffsetVector:
        """The next offset to read per partition; partitions that were never read from are left out (-1001).

        Args:
            partitions: which to ask for.
            topic_ids: the ids of their topics, as far as they are known.
        """
        wanted = list(partitions)
        found = self._guard(Call.CONSUME, self._consumer.position, bare(wanted))
        return positions_of(dict(zip(wanted, found, strict=True)), topic_ids)

    def read_only(self, partitions: Collection[Partition]) -> None:
        """Let every other partition that is read wait, and drop what was fetched of it; without any, none waits."""
        assigned = self.assignment()
        self._waiting = assigned.difference(partitions) if partitions else frozenset()
        self._guard(Call.CONSUME, self._consumer.resume, bare(assigned - self._waiting))
        self._guard(Call.CONSUME, self._consumer.pause, bare(self._waiting))

    @property
    def some_wait(self) -> bool:
        """Whether partitions wait for others; see :meth:`read_only`."""
        return bool(self._waiting)

    def seek(self, positions: OffsetVector) -> None:
        """Go to these offsets, if the log still holds what was before them; what was fetched ahead is dropped."""
        for position in with_offsets(positions):
            self._guard(Call.CONSUME, self._consumer.seek, position)

    def committed(self, partitions: Iterable[Partition], timeout_s: float) -> dict[Partition, Committed]:
        """The group's stable committed offsets; partitions without one are left out.

        Raises:
            RetriableError: no answer, or another transaction is pending on the offsets (KIP-447, require-stable).
        """
        wanted = bare(partitions)
        if not wanted:
            return {}
        if not self._asked:  # a coordinator that may not be asked is met soon, and the reason is known then
            timeout_s = min(timeout_s, _FIRST_ANSWER_S)
        try:
            found = self._guard(Call.COMMITTED, self._consumer.committed, wanted, timeout_s)
        finally:
            self._asked = True
        result: dict[Partition, Committed] = {}
        for p in found:
            if p.error is not None:
                raise self._classified(Call.COMMITTED, p.error, [p.topic])
            if p.offset not in (OFFSET_INVALID, -1):
                result[Partition(p.topic, p.partition)] = Committed(p.offset, metadata_of(p), epoch_of(p))
        return result

    def group_metadata(self) -> GroupMetadata:
        """The member's metadata as of now."""
        return GroupMetadata(self.group_id, self._consumer.consumer_group_metadata())

    def commit_for_tools(self, offsets: Mapping[Partition, Committed]) -> None:
        """Commit offsets that no owner begins at. Nothing is waited for: one that does not arrive is replaced by the next."""
        wanted = [
            TopicPartition(*partition, one.offset, one.metadata, epoch_or_none(one.leader_epoch))
            for partition, one in offsets.items()
        ]
        with suppress(KafkaException):
            self._consumer.commit(offsets=wanted, asynchronous=True)

    def watermarks(self, partition: Partition) -> Watermarks | None:
        """As the last fetches brought them, a few seconds old; None before."""
        return self._statistics.watermarks.get(partition)

    def fetch_state(self, partition: Partition) -> FetchState:
        """As of the last statistics, up to 2 s old."""
        return self._statistics.fetch_states.get(partition, NOT_FETCHED)

    def unreached_s(self, partition: Partition) -> float:
        """For how many seconds no statistics have shown a connection to the partition's broker; 0 if they do."""
        since = self._statistics.unreached.get(partition)
        return 0.0 if since is None else time.monotonic() - since

    def is_away(self, partition: Partition) -> bool:
        """Whether the broker that leads the partition has not been reached for some time."""
        return self.unreached_s(partition) >= AWAY_S

    @property
    def outside_s(self) -> float:
        """For how many seconds no statistics have shown that the coordinator of the group is connected and takes this member; or 0."""
        since = self._statistics.outside_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def disconnected_s(self) -> float:
        """Since when no statistics have shown a broker that is connected, in seconds; up to 2 s too much."""
        return time.monotonic() - self._connected_at

    def queue_length(self) -> tuple[int, int]:
        """The number of the last statistics, and how many records waited to be consumed when they were taken."""
        return self._statistics.count, self._statistics.queue_length

    def partitions_of(self, topics: Iterable[str], timeout_s: float) -> list[Partition]:
        """Every partition of these topics.

        Raises:
            ConfigError: a topic does not exist.
        """
        result: list[Partition] = []
        for topic in topics:
            metadata = self._guard(Call.METADATA, self._consumer.list_topics, topic, timeout_s).topics[topic]
            if metadata.error is not None and metadata.error.code() != KafkaError.LEADER_NOT_AVAILABLE:
                if metadata.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise no_topic(topic)
                raise self._classified(Call.METADATA, metadata.error, [topic])
            result.extend(Partition(topic, number) for number in sorted(metadata.partitions))
        return result

    def close(self) -> None:
        """Leave the group and let go of the instance; one that does not go in time is left behind.

        The client's call has no timeout. It runs beside, so that this one has, and answers signals.
        """
        if self._closing:
            return
        end_elsewhere(self._home)
        self._closing = True
        closed = beside(self._close, name="eos-close-consumer")
        if self._access.waits_for_a_token:
            return  # so does librdkafka, up to 20 s for one question, and close() for that
        if not closed.wait(_CLOSE_S):
            log.warning(
                "the consumer of group %s was not closed after %g s, and is left behind: librdkafka waits for a record that "
                "an exception has locked in it (of a signal handler, such as Ctrl-C, in the middle of a rebalance)",
                self.group_id,
                _CLOSE_S,
            )

    def _close(self) -> None:
        with suppress(KafkaException, RuntimeError):
            self._consumer.close()

    def _guard(self, call: Call, function: Callable[..., Any], *arguments: object) -> Any:
        try:
            return function(*arguments)
        except KafkaException as error:
            raise self._explained(call, error.args[0]) from error

    def _explained(self, call: Call, error: KafkaError) -> EosError:
        """The error of a call; where librdkafka goes on trying in vain, and the call only times out, the reason for it.

        The reason waits among the consumer's events (no coordinator for a group that may not be seen), or comes as
        an error event (login, TLS). While records are read, consume() meets it; here it would cost a record.
        """
        classified = self._classified(call, error)
        if not isinstance(classified, RetriableError) or self._reads:
            return classified
        for _ in range(_MAX_EVENTS):
            try:
                message = self._consumer.poll(0)
            except KafkaException:
                break
            if message is None:
                break
            event = message.error()
            if event is not None and isinstance(reason := self._classified(call, event), ConfigError):
                return reason
        self._serve_callbacks()
        return self._access.awaited_token() or self._refused or classified

    def _classified(self, call: Call, error: KafkaError, topics: Iterable[str] = ()) -> EosError:
        return self._access.named(classify_consumer(call, error), call, topics=topics)

    def _serve_callbacks(self) -> None:
        """Look at what the callbacks have been given."""
        if self._log.printed.tell():
            for topic, topic_id in self._log.take():
                self._topic_ids[topic] = (*self._topic_ids.get(topic, ()), topic_id)
        while self._error_events:
            self._on_error(self._error_events.popleft())
        while self._statistics_texts:
            self._statistics.read(self._statistics_texts.popleft())
            if self._statistics.connected:
                self._refused = None
                self._access.answered()
                self._connected_at = time.monotonic()

    def _on_error(self, error: KafkaError) -> None:
        # Most of what arrives here is a broker that is away: librdkafka goes on by itself.
        if error.fatal() and self._broken is None:
            self._broken = classify_consumer(Call.CONSUME, error)
        if (refused := refused_connection(Call.CONSUME, error)) is not None:
            self._refused_at = self._refused_at if self._refused else time.monotonic()
            self._refused = refused


def _classify_fatal(error: KafkaError) -> EosError:
    """A consumer's fatal error comes as _FATAL, as a message; its text quotes the description of its code."""
    for code in (
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.GROUP_MAX_SIZE_REACHED,
        KafkaError.GROUP_ID_NOT_FOUND,  # a member of KIP-848 that was paused for longer than its session
    ):
        if KafkaError(code).str() in error.str():
            return classify_consumer(Call.CONSUME, KafkaError(code, error.str(), True))
    return UnclassifiedError(f"{Call.CONSUME}: {error.name()}: {error.str()}", code=error.name())


def _placed(error: KafkaError, message: Message) -> KafkaError:
    """The error with the partition and offset that it is about, if it is about one."""
    if message.topic() is None:
        return error
    where = f"{message.topic()}[{message.partition()}] offset {message.offset()}"
    return KafkaError(error.code(), f"{where}: {error.str()}", error.fatal(), error.retriable())


# Nobody serves the statistics of a client that only asks.
_OF_JOBS_CONSUMER = frozenset({"statistics.interval.ms"})


def lone_reader(
    settings: Settings, group_id: str, *, stable: bool, options: Mapping[str, Any] | None = None
) -> ConsumerClient:
    """A client that only reads: it joins no group, and commits nothing.

    Args:
        settings: how to reach the cluster.
        group_id: whose offsets are read. It must be a group that may be read, also where none are: librdkafka looks for its
            coordinator.
        stable: read committed records only, and wait for transactions that are pending on the offsets: OffsetFetch asks so
            only under read_committed.
        options: librdkafka's, for a reader of records; they hold over those of ``[kafka.client]`` and ``[kafka.consumer]``.
    """
    return ConsumerClient(
        {
            **QUICKLY,
            **client_config(settings),
            **{
                name: value
                for name, value in settings.kafka.consumer.items()
                if name not in _OF_JOBS_CONSUMER
            },
            # Last: a probe that waited for fetch.wait.max.ms of a job's consumer would hold up its start.
            **(options or {}),
            "group.id": group_id,
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if stable else "read_uncommitted",
            "log_level": 0,  # what goes wrong is raised; a refused login would be logged twenty times a second
        }
    )
