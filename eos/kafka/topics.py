"""Creates and empties topics, on clusters that are ours to shape: the local one and those of tests. Jobs never do."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from eos.calls import Call
from eos.errors import UnavailableError
from eos.kafka.classify import classify_consumer
from eos.kafka.connecting import QUICKLY

_POLL_S = 0.05


def create_topics(
    config: Mapping[str, Any], topics: Mapping[str, int], *, replicas: int = 1, timeout_s: float = 30.0
) -> list[str]:
    """Create those of these topics (name to partitions) that are missing, and wait until every partition has a leader.

    Returns:
        The names of the topics that were created.

    Raises:
        UnavailableError: no leader, or no answer, in ``timeout_s``.
        EosError: what the cluster answered.
    """
    deadline = time.monotonic() + timeout_s
    client = _client(config)
    created: list[str] = []
    wanted = [NewTopic(name, count, replicas) for name, count in topics.items()]
    for name, future in client.create_topics(wanted, request_timeout=timeout_s).items():
        try:
            future.result(timeout_s)
            created.append(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise classify_consumer(Call.METADATA, error.args[0]) from error
    while not _all_led(client, {name: topics[name] if name in created else 1 for name in topics}, deadline):
        if time.monotonic() >= deadline:
            raise UnavailableError(
                f"{', '.join(topics)}: some partitions have no leader after {timeout_s:.0f} s"
            )
        time.sleep(_POLL_S)
    return created


def delete_topics(config: Mapping[str, Any], topics: Iterable[str], *, timeout_s: float = 30.0) -> None:
    """Delete topics with their records, and wait until the cluster knows them no more.

    Raises:
        UnavailableError: they are still there after ``timeout_s``.
        EosError: what the cluster answered.
    """
    deadline = time.monotonic() + timeout_s
    client = _client(config)
    names = set(topics)
    for future in client.delete_topics(sorted(names), request_timeout=timeout_s).values():
        try:
            future.result(timeout_s)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise classify_consumer(Call.METADATA, error.args[0]) from error
    while names & _known(client, deadline).keys():
        if time.monotonic() >= deadline:
            raise UnavailableError(f"{', '.join(sorted(names))}: still there after {timeout_s:.0f} s")
        time.sleep(_POLL_S)


def existing_topics(config: Mapping[str, Any], *, timeout_s: float = 30.0) -> list[str]:
    """The names of all topics but Kafka's own.

    Raises:
        EosError: what the cluster answered.
    """
    known = _known(_client(config), time.monotonic() + timeout_s)
    return sorted(name for name in known if not name.startswith("__"))


def _client(config: Mapping[str, Any]) -> AdminClient:
    return AdminClient({**QUICKLY, **config})


def _all_led(client: AdminClient, topics: Mapping[str, int], deadline: float) -> bool:
    found = _known(client, deadline)
    return all(
        name in found
        and len(found[name].partitions) >= count
        and all(partition.leader >= 0 for partition in found[name].partitions.values())
        for name, count in topics.items()
    )


def _known(client: AdminClient, deadline: float) -> Mapping[str, Any]:
    try:
        return client.list_topics(timeout=max(0.1, deadline - time.monotonic())).topics or {}
    except KafkaException as error:
        raise classify_consumer(Call.METADATA, error.args[0]) from error
