"""Admin: what a cluster says of itself: brokers, topics, configuration, members of a group.

It only reads. eos never creates or changes a topic, a group or a setting of the cluster.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from enum import Enum
from typing import Any, NamedTuple, Self, TypeVar
from weakref import WeakValueDictionary

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupType,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # both are documented, the package only lacks __all__
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from eos.calls import Call
from eos.deadline import Deadline
from eos.errors import ConfigError, EosError, RetriableError
from eos.kafka.access import Access
from eos.kafka.classify import classify_consumer, no_topic, refused_connection, refused_options
from eos.kafka.config import QUICKLY, client_config
from eos.kafka.positions import as_partitions, bare, positions_of
from eos.offsets import OffsetVector, Partition
from eos.settings import Settings

T = TypeVar("T")

# Seconds that a future may take beyond its request's own timeout, which it then reports itself.
_GRACE_S = 1.0
# librdkafka corrupts its heap when a question for offsets times out before the leader is known: with 1 ms in one of a
# thousand calls (tests/canaries). It knows it long before this.
_LEAST_OFFSETS_TIMEOUT_S = 1.0
_NO_ANSWER = {KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE}
_REFUSED = {
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
}
_NO_SUCH_RECORD = -1  # the answer to a question for a time
_NO_SUCH_GROUP = {KafkaError.GROUP_ID_NOT_FOUND}
# Seconds, the most that librdkafka allows. A question for a group whose coordinator is found after the question's timeout ends
# the process (librdkafka issue 4605; tests/canaries). So it does not time out; only the wait for its answer does.
_GROUP_TIMEOUT_S = 3_600.0
_MAX_EVENTS = 100  # that may wait until an answer is missing
# The clients of dropped admins, until the next one is made. Python's collector may run in the thread in which librdkafka hands
# over answers, and a client that is destroyed in its own one ends the process (rd_kafka_destroy_app asserts; 3 of 3 with 2.16).
# Nor in the main thread: its destructor looks at signals, and leaves what a handler raises to the next call, as a SystemError.
_dropped: deque[AdminClient] = deque()


class TopicShape(NamedTuple):
    """A topic's number of partitions, the smallest number of replicas of any of them, and its id (KIP-516).

    The id is written as Kafka's own tools write it; "" from brokers before 2.8, which have none.
    """

    partitions: int
    replicas: int
    topic_id: str = ""


class GroupShape(NamedTuple):
    """Who is in a group now (``client id @ host``), and whether it is a classic one that has, or once had, members."""

    members: list[str]
    is_classic: bool


class Member(NamedTuple):
    """A member of a group, and what it has."""

    client_id: str
    instance_id: str  # group.instance.id; "" for a dynamic member
    host: str
    partitions: tuple[Partition, ...]

    def __str__(self) -> str:
        return f"{self.instance_id or self.client_id} @ {self.host}"


class Mark(Enum):
    """A place in a partition's log."""

    START = "start"  # the first offset that is still there
    LAST_STABLE = "last stable offset"  # what read_committed readers read up to
    HIGH_WATERMARK = "high watermark"


# The package annotates neither of the two.
_EARLIEST, _LATEST = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
_SPECS = {
    Mark.START: (_EARLIEST, IsolationLevel.READ_UNCOMMITTED),
    Mark.LAST_STABLE: (_LATEST, IsolationLevel.READ_COMMITTED),
    Mark.HIGH_WATERMARK: (_LATEST, IsolationLevel.READ_UNCOMMITTED),
}


_OTHER_LEADER = frozenset(
    {
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError._NOENT,  # no leader at the moment it asked for the topic
        KafkaError._UNKNOWN_PARTITION,  # added since it asked for the topic
    }
)


class AskedOffsets:
    """Offsets that were asked for; see `Admin.ask_offsets_at`."""

    def __init__(
        self, futures: Mapping[TopicPartition, Future[Any]], failed: Callable[[str, BaseException], None]
    ) -> None:
        self._futures = futures
        self._failed = failed

    def answers(self) -> dict[Partition, int]:
        """Those that have come; a partition whose leader has not answered, or has refused, is left out."""
        answered: dict[Partition, int] = {}
        for p, future in self._futures.items():
            if not future.done():
                continue
            if (error := future.exception()) is not None:
                self._failed(p.topic, error)
            else:
                answered[Partition(p.topic, p.partition)] = future.result().offset
        return {partition: offset for partition, offset in answered.items() if offset >= 0}


class Admin:
    """One admin client. Every call takes its timeout in seconds.

    Args:
        config: librdkafka's options.

    Raises:
        ConfigError: librdkafka refuses an option.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._event: KafkaError | None = None
        self._refused: ConfigError | None = None
        self._access = Access(config)
        self._events: deque[KafkaError] = deque(maxlen=_MAX_EVENTS)
        self._late: dict[str, Future[Any]] = {}  # the last question for each group
        if _dropped:
            threading.Thread(target=_dropped.clear, name="eos-admin-close", daemon=True).start()
        # What goes wrong is raised; the lines that librdkafka would write beside it add nothing. No method of this object as a
        # callback: the two would keep each other, and only the collector would free them.
        options: dict[str, Any] = {"log_level": 0, **QUICKLY, **config, "error_cb": self._events.append}
        try:
            self._client = AdminClient(options)
        except KafkaException as error:
            raise refused_options("client", error) from error

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """A client of its own for the cluster of these settings."""
        return cls(client_config(settings))

    def __del__(self) -> None:
        if (client := self.__dict__.get("_client")) is not None:
            _dropped.append(client)

    def brokers(self, timeout_s: float) -> tuple[int, ...]:
        """The ids of the brokers that are up.

        Raises:
            RetriableError: no answer in time.
            ConfigError: the brokers refuse the credentials, or TLS fails.
        """
        with self._classified():
            metadata = self._client.list_topics(timeout=timeout_s)
        return tuple(sorted(metadata.brokers or ()))

    def topics(
        self, names: Iterable[str], timeout_s: float, *, hidden: Iterable[str] = ()
    ) -> dict[str, TopicShape]:
        """The shapes of those of these topics that exist; asking creates none, even where brokers auto-create.

        Args:
            names: the topics.
            timeout_s: seconds to wait.
            hidden: further topics, which are left out where the principal may not see them (ACL Describe).

        Raises:
            RetriableError: no answer in time.
            ConfigError: access was refused.
        """
        may_be_hidden = set(hidden)
        wanted = sorted({*names, *may_be_hidden})
        with self._classified():
            futures = self._client.describe_topics(TopicCollection(wanted), request_timeout=timeout_s)
        found: dict[str, TopicShape] = {}
        absent = {KafkaError.UNKNOWN_TOPIC_OR_PART}
        visible = {name: future for name, future in futures.items() if name not in may_be_hidden}
        others = {name: future for name, future in futures.items() if name in may_be_hidden}
        answers = self._answers(visible, timeout_s, absent=absent, topic=str)
        answers |= self._answers(others, timeout_s, absent={*absent, *_REFUSED})
        for name, described in answers.items():
            if described is not None:
                replicas = [len(partition.replicas) for partition in described.partitions]
                topic_id = _as_java_writes(described.topic_id)
                found[name] = TopicShape(len(replicas), min(replicas, default=0), topic_id)
        return found

    def partitions(self, topics: Iterable[str], timeout_s: float) -> list[Partition]:
        """Every partition of these topics, in their order.

        Raises:
            RetriableError: no answer in time.
            ConfigError: a topic does not exist, or access was refused.
        """
        wanted = list(topics)
        shapes = self.topics(wanted, timeout_s)
        if missing := [topic for topic in wanted if topic not in shapes]:
            raise no_topic(*missing)
        return [Partition(topic, number) for topic in wanted for number in range(shapes[topic].partitions)]

    def topic_configs(self, names: Iterable[str], timeout_s: float) -> dict[str, dict[str, str]]:
        """The configuration of those of these topics that exist and may be seen (ACL DescribeConfigs).

        Raises:
            RetriableError: no answer in time.
        """
        return self._configs(ResourceType.TOPIC, names, timeout_s)

    def broker_configs(self, brokers: Iterable[int], timeout_s: float) -> dict[str, dict[str, str]]:
        """The configuration of those of these brokers that may be seen (ACL DescribeConfigs on the cluster).

        Raises:
            RetriableError: no answer in time.
        """
        return self._configs(ResourceType.BROKER, map(str, brokers), timeout_s)

    def offsets_at(self, mark: Mark, partitions: Iterable[Partition], timeout_s: float) -> OffsetVector:
        """Where a mark stands in each of these partitions: one request per broker (500 partitions: 10 ms).

        A shorter timeout than a second counts as a second.

        The epochs beside the last stable offset and the high watermark are those of the partitions' present leaders.

        Raises:
            RetriableError: no answer in time, or a partition is without a leader or unknown.
            ConfigError: access was refused.
        """
        wanted = list(partitions)
        if not wanted:
            return OffsetVector()
        spec, isolation = _SPECS[mark]
        return positions_of(self._asked(spec, wanted, timeout_s, isolation))

    def offsets_at_time(
        self, time_ms: int, partitions: Iterable[Partition], timeout_s: float
    ) -> dict[Partition, int]:
        """The first committed record of this time or later in each partition; one without such a record is left out.

        Args:
            time_ms: since the epoch, by the records' timestamps.
            partitions: where.
            timeout_s: as in `offsets_at`, and raises as that does.
        """
        spec, wanted = OffsetSpec.for_timestamp(time_ms), list(partitions)
        committed = IsolationLevel.READ_COMMITTED
        answers = self._asked(spec, wanted, timeout_s, committed, lowest=_NO_SUCH_RECORD)
        return {partition: at.offset for partition, at in answers.items() if at.offset != _NO_SUCH_RECORD}

    def ask_offsets_at(self, mark: Mark, partitions: Iterable[Partition], timeout_s: float) -> AskedOffsets:
        """As `offsets_at`, without waiting for the answers."""
        timeout_s = max(timeout_s, _LEAST_OFFSETS_TIMEOUT_S)
        return AskedOffsets(self._ask_offsets(*_SPECS[mark], partitions, timeout_s), self._renew_leaders)

    def _asked(
        self,
        spec: OffsetSpec,
        partitions: Sequence[Partition],
        timeout_s: float,
        isolation: IsolationLevel,
        *,
        lowest: int = 0,
    ) -> dict[Partition, Any]:
        timeout_s = max(timeout_s, _LEAST_OFFSETS_TIMEOUT_S)
        answers = self._answers(
            self._ask_offsets(spec, isolation, partitions, timeout_s),
            timeout_s,
            absent=(),
            topic=lambda partition: partition.topic,
        )
        found = dict(zip(as_partitions(answers), answers.values(), strict=True))
        # A question that timed out is answered by -1001, without an error (tests/canaries).
        if unanswered := [p for p, at in found.items() if at.offset < lowest]:
            raise RetriableError(
                f"{Call.METADATA}: no answer in time about {unanswered[0]}", code="_TIMED_OUT"
            )
        return found

    def _ask_offsets(
        self, spec: OffsetSpec, isolation: IsolationLevel, partitions: Iterable[Partition], timeout_s: float
    ) -> Mapping[TopicPartition, Future[Any]]:
        wanted = dict.fromkeys(bare(partitions), spec)
        with self._classified():
            return self._client.list_offsets(wanted, isolation_level=isolation, request_timeout=timeout_s)

    def group_shape(self, group: str, timeout_s: float) -> GroupShape:
        """The members of a group; one that does not exist has none.

        Raises:
            RetriableError: no answer in time, or the coordinator is moving.
            ConfigError: access was refused.
        """
        described = self._group(group, timeout_s)
        if described is None:
            return GroupShape([], is_classic=False)
        members = sorted(str(member) for member in self._members(described))
        is_classic = (
            described.type == ConsumerGroupType.CLASSIC
            and described.state != ConsumerGroupState.DEAD
            and not described.is_simple_consumer_group
        )
        return GroupShape(members, is_classic)

    def members(self, group: str, timeout_s: float) -> list[Member]:
        """The members of a group, and the partitions that each has. Raises as `group_shape` does."""
        described = self._group(group, timeout_s)
        return [] if described is None else self._members(described)

    @staticmethod
    def _members(described: Any) -> list[Member]:
        return [
            Member(
                one.client_id,
                one.group_instance_id or "",
                one.host.lstrip("/"),
                tuple(sorted(Partition(p.topic, p.partition) for p in one.assignment.topic_partitions)),
            )
            for one in described.members
        ]

    def stable_assignment(self, group: str, timeout_s: float) -> dict[str, frozenset[Partition]]:
        """By group.instance.id, or else member id, what each member of a group has; empty while the group rebalances.

        Raises as `group_shape` does.
        """
        described = self._group(group, timeout_s)
        if described is None or described.state != ConsumerGroupState.STABLE:
            return {}
        return {
            member.group_instance_id or member.member_id: frozenset(
                Partition(one.topic, one.partition) for one in member.assignment.topic_partitions
            )
            for member in described.members
        }

    def _group(self, group: str, timeout_s: float) -> Any:
        deadline = Deadline(timeout_s)
        with self._classified(group=group):
            if (
                group in self._late
            ):  # its answer may be as old as the question, so it only says that one can be asked
                wait([self._late[group]], deadline.left_s)
                if not self._late[group].done():
                    raise TimeoutError
            (asked,) = self._client.describe_consumer_groups(
                [group], request_timeout=_GROUP_TIMEOUT_S
            ).values()
            self._late[group] = asked
            try:
                described = asked.result(deadline.left_s)
            except KafkaException as error:
                if error.args[0].code() not in _NO_SUCH_GROUP:
                    raise
                described = None
        self._event = self._refused = None
        return described

    def _configs(
        self, kind: ResourceType, names: Iterable[str], timeout_s: float
    ) -> dict[str, dict[str, str]]:
        resources = [ConfigResource(kind, name) for name in sorted(names)]
        if not resources:
            return {}
        with self._classified():
            # librdkafka sends a broker's question to that broker, and refuses two of them in one call (_CONFLICT).
            calls = [resources] if kind is ResourceType.TOPIC else [[resource] for resource in resources]
            futures: dict[ConfigResource, Future[Any]] = {}
            for call in calls:
                futures |= self._client.describe_configs(call, request_timeout=timeout_s)
        answers = self._answers(futures, timeout_s, absent={KafkaError.UNKNOWN_TOPIC_OR_PART, *_REFUSED})
        return {
            resource.name: {name: entry.value for name, entry in entries.items() if entry.value is not None}
            for resource, entries in answers.items()
            if entries is not None
        }

    def _answers(
        self,
        futures: Mapping[T, Future[Any]],
        timeout_s: float,
        *,
        absent: Iterable[int],
        topic: Callable[[T], str] = lambda _: "",
    ) -> dict[T, Any]:
        """Per key its answer, or None where the error is one of ``absent``. ``topic`` (of a key) is for an error's text."""
        deadline = Deadline(timeout_s + _GRACE_S)
        found: dict[T, Any] = {}
        for key, future in futures.items():
            with self._classified(topic(key)):
                try:
                    found[key] = future.result(deadline.left_s)
                except KafkaException as error:
                    self._renew_leaders(topic(key), error)
                    if error.args[0].code() not in absent:
                        raise
                    found[key] = None
        self._event = self._refused = None  # what was refused before is not any more
        return found

    def _renew_leaders(self, topic: str, error: BaseException) -> None:
        """So that the next question goes to the leader of now, with its epoch.

        librdkafka keeps what it knows of a leader that refuses a question for offsets, and asks for ever with the old epoch
        (measured with 2.16, tests/faults/test_broker_outage.py), or not at all (tests/broker/test_answers_that_lack.py).
        Asking about the topic renews it.
        """
        if topic and isinstance(error, KafkaException) and error.args[0].code() in _OTHER_LEADER:
            with contextlib.suppress(KafkaException):
                self._client.describe_topics(TopicCollection([topic]), request_timeout=_GRACE_S)

    @contextlib.contextmanager
    def _classified(self, topic: str = "", group: str = "") -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            topics = [topic] if topic else []
            explained = self._explained(error.args[0])
            raise self._access.named(explained, Call.METADATA, topics=topics, group=group) from error
        except TimeoutError as error:
            raise self._explained(KafkaError(KafkaError._TIMED_OUT, "no answer in time")) from error

    def _explained(self, error: KafkaError) -> EosError:
        if error.code() not in _NO_ANSWER:
            return classify_consumer(Call.METADATA, error)
        self._client.poll(0)  # serves error_cb, which an admin client's own calls do not
        while self._events:
            self._on_error(self._events.popleft())
        if self._refused is not None:
            return self._refused
        event = self._event or error
        return RetriableError(f"{Call.METADATA}: {error.name()}: {event.str()}", code=error.name())

    def _on_error(self, error: KafkaError) -> None:
        if (
            error.code() != KafkaError._ALL_BROKERS_DOWN or self._event is None
        ):  # which comes after the reason
            self._event = error
        self._refused = self._refused or refused_connection(Call.METADATA, error)


def _as_java_writes(topic_id: object) -> str:
    # librdkafka writes plain base64, Java its URL-safe form; an id of zeros is none.
    text = "" if topic_id is None else str(topic_id).rstrip("=").replace("+", "-").replace("/", "_")
    return text if text.strip("A") else ""


_shared: WeakValueDictionary[str, Admin] = WeakValueDictionary()
_sharing = threading.Lock()


def forget_shared_admin(admin: Admin) -> None:
    """Let the next caller have a new client: this one goes on asking the broker that it took for the controller."""
    with _sharing:
        for key, shared in list(_shared.items()):
            if shared is admin:
                del _shared[key]


def shared_admin(settings: Settings) -> Admin:
    """One client for all callers of this process with the same cluster and options, as long as one of them keeps it.

    A process may read a hundred partitions, each with a consumer of its own.
    """
    config = client_config(settings)
    key = f"{os.getpid()} {sorted(config.items())}"  # a fork has none of its parent's threads
    with _sharing:
        admin = _shared.get(key)
        if admin is None:
            admin = _shared[key] = Admin(config)
        return admin
