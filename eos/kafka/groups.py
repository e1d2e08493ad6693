"""Groups: who is in a consumer group, and what each member has."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import wait
from typing import Any, NamedTuple

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from eos.base.deadline import Deadline
from eos.errors import ConfigError
from eos.kafka.admin_connection import AdminConnection
from eos.kafka.group_offsets import Committed
from eos.kafka.positions import epoch_of, epoch_or_none, metadata_of
from eos.offsets import Partition

_NO_SUCH_GROUP = {KafkaError.GROUP_ID_NOT_FOUND}
# Said of offsets that name no member, while a group has some.
_HAS_MEMBERS = {
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.STALE_MEMBER_EPOCH,
    KafkaError.UNKNOWN_MEMBER_ID,
}
# Seconds, the most that librdkafka allows. A question for a group whose coordinator is found after the question's timeout ends
# the process (librdkafka issue 4605; tests/canaries). So it does not time out; only the wait for its answer does.
_GROUP_TIMEOUT_S = 3_600.0


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


class Groups:
    """Questions for the coordinators of groups. Every call takes its timeout in seconds."""

    def __init__(self, connection: AdminConnection) -> None:
        self._connection = connection

    def shape(self, group: str, timeout_s: float) -> GroupShape:
        """The members of a group; one that does not exist has none.

        Raises:
            RetriableError: no answer in time, or the coordinator is moving.
            ConfigError: access was refused.
        """
        described = self._describe(group, timeout_s)
        if described is None:
            return GroupShape([], is_classic=False)
        members = sorted(str(member) for member in self._as_members(described))
        is_classic = (
            described.type == ConsumerGroupType.CLASSIC
            and described.state != ConsumerGroupState.DEAD
            and not described.is_simple_consumer_group
        )
        return GroupShape(members, is_classic)

    def members(self, group: str, timeout_s: float) -> list[Member]:
        """The members of a group, and the partitions that each has. Raises as `shape` does."""
        described = self._describe(group, timeout_s)
        return [] if described is None else self._as_members(described)

    @staticmethod
    def _as_members(described: Any) -> list[Member]:
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

        Raises as `shape` does.
        """
        described = self._describe(group, timeout_s)
        if described is None or described.state != ConsumerGroupState.STABLE:
            return {}
        return {
            member.group_instance_id or member.member_id: frozenset(
                Partition(one.topic, one.partition) for one in member.assignment.topic_partitions
            )
            for member in described.members
        }

    def offsets(self, group: str, timeout_s: float) -> dict[Partition, Committed]:
        """All that a group has stored, of whichever topics; without what is pending. Raises as `shape` does."""
        with self._connection.classified(group=group):
            (asked,) = self._connection.client.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group)], request_timeout=_GROUP_TIMEOUT_S
            ).values()
            found = asked.result(timeout_s).topic_partitions
            if failed := [one.error for one in found if one.error is not None]:
                raise KafkaException(failed[0])
        self._connection.answered()
        return {
            Partition(one.topic, one.partition): Committed(one.offset, metadata_of(one), epoch_of(one))
            for one in found
            if one.offset >= 0
        }

    def set_offsets(self, group: str, offsets: Mapping[Partition, Committed], timeout_s: float) -> None:
        """Commit offsets that no owner begins at, in the place of the members of a group that has none.

        Raises:
            RetriableError: no answer in time, or the coordinator is moving.
            ConfigError: access was refused, or the group has members.
        """
        wanted = [
            TopicPartition(*partition, one.offset, one.metadata, epoch_or_none(one.leader_epoch))
            for partition, one in sorted(offsets.items())
        ]
        with self._connection.classified(group=group):
            client = self._connection.client
            (asked,) = client.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group, wanted)], request_timeout=_GROUP_TIMEOUT_S
            ).values()
            for one in asked.result(timeout_s).topic_partitions:
                if one.error is not None and one.error.code() in _HAS_MEMBERS:
                    raise ConfigError(
                        f"group {group!r} has got live members, and takes no offsets from outside. Fix: stop them all"
                    )
                if one.error is not None:
                    raise KafkaException(one.error)
        self._connection.answered()

    def _describe(self, group: str, timeout_s: float) -> Any:
        deadline = Deadline(timeout_s)
        with self._connection.classified(group=group):
            # The answer to the last question may be as old as that. It only says that a new one may be asked.
            client, last = self._connection.client, self._connection.last_about
            if (late := last.get(group)) is not None and wait([late], deadline.left_s).not_done:
                raise TimeoutError
            (asked,) = client.describe_consumer_groups([group], request_timeout=_GROUP_TIMEOUT_S).values()
            last[group] = asked
            try:
                described = asked.result(deadline.left_s)
            except KafkaException as error:
                if error.args[0].code() not in _NO_SUCH_GROUP:
                    raise
                described = None
        self._connection.answered()
        return described
