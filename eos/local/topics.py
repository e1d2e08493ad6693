"""Topics of a local cluster: created here, because jobs never create any."""

from __future__ import annotations

from collections.abc import Mapping

from eos.kafka import topics
from eos.local.cluster import LocalKafka


def create_topics(kafka: LocalKafka, names: Mapping[str, int], *, timeout_s: float = 30.0) -> list[str]:
    """Create those of these topics (name to partitions) that are missing, on as many brokers as there are.

    Returns:
        The names of the topics that were created.

    Raises:
        UnavailableError: the cluster did not create them in ``timeout_s``.
    """
    config = {"bootstrap.servers": kafka.bootstrap_servers}
    return topics.create_topics(config, names, replicas=len(kafka.brokers), timeout_s=timeout_s)


def empty_topics(kafka: LocalKafka, names: Mapping[str, int], *, timeout_s: float = 30.0) -> None:
    """Make these topics (name to partitions) anew, without records; those that are missing are created.

    Raises:
        UnavailableError: the cluster did not do it in ``timeout_s``.
    """
    topics.delete_topics({"bootstrap.servers": kafka.bootstrap_servers}, names, timeout_s=timeout_s)
    create_topics(kafka, names, timeout_s=timeout_s)
