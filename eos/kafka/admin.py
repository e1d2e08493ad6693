"""Admin: what a cluster says of itself: brokers, topics, offsets, configuration; and its groups.

It only reads. eos never creates or changes a topic, a group or a setting of the cluster.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from enum import Enum
from typing import Any, NamedTuple, Self
from weakref import WeakValueDictionary

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # both are documented, the package only lacks __all__
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from eos.base.addresses import address
from eos.base.deadline import Deadline
from eos.kafka.admin_connection import AdminConnection
from eos.kafka.classify import no_topic
from eos.kafka.config import client_config
from eos.kafka.groups import Groups
from eos.kafka.positions import as_java_writes, as_partitions, bare, positions_of
from eos.offsets import OffsetVector, Partition
from eos.settings import Settings

# librdkafka corrupts its heap when a question for offsets times out before the leader is known: with 1 ms in one of a
# thousand calls (tests/canaries). It knows it long before this.
_LEAST_OFFSETS_TIMEOUT_S = 1.0
_REFUSED = {
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
}
_NO_SUCH_RECORD = -1  # the answer to a question for a time


class TopicShape(NamedTuple):
    """A topic's number of partitions, the smallest number of replicas of any of them, and its id (KIP-516).

    The id is written as Kafka's own tools write it; "" from brokers before 2.8, which have none.
    """

    partitions: int
    replicas: int
    topic_id: str = ""


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


def _no_answer_about(partition: Partition) -> KafkaException:
    """librdkafka answers a question for offsets that timed out by -1001, without an error (tests/canaries)."""
    return KafkaException(KafkaError(KafkaError._TIMED_OUT, f"no answer in time about {partition}"))


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
        unanswered: list[Partition] = []
        for p, future in self._futures.items():
            if not future.done():
                continue
            partition = Partition(p.topic, p.partition)
            if (error := future.exception()) is not None:
                self._failed(p.topic, error)
            elif (offset := future.result().offset) >= 0:
                answered[partition] = offset
            else:
                unanswered.append(partition)
        if unanswered and not answered:  # no broker at all
            self._failed(unanswered[0].topic, _no_answer_about(unanswered[0]))
        return answered


class Admin:
    """One admin client. Every call takes its timeout in seconds.

    Args:
        config: librdkafka's options.

    Attributes:
        groups: what it can ask about consumer groups.

    Raises:
        ConfigError: librdkafka refuses an option.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._connection = AdminConnection(config)
        self.groups = Groups(self._connection)

    @classmethod
    def of(cls, settings: Settings, options: Mapping[str, Any] | None = None) -> Self:
        """A client of its own for the cluster of these settings, with further options of librdkafka."""
        return cls({**client_config(settings), **(options or {})})

    def serve_log(self) -> None:
        """Hand the lines that wait to the ``logger`` of the options."""
        self._connection.client.poll(0)

    def brokers(self, timeout_s: float) -> tuple[int, ...]:
        """The ids of the brokers that are up.

        Raises:
            RetriableError: no answer in time.
            ConfigError: the brokers refuse the credentials, or TLS fails.
        """
        with self._connection.classified():
            metadata = self._connection.client.list_topics(timeout=timeout_s)
        return tuple(sorted(metadata.brokers or ()))

    def all_topics(self, timeout_s: float) -> tuple[str, ...]:
        """The names of all topics that the principal may describe.

        Raises:
            RetriableError: no answer in time.
        """
        with self._connection.classified():
            metadata = self._connection.client.list_topics(timeout=timeout_s)
        return tuple(sorted(metadata.topics or ()))

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
        futures = self._ask_about({*names, *may_be_hidden}, timeout_s)
        found: dict[str, TopicShape] = {}
        absent = {KafkaError.UNKNOWN_TOPIC_OR_PART}
        visible = {name: future for name, future in futures.items() if name not in may_be_hidden}
        others = {name: future for name, future in futures.items() if name in may_be_hidden}
        answers = self._connection.answers(visible, timeout_s, absent=absent, topic=str)
        answers |= self._connection.answers(others, timeout_s, absent={*absent, *_REFUSED})
        for name, described in answers.items():
            if described is not None:
                replicas = [len(partition.replicas) for partition in described.partitions]
                topic_id = as_java_writes(described.topic_id)
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

    def leaders(self, topics: Iterable[str], timeout_s: float) -> dict[Partition, str]:
        """Which broker leads each partition of those of these topics that exist; one without a leader is left out.

        Raises:
            RetriableError: no answer in time.
            ConfigError: access was refused.
        """
        futures, absent = self._ask_about(topics, timeout_s), {KafkaError.UNKNOWN_TOPIC_OR_PART}
        answers = self._connection.answers(futures, timeout_s, absent=absent, topic=str)
        return {
            Partition(name, one.id): f"broker {one.leader.id} ({address(one.leader.host, one.leader.port)})"
            for name, described in answers.items()
            if described is not None
            for one in described.partitions
            if one.leader is not None and one.leader.id >= 0
        }

    def in_sync(self, topics: Iterable[str], timeout_s: float) -> dict[Partition, tuple[int, int]]:
        """How many replicas of each partition of those of these topics that exist are in sync, and how many there are.

        Raises:
            RetriableError: no answer in time.
            ConfigError: access was refused.
        """
        futures, absent = self._ask_about(topics, timeout_s), {KafkaError.UNKNOWN_TOPIC_OR_PART}
        answers = self._connection.answers(futures, timeout_s, absent=absent, topic=str)
        return {
            Partition(name, one.id): (len(one.isr), len(one.replicas))
            for name, described in answers.items()
            if described is not None
            for one in described.partitions
        }

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

        A shorter timeout than a second counts as a second, and at a client's first question as 1.5.

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
        return AskedOffsets(self._ask_offsets(*_SPECS[mark], partitions, timeout_s), self._connection.learn)

    def _asked(
        self,
        spec: OffsetSpec,
        partitions: Sequence[Partition],
        timeout_s: float,
        isolation: IsolationLevel,
        *,
        lowest: int = 0,
    ) -> dict[Partition, Any]:
        deadline = Deadline(timeout_s)
        self._connection.connect({partition.topic for partition in partitions})
        timeout_s = max(deadline.left_s, _LEAST_OFFSETS_TIMEOUT_S)
        answers = self._connection.answers(
            self._ask_offsets(spec, isolation, partitions, timeout_s),
            timeout_s,
            absent=(),
            topic=lambda partition: partition.topic,
        )
        found = dict(zip(as_partitions(answers), answers.values(), strict=True))
        if unanswered := [p for p, at in found.items() if at.offset < lowest]:
            with self._connection.classified():
                raise _no_answer_about(unanswered[0])
        return found

    def _ask_offsets(
        self, spec: OffsetSpec, isolation: IsolationLevel, partitions: Iterable[Partition], timeout_s: float
    ) -> Mapping[TopicPartition, Future[Any]]:
        wanted = dict.fromkeys(bare(partitions), spec)
        with self._connection.classified():
            return self._connection.client.list_offsets(
                wanted, isolation_level=isolation, request_timeout=timeout_s
            )

    def _ask_about(self, topics: Iterable[str], timeout_s: float) -> Mapping[str, Future[Any]]:
        wanted = TopicCollection(sorted(set(topics)))
        with self._connection.classified():
            return self._connection.client.describe_topics(wanted, request_timeout=timeout_s)

    def _configs(
        self, kind: ResourceType, names: Iterable[str], timeout_s: float
    ) -> dict[str, dict[str, str]]:
        resources = [ConfigResource(kind, name) for name in sorted(names)]
        if not resources:
            return {}
        with self._connection.classified():
            # librdkafka sends a broker's question to that broker, and refuses two of them in one call (_CONFLICT).
            calls = [resources] if kind is ResourceType.TOPIC else [[resource] for resource in resources]
            futures: dict[ConfigResource, Future[Any]] = {}
            for call in calls:
                futures |= self._connection.client.describe_configs(call, request_timeout=timeout_s)
        answers = self._connection.answers(
            futures, timeout_s, absent={KafkaError.UNKNOWN_TOPIC_OR_PART, *_REFUSED}
        )
        return {
            resource.name: {name: entry.value for name, entry in entries.items() if entry.value is not None}
            for resource, entries in answers.items()
            if entries is not None
        }


_shared: WeakValueDictionary[str, Admin] = WeakValueDictionary()
_sharing = threading.Lock()


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
